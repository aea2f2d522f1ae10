#include "formats/dcp/tensor_entry.h"

#include <optional>
#include <vector>

#include "libshard/catalog/flat_run.h"
#include "libshard/core/box.h"
#include "libshard/core/checked.h"

namespace shard::dcp {
namespace {

/// The item of a chunk, as a stored tensor. \returns its index.
std::uint32_t add_stored(Catalog& catalog, const TensorEntry& entry, const ChunkEntry& chunk) {
  Storage& storage = catalog.storages[chunk.item];
  storage.bytes = checked_bytes(checked_numel(chunk.sizes.span()), entry.dtype);
  StoredTensor stored;
  stored.shape = chunk.sizes;
  stored.strides = row_major_strides(*catalog.arena, chunk.sizes);
  stored.storage = chunk.item;
  stored.rank = catalog.files[storage.file].rank;
  stored.dtype = entry.dtype;
  stored.requires_grad = entry.requires_grad;
  catalog.stored.push_back(stored);
  return static_cast<std::uint32_t>(catalog.stored.size() - 1);
}

/// Appends the boxes that a run of a block's elements makes, see TensorEntry::stored_size.
class RunAdder {
 public:
  RunAdder(Catalog& catalog, const TensorEntry& entry) : catalog_(catalog), block_(at(entry.size.size())) {
    for (std::size_t d = 0; d < block_.size(); ++d) {
      block_[d] = entry.size[static_cast<int>(d)] / entry.stored_size[static_cast<int>(d)];
    }
    strides_ = row_major_strides(*catalog.arena, catalog.arena->dims(block_));
  }

  void add(const ChunkEntry& chunk, std::uint32_t stored) {
    const auto last = static_cast<int>(block_.size());
    std::vector<std::int64_t> corner(block_.size());
    for_each_box_of_run(
        block_, chunk.offsets[last], chunk.sizes[last],
        [&](std::span<const std::int64_t> offsets, std::span<const std::int64_t> sizes, std::int64_t before) {
          for (std::size_t d = 0; d < block_.size(); ++d) {
            corner[d] = chunk.offsets[static_cast<int>(d)] * block_[d] + offsets[d];
          }
          catalog_.arena->charge(Charge::kChunks);
          catalog_.chunks.push_back(
              {catalog_.arena->dims(corner), catalog_.arena->dims(sizes), strides_, before, stored});
        });
  }

 private:
  static std::vector<std::int64_t> at(int dimensions) {
    return std::vector<std::int64_t>(static_cast<std::size_t>(dimensions));
  }

  Catalog& catalog_;
  std::vector<std::int64_t> block_;
  Dims strides_;
};

}  // namespace

void add_tensor(Catalog& catalog, const Metadata& metadata, const TensorEntry& entry) {
  Tensor tensor;
  tensor.name = entry.name;
  tensor.path = entry.path;
  tensor.shape = entry.size;
  tensor.dtype = entry.dtype;
  tensor.first_chunk = static_cast<std::uint32_t>(catalog.chunks.size());
  std::optional<RunAdder> runs;
  if (!entry.stored_size.empty()) runs.emplace(catalog, entry);
  for (std::uint32_t i = 0; i < entry.chunk_count; ++i) {
    const ChunkEntry& chunk = metadata.chunks[entry.first_chunk + i];
    const std::uint32_t stored = add_stored(catalog, entry, chunk);
    if (runs) {
      runs->add(chunk, stored);
    } else {
      catalog.chunks.push_back({chunk.offsets, chunk.sizes, catalog.stored[stored].strides, 0, stored});
    }
  }
  tensor.chunk_count = static_cast<std::uint32_t>(catalog.chunks.size()) - tensor.first_chunk;
  catalog.arena->charge(Charge::kEntries);
  catalog.tensors.push_back(tensor);
}

}  // namespace shard::dcp
