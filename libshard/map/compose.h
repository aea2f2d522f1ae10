/// \file
/// From a stored tensor's chunks to those of the logical tensors in it.
#pragma once

#include <vector>

#include "libshard/catalog/catalog.h"
#include "libshard/map/rule_parts.h"

namespace shard {

/// Appends to `out` what the chunks of a stored tensor hold of a box of a logical one: as many chunks as the box meets.
/// Dims lie in `arena`.
void append_chunks(const Catalog& stored, const Tensor& tensor, const MapBox& box, Arena& arena,
                   std::vector<Chunk>& out);

/// What a logical tensor takes of a stored one: a box, or all of one that stays as it is.
struct MapLink {
  std::uint32_t stored = 0;
  bool is_whole = false;
  MapBox box{};
};

/// Appends the chunks of links to `out`, in the order of a catalog. `tensor_of` gives the stored tensor of an index.
template <class TensorOf>
void append_linked(const Catalog& stored, std::span<const MapLink> links, TensorOf&& tensor_of, Arena& arena,
                   std::vector<Chunk>& out);

/// Puts chunks into the order of a catalog: by offsets, then rank. Stable.
void sort_chunks(const Catalog& catalog, std::span<Chunk> chunks);

template <class TensorOf>
void append_linked(const Catalog& stored, std::span<const MapLink> links, TensorOf&& tensor_of, Arena& arena,
                   std::vector<Chunk>& out) {
  const std::size_t begin = out.size();
  for (const MapLink& link : links) {
    const Tensor& tensor = tensor_of(link.stored);
    if (link.is_whole) {
      const std::span<const Chunk> chunks = stored.chunks_of(tensor);
      out.insert(out.end(), chunks.begin(), chunks.end());
    } else {
      append_chunks(stored, tensor, link.box, arena, out);
    }
  }
  sort_chunks(stored, std::span(out).subspan(begin));
}

}  // namespace shard
