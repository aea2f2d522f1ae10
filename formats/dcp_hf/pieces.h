/// \file
/// Joins the pieces in all files of a dcp-hf checkpoint to tensors, by name.
///
/// The whole shape of a tensor is the one that the files record: those of shardctl, and those of a torch that writes
/// global_shape. If they record none, it is the farthest end of the pieces, which torch's own reader also assumes.
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

/// Collects the pieces file by file; `build` is called once, at the end. Every error names the file and the tensor.
/// Cost: linear; one hash table of names.
class PieceTable {
 public:
  /// Names and shapes are copied into the catalog's arena. Ownership: `catalog` must outlive this.
  explicit PieceTable(Catalog& catalog) : catalog_(catalog), builder_(catalog) {}

  /// Starts a file of the catalog. The following calls concern this file.
  void begin_file(std::uint32_t file);
  /// \throws Error kCorruption (kind duplicate_name)  the file has the tensor already.
  void add(const safetensors::HeaderEntry& entry);
  /// Sets the tensor of a piece and the piece's offset in it.
  /// \throws Error kCorruption  the file lacks the key (index_mismatch); the key was set already (duplicate_name); the
  ///   piece has a different number of dimensions (shape_mismatch); its end exceeds 63 bits.
  void set_sharding(const safetensors::ShardingEntry& entry);
  /// Sets the whole shape that shardctl.shapes records for a key.
  /// \throws Error kCorruption  as set_sharding; or global_shape is different.
  void set_whole(std::string_view key, std::span<const std::int64_t> shape);
  /// Ends the file.
  /// \throws Error kCorruption (kind index_mismatch)  a tensor has no offsets; or shapes are `recorded`, and a piece
  ///   that is not at the origin has none. (kind out_of_bounds)  a piece extends past its whole shape.
  void end_file(bool recorded);
  /// Drops everything that the current file added.
  void drop_file();

  /// Adds tensors, chunks, stored tensors and storages to the catalog. They are not sorted or checked for coverage yet.
  /// A tensor whose pieces contradict one another (dtype_mismatch, shape_mismatch) is reported and skipped. A piece
  /// that extends past the end of its file is a loss.
  void build(Findings& findings);

 private:
  struct Piece {
    std::uint32_t key = 0;   ///< Index of the name in the header.
    std::uint32_t name = 0;  ///< Index of the tensor's name.
    std::uint32_t file = 0;
    Dims sizes, offsets, whole;
    std::int64_t place = 0;  ///< Bytes from the file's start.
    std::int64_t bytes = 0;
    DType dtype{};
    bool has_offsets = false, has_whole = false;
    bool is_recorded = false;  ///< shardctl.shapes names it.
  };

  std::uint32_t number_of(std::string_view name);
  Piece* piece_here(std::uint32_t key);  ///< The piece with that key in the current file, or null.
  Piece& need_here(std::string_view key, const char* what);
  void set_shape(Piece& piece, std::span<const std::int64_t> shape, const char* what);
  void check_bounds(const Piece& piece) const;
  [[noreturn]] void fail(std::string_view name, FindingKind kind, const std::string& what) const;
  bool check_alike(std::span<const std::uint32_t> pieces, Findings& findings) const;
  /// The first piece that records the whole shape, or null.
  const Piece* find_whole(std::span<const std::uint32_t> pieces) const;
  Dims shape_of(std::span<const std::uint32_t> pieces) const;
  void add_tensor(std::string_view name, std::span<const std::uint32_t> pieces, Findings& findings);
  void add_chunk(const Piece& piece, Findings& findings);

  Catalog& catalog_;
  CatalogBuilder builder_;
  std::vector<Piece> pieces_;
  std::vector<std::string_view> names_;  ///< The names of tensors and the keys.
  /// The last piece of each key, in any file; kNoIndex if a name is not a key.
  std::vector<std::uint32_t> last_piece_;
  HashMap<std::string_view, std::uint32_t> numbers_;
  std::size_t file_begin_ = 0;  ///< The first piece of the current file.
  std::uint32_t file_ = 0;
};

}  // namespace shard::dcp_hf
