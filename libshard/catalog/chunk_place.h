/// \file The position of a chunk's elements in their file.
#pragma once

#include <cstdint>

#include "libshard/catalog/catalog.h"
#include "libshard/catalog/element_counts.h"

namespace shard {

/// The byte range of a chunk's elements in their file. `known` is false if they are not stored plainly, for example if
/// they are compressed.
struct ChunkPlace {
  bool known = false;
  std::int64_t offset_bytes = 0, span_bytes = 0;
};

inline ChunkPlace place_of(const Catalog& catalog, const Chunk& chunk) {
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

}  // namespace shard
