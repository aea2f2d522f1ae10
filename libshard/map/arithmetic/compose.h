/// \file Converts a stored tensor's chunks to chunks of the logical tensors in it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "libshard/catalog/catalog.h"
#include "libshard/map/arithmetic/rule_parts.h"

namespace shard {

class FlatBuffers;

/// For each tensor of the catalog, the number of its leading dimensions in which every chunk has size 1, as with
/// stacked layers and experts. 0 if its chunks are not in a catalog's order. Cost: visits each chunk.
std::vector<int> single_dims(const Catalog& stored);

/// The part of a stored tensor that a logical tensor uses: a box, or all of an unchanged tensor.
struct MapLink {
  std::uint32_t stored = 0;
  bool is_whole = false;
  bool is_flat = false;  ///< `stored` is a local tensor of FlatBuffers.
  MapBox box{};
};

/// The catalogs to which links refer.
struct LinkTargets {
  const Catalog& stored;
  std::span<const int> singles;               ///< The result of single_dims(stored).
  std::span<const std::uint32_t> index_of{};  ///< By stored tensor of a link: its index in `stored`; empty: equal.
  const FlatBuffers* flat = nullptr;
  std::span<const std::uint32_t> buffer_of{};  ///< By buffer of `flat`: its index in `stored`.
};

/// Appends the chunks of links to `out`, in the order of a catalog: one per overlap of a chunk and a box. Leading
/// single dimensions in which a box has one position are searched by bisection instead of a scan, and so are flat
/// buffers. Dims are allocated in `arena`.
void append_linked(const LinkTargets& targets, std::span<const MapLink> links, Arena& arena, std::vector<Chunk>& out);

/// Splits the chunks of one tensor at each other's borders, so that any two are equal or do not overlap. The result is
/// in the order of `catalog`. Dims are allocated in `arena`. Cost: the number of resulting chunks.
void split_at_borders(const Catalog& catalog, Arena& arena, std::vector<Chunk>& chunks);

}  // namespace shard
