/// \file
/// From a stored tensor's chunks to those of the logical tensors in it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "libshard/catalog/catalog.h"
#include "libshard/map/arithmetic/rule_parts.h"

namespace shard {

class FlatBuffers;

/// How many of a tensor's first dimensions its chunks cut into single positions, as layers and experts that are
/// stacked; 0 where chunks do not lie in the order of a catalog. By tensor of the catalog. Cost: a look at each chunk.
std::vector<int> single_dims(const Catalog& stored);

/// The part of a stored tensor that a logical tensor uses: a box, or all of an unchanged tensor.
struct MapLink {
  std::uint32_t stored = 0;
  bool is_whole = false;
  bool is_flat = false;  ///< `stored` is a local tensor of FlatBuffers.
  MapBox box{};
};

/// Where what links name lies.
struct LinkTargets {
  const Catalog& stored;
  std::span<const int> singles;               ///< single_dims of it.
  std::span<const std::uint32_t> index_of{};  ///< By stored tensor of a link: its index in `stored`; none: the same.
  const FlatBuffers* flat = nullptr;
  std::span<const std::uint32_t> buffer_of{};  ///< By buffer of `flat`: its index in `stored`.
};

/// Appends the chunks of links to `out`, in the order of a catalog: as many as their boxes meet. Of a stored tensor's
/// first single dimensions those that a box has at one position are searched, not walked, and so are flat buffers. Dims
/// lie in `arena`.
void append_linked(const LinkTargets& targets, std::span<const MapLink> links, Arena& arena, std::vector<Chunk>& out);

}  // namespace shard
