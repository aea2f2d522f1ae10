/// \file
/// CatalogBuilder: adds tensors that lie in several files to a catalog. Inside formats/deepspeed only.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "formats/deepspeed/partition.h"
#include "formats/torch/saved_files.h"
#include "libshard/catalog/catalog.h"
#include "libshard/core/hash_table.h"

namespace shard::deepspeed {

/// A tensor as one rank's file has it.
struct HeldView {
  std::uint32_t file = 0;
  std::int64_t rank = 0;  ///< -1: it is no rank's.
  torch_save::TensorView view;
};

/// Charges what it adds. Ownership: refers to catalog and files. Names must stay valid.
class CatalogBuilder {
 public:
  CatalogBuilder(Catalog& catalog, torch_save::SavedFiles& files)
      : catalog_(catalog), arena_(*catalog.arena), files_(files) {}

  /// Tensors by name: their index, before the catalog is sorted.
  const HashMap<std::string_view, std::uint32_t>& by_name() const { return by_name_; }

  /// Begins a tensor, which gets the chunks that are added next.
  /// \throws Error kCorruption  a tensor has that name (kind duplicate_name).
  void begin(std::string_view name, Path path, DType dtype, Dims shape);
  /// \returns its index. \throws Error  as SavedFiles::storage_of
  std::uint32_t add_stored(const HeldView& held);
  void add_chunk(std::uint32_t stored, std::span<const std::int64_t> offsets, std::span<const std::int64_t> sizes,
                 Dims strides, std::int64_t first);

  /// A tensor that lies whole in each of these. \throws Error kCorruption  they differ in shape or dtype.
  void add_whole(std::string_view name, Path path, std::span<const HeldView> copies);
  /// A tensor of that shape whose elements are those of a row. \pre as many
  void add_row(std::string_view name, Path path, Dims shape, const HeldView& row);
  /// A tensor whose runs lie in buffers; `buffers` are by rank, absent ones (kNoIndex) hold nothing of it.
  /// \throws Error kCorruption  a run lies in an absent one (kind gap).
  void add_flat(std::string_view name, Path path, Dims shape, std::span<const FlatRun> runs,
                std::span<const std::uint32_t> buffers, DType dtype);

 private:
  Catalog& catalog_;
  Arena& arena_;
  torch_save::SavedFiles& files_;
  HashMap<std::string_view, std::uint32_t> by_name_;
};

}  // namespace shard::deepspeed
