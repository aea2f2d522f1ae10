#include "apps/shardctl/inspect_numbers.h"

#include <vector>

namespace shard::app {

std::int64_t packed_bytes(std::int64_t elements, DType dtype) {
  const int bits = dtype_bits(dtype);
  return bits % 8 == 0 ? elements * (bits / 8) : (elements * bits + 7) / 8;
}

std::int64_t element_count(std::span<const std::int64_t> shape) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  return count;
}

Totals totals(const Catalog& catalog, const Selection& selection) {
  Totals sum;
  std::vector<bool> seen(catalog.tensors.size(), false);
  for (const SelectedTensor& selected : selection.tensors) {
    const Tensor& tensor = catalog.tensors[selected.source];
    const std::uint32_t root = tensor.alias_of == kNoIndex ? selected.source : tensor.alias_of;
    if (seen[root]) continue;
    seen[root] = true;
    sum.logical_bytes += packed_bytes(element_count(tensor.shape), selected.dtype);
    for (const Chunk& chunk : catalog.chunks_of(tensor)) {
      sum.stored_bytes += packed_bytes(element_count(chunk.sizes), catalog.stored[chunk.stored].dtype);
    }
  }
  return sum;
}

Place place_of(const Catalog& catalog, const Chunk& chunk) {
  const StoredTensor& stored = catalog.stored[chunk.stored];
  const Storage& storage = catalog.storages[stored.storage];
  if (!storage.plain || storage.offset < 0) return {};
  std::int64_t last = 0;
  bool empty = false;
  for (int d = 0; d < chunk.sizes.size(); ++d) {
    empty = empty || chunk.sizes[d] == 0;
    last += (chunk.sizes[d] - 1) * chunk.strides[d];
  }
  return {true, storage.offset + packed_bytes(chunk.first, stored.dtype),
          empty ? 0 : packed_bytes(last + 1, stored.dtype)};
}

}  // namespace shard::app
