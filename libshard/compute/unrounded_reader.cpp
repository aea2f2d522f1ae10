#include "libshard/compute/unrounded_reader.h"

#include <algorithm>

#include "libshard/core/dtype.h"

namespace shard {

UnroundedReader::UnroundedReader(Reader& base, const ComputedReader& computed)
    : base_(base), computed_(computed), catalog_(base.catalog()), is_computed_(catalog_.tensors.size()) {
  catalog_.files.clear();
  catalog_.objects.clear();
  take_stored();
  for (std::size_t i = 0; i < is_computed_.size(); ++i) {
    Tensor& tensor = catalog_.tensors[i];
    is_computed_[i] =
        tensor.chunk_count > 0 && std::ranges::all_of(catalog_.chunks_of(tensor), [&](const Chunk& chunk) {
          return catalog_.stored[chunk.stored].storage >= computed_.first_computed();
        });
    if (is_computed_[i]) tensor.dtype = DType::kFloat32;
  }
}

/// Takes storages and chunks from the base reader.
void UnroundedReader::take_stored() {
  const Catalog& base = base_.catalog();
  catalog_.storages = base.storages;
  catalog_.stored = base.stored;
  catalog_.chunks = base.chunks;
  for (StoredTensor& stored : catalog_.stored) {
    if (stored.storage < computed_.first_computed()) continue;
    catalog_.storages[stored.storage].bytes =
        base.storages[stored.storage].bytes / element_bytes(stored.dtype) * element_bytes(DType::kFloat32);
    stored.dtype = DType::kFloat32;
  }
}

void UnroundedReader::locate(std::span<const std::uint32_t> tensors) {
  base_.locate(tensors);
  take_stored();
}

std::shared_ptr<const RandomReader> UnroundedReader::bytes_of(std::uint32_t storage) const {
  return storage < computed_.first_computed() ? base_.bytes_of(storage) : computed_.unrounded_bytes_of(storage);
}

}  // namespace shard
