#include "libshard/compute/unrounded_reader.h"

#include <algorithm>
#include <utility>

#include "libshard/core/dtype.h"

namespace shard {

UnroundedReader::UnroundedReader(Reader& base, ComputedReaders computed)
    : base_(base), computed_(std::move(computed)), catalog_(base.catalog()), is_computed_(catalog_.tensors.size()) {
  catalog_.files.clear();
  catalog_.objects.clear();
  take_stored();
  for (std::size_t i = 0; i < is_computed_.size(); ++i) {
    Tensor& tensor = catalog_.tensors[i];
    is_computed_[i] =
        tensor.chunk_count > 0 && std::ranges::all_of(catalog_.chunks_of(tensor), [&](const Chunk& chunk) {
          return reader_of(catalog_.stored[chunk.stored].storage) != nullptr;
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
    if (reader_of(stored.storage) == nullptr) continue;
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
  const ComputedReader* const computed = reader_of(storage);
  return computed == nullptr ? base_.bytes_of(storage) : computed->unrounded_bytes_of(storage);
}

/// Null if the storage is not computed.
const ComputedReader* UnroundedReader::reader_of(std::uint32_t storage) const {
  const auto computes = [storage](const ComputedReader* reader) { return reader->computes(storage); };
  const auto found = std::ranges::find_if(computed_, computes);
  return found == computed_.end() ? nullptr : *found;
}

}  // namespace shard
