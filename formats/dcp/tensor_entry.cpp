#include "formats/dcp/tensor_entry.h"

#include "libshard/core/box.h"
#include "libshard/core/checked.h"

namespace shard::dcp {

void add_tensor(Catalog& catalog, const Metadata& metadata, const TensorEntry& entry) {
  Tensor tensor;
  tensor.name = entry.name;
  tensor.path = entry.path;
  tensor.shape = entry.size;
  tensor.dtype = entry.dtype;
  tensor.first_chunk = static_cast<std::uint32_t>(catalog.chunks.size());
  tensor.chunk_count = entry.chunk_count;
  for (std::uint32_t i = 0; i < entry.chunk_count; ++i) {
    const ChunkEntry& chunk = metadata.chunks[entry.first_chunk + i];
    Storage& storage = catalog.storages[chunk.item];
    storage.bytes = checked_bytes(checked_numel(chunk.sizes.span()), entry.dtype);
    StoredTensor stored;
    stored.shape = chunk.sizes;
    stored.strides = row_major_strides(*catalog.arena, chunk.sizes);
    stored.storage = chunk.item;
    stored.rank = catalog.files[storage.file].rank;
    stored.dtype = entry.dtype;
    stored.requires_grad = entry.requires_grad;
    catalog.chunks.push_back(
        {chunk.offsets, chunk.sizes, stored.strides, 0, static_cast<std::uint32_t>(catalog.stored.size())});
    catalog.stored.push_back(stored);
  }
  catalog.arena->charge(Charge::kEntries);
  catalog.tensors.push_back(tensor);
}

}  // namespace shard::dcp
