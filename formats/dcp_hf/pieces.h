/// \file
/// The pieces of tensors that all files of a dcp-hf checkpoint hold, joined by name to tensors.
///
/// The whole shape of a tensor is what the files record (those written here, and those of a torch that writes
/// global_shape), else the farthest end of its pieces, as torch's own reader infers it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/safetensors/header.h"
#include "formats/safetensors/metadata.h"
#include "libshard/catalog/catalog_builder.h"
#include "libshard/core/findings.h"
#include "libshard/core/hash_table.h"

namespace shard::dcp_hf {

/// Filled file by file, then built once. Every error names the file and the tensor.
/// Cost: linear; one hash table of names.
class PieceTable {
 public:
  /// Names and shapes are kept in the catalog's arena, which must hold the headers' texts too.
  explicit PieceTable(Catalog& catalog) : catalog_(catalog), builder_(catalog) {}

  /// What is added from now on belongs to that file of the catalog.
  void begin_file(std::uint32_t file);
  /// \throws Error kCorruption (kind duplicate_name)  the file has the tensor already.
  void add(const safetensors::HeaderEntry& entry);
  /// The tensor that a piece belongs to, and where it lies there.
  /// \throws Error kCorruption  the file lacks the key (index_mismatch), the key was set already (duplicate_name), the
  ///   piece has another number of dimensions (shape_mismatch), an end past 63 bits.
  void set_sharding(const safetensors::ShardingEntry& entry);
  /// The whole shape that shardctl.shapes records for a key. \throws Error kCorruption  as set_sharding, and where
  ///   global_shape says another one.
  void set_whole(std::string_view key, std::span<const std::int64_t> shape);
  /// \throws Error kCorruption (kind index_mismatch)  a tensor without offsets; where shapes are `recorded`, a piece
  ///   that is not at the origin and has none; (out_of_bounds) a piece that leaves its whole shape.
  void end_file(bool recorded);
  /// Drops what the current file added.
  void drop_file();

  /// Adds tensors, chunks, stored tensors and storages to the catalog; not sorted or checked for coverage yet. Reports
  /// tensors whose pieces contradict one another (dtype_mismatch, shape_mismatch) and leaves them out. Loses pieces
  /// that reach past the end of their file.
  void build(Findings& findings);

 private:
  struct Piece {
    std::uint32_t key = 0;   ///< The name in the header.
    std::uint32_t name = 0;  ///< The tensor's.
    std::uint32_t file = 0;
    Dims sizes, offsets, whole;
    std::int64_t place = 0;  ///< Bytes from the file's begin.
    std::int64_t bytes = 0;
    DType dtype{};
    bool has_offsets = false, has_whole = false;
    bool is_recorded = false;  ///< shardctl.shapes names it.
  };

  std::uint32_t number_of(std::string_view name);
  Piece* piece_here(std::uint32_t key);  ///< The piece of that key in the file being read, or null.
  Piece& need_here(std::string_view key, const char* what);
  void set_shape(Piece& piece, std::span<const std::int64_t> shape, const char* what);
  void check_bounds(const Piece& piece) const;
  [[noreturn]] void fail(std::string_view name, FindingKind kind, const std::string& what) const;
  bool check_alike(std::span<const std::uint32_t> pieces, Findings& findings) const;
  const Piece* find_whole(std::span<const std::uint32_t> pieces) const;  ///< The first that says it, or null.
  Dims shape_of(std::span<const std::uint32_t> pieces) const;
  void add_tensor(std::string_view name, std::span<const std::uint32_t> pieces, Findings& findings);
  void add_chunk(const Piece& piece, Findings& findings);

  Catalog& catalog_;
  CatalogBuilder builder_;
  std::vector<Piece> pieces_;
  std::vector<std::string_view> names_;    ///< Names of tensors and of keys.
  std::vector<std::uint32_t> last_piece_;  ///< Each key's last piece, in any file; kNoIndex where a name is not a key.
  HashMap<std::string_view, std::uint32_t> numbers_;
  std::size_t file_begin_ = 0;  ///< The first piece of the current file.
  std::uint32_t file_ = 0;
};

}  // namespace shard::dcp_hf
