/// \file
/// From a stored tensor's chunks to those of the logical tensors in it. Inside libshard/map only.
#pragma once

#include <vector>

#include "libshard/catalog/catalog.h"
#include "libshard/map/rule_parts.h"

namespace shard {

/// Appends to `out` what the chunks of a stored tensor hold of a box of a logical one: as many chunks as the box meets.
/// Dims lie in `arena`.
void append_chunks(const Catalog& stored, const Tensor& tensor, const MapBox& box, Arena& arena,
                   std::vector<Chunk>& out);

/// Puts chunks into the order of a catalog: by offsets, then rank. Stable.
void sort_chunks(const Catalog& catalog, std::span<Chunk> chunks);

}  // namespace shard
