#include "formats/dcp/tensor_entry.h"

#include <optional>
#include <vector>

#include "libshard/catalog/catalog_builder.h"
#include "libshard/catalog/flat_run.h"
#include "libshard/core/box.h"
#include "libshard/core/checked.h"

namespace shard::dcp {
namespace {

/// Adds the item of a chunk as a stored tensor. \returns its index.
std::uint32_t add_stored(CatalogBuilder& builder, const TensorEntry& entry, const ChunkEntry& chunk) {
  Catalog& catalog = builder.catalog();
  Storage& storage = catalog.storages[chunk.item];
  storage.bytes = checked_bytes(checked_numel(chunk.sizes.span()), entry.dtype);
  const std::uint32_t stored =
      builder.add_row_major(chunk.item, chunk.sizes, entry.dtype, catalog.files[storage.file].rank);
  catalog.stored[stored].requires_grad = entry.requires_grad;
  return stored;
}

/// Adds the boxes into which a run of a block's elements is divided, see TensorEntry::stored_size.
class RunAdder {
 public:
  RunAdder(CatalogBuilder& builder, const TensorEntry& entry) : builder_(builder), block_(at(entry.size.size())) {
    for (std::size_t d = 0; d < block_.size(); ++d) {
      block_[d] = entry.size[static_cast<int>(d)] / entry.stored_size[static_cast<int>(d)];
    }
    Arena& arena = *builder.catalog().arena;
    strides_ = row_major_strides(arena, arena.dims(block_));
  }

  /// Adds the run of one chunk. Its offsets but the last are the block's indices, so the block starts at index times
  /// block size in every dimension. The last offset and size are the run in the block's row-major order, which is a few
  /// boxes.
  void add(const ChunkEntry& chunk, std::uint32_t stored) {
    const auto last = static_cast<int>(block_.size());
    std::vector<std::int64_t> corner(block_.size());
    for_each_box_of_run(
        block_, chunk.offsets[last], chunk.sizes[last],
        [&](std::span<const std::int64_t> offsets, std::span<const std::int64_t> sizes, std::int64_t before) {
          for (std::size_t d = 0; d < block_.size(); ++d) {
            corner[d] = chunk.offsets[static_cast<int>(d)] * block_[d] + offsets[d];
          }
          builder_.add_chunk(stored, corner, sizes, strides_, before);
        });
  }

 private:
  static std::vector<std::int64_t> at(int dimensions) {
    return std::vector<std::int64_t>(static_cast<std::size_t>(dimensions));
  }

  CatalogBuilder& builder_;
  std::vector<std::int64_t> block_;
  Dims strides_;
};

}  // namespace

void add_tensor(Catalog& catalog, const Metadata& metadata, const TensorEntry& entry) {
  CatalogBuilder builder(catalog);
  builder.begin(entry.name, entry.path, entry.dtype, entry.size);
  std::optional<RunAdder> runs;
  if (!entry.stored_size.empty()) runs.emplace(builder, entry);
  for (std::uint32_t i = 0; i < entry.chunk_count; ++i) {
    const ChunkEntry& chunk = metadata.chunks[entry.first_chunk + i];
    const std::uint32_t stored = add_stored(builder, entry, chunk);
    if (runs) {
      runs->add(chunk, stored);
    } else {
      builder.add_chunk({chunk.offsets, chunk.sizes, catalog.stored[stored].strides, 0, stored});
    }
  }
}

}  // namespace shard::dcp
