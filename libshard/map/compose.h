/// \file
/// From a stored tensor's chunks to those of the logical tensors in it.
#pragma once

#include <vector>

#include "libshard/catalog/catalog.h"
#include "libshard/map/rule_parts.h"

namespace shard {

/// How many of a tensor's first dimensions its chunks cut into single positions, as layers and experts that are
/// stacked; 0 where chunks do not lie in the order of a catalog. By tensor of the catalog. Cost: a look at each chunk.
std::vector<int> single_dims(const Catalog& stored);

/// Appends to `out` what the chunks of a stored tensor hold of a box of a logical one: as many chunks as the box meets.
/// Of its first `singles` dimensions (see single_dims) those that the box has at one position are searched, not walked.
/// Dims lie in `arena`.
void append_chunks(const Catalog& stored, const Tensor& tensor, int singles, const MapBox& box, Arena& arena,
                   std::vector<Chunk>& out);

/// What a logical tensor takes of a stored one: a box, or all of one that stays as it is.
struct MapLink {
  std::uint32_t stored = 0;
  bool is_whole = false;
  MapBox box{};
};

/// Appends the chunks of links to `out`, in the order of a catalog. `index_of` gives the index of a link's stored
/// tensor, `singles` are single_dims of the catalog.
template <class IndexOf>
void append_linked(const Catalog& stored, std::span<const int> singles, std::span<const MapLink> links,
                   IndexOf&& index_of, Arena& arena, std::vector<Chunk>& out);

/// Puts chunks into the order of a catalog: by offsets, then rank. Stable.
void sort_chunks(const Catalog& catalog, std::span<Chunk> chunks);

template <class IndexOf>
void append_linked(const Catalog& stored, std::span<const int> singles, std::span<const MapLink> links,
                   IndexOf&& index_of, Arena& arena, std::vector<Chunk>& out) {
  const std::size_t begin = out.size();
  for (const MapLink& link : links) {
    const std::uint32_t index = index_of(link.stored);
    const Tensor& tensor = stored.tensors[index];
    if (link.is_whole) {
      const std::span<const Chunk> chunks = stored.chunks_of(tensor);
      out.insert(out.end(), chunks.begin(), chunks.end());
    } else {
      append_chunks(stored, tensor, singles[index], link.box, arena, out);
    }
  }
  sort_chunks(stored, std::span(out).subspan(begin));
}

}  // namespace shard
