/// \file The position of a chunk's elements in their file.
#pragma once

#include <cstdint>

#include "libshard/catalog/catalog.h"
#include "libshard/catalog/element_counts.h"
#include "libshard/core/box.h"

namespace shard {

/// The byte range of a chunk's elements in their file. `known` is false if they are not stored plainly, for example if
/// they are compressed. A chunk without elements is at the begin of its storage.
struct ChunkPlace {
  bool known = false;
  std::int64_t offset_bytes = 0, span_bytes = 0;
};

inline ChunkPlace place_of(const Catalog& catalog, const Chunk& chunk) {
  const StoredTensor& stored = catalog.stored[chunk.stored];
  const Storage& storage = catalog.storages[stored.storage];
  if (!storage.plain || storage.offset < 0) return {};
  if (is_empty(chunk.sizes)) return {true, storage.offset, 0};  // Its strides and first element were not checked.
  std::int64_t last = 0;
  for (int d = 0; d < chunk.sizes.size(); ++d) last += (chunk.sizes[d] - 1) * chunk.strides[d];
  return {true, storage.offset + packed_bytes(chunk.first, stored.dtype), packed_bytes(last + 1, stored.dtype)};
}

}  // namespace shard
