/// \file
/// The boxes to transfer when a tensor's placements change, with their sources and destinations. Pure: uses no mesh and
/// no elements, and ranks are only numbers.
///
/// Ranks are the indices of a mesh, row-major. Offsets count elements of the local tensors, whose shapes and boxes are
/// those of libshard's place().
#pragma once

#include <cstdint>
#include <vector>

#include "libshard/catalog/layouts/layout.h"
#include "shardtorch/dtensor/placements.h"
#include "shardtorch/sharded_tensor/metadata.h"

namespace shard::dtensor {

/// The layout of a tensor on a mesh.
struct TensorLayout {
  Sizes shape;            ///< The whole tensor's.
  Sizes mesh;             ///< The mesh's axes, slowest first.
  Placements placements;  ///< normalized().

  friend bool operator==(const TensorLayout&, const TensorLayout&) = default;
};
/// "size=[8, 4], placements=[S(0), R]"
std::string to_string(const TensorLayout& layout);

/// The local tensor of each rank of the mesh: several boxes if a StridedShard leaves gaps.
/// \throws shard::Error kUnsupported  strided shards with too many boxes (place())
std::vector<RankPiece> parts_of(const TensorLayout& layout);
/// The local tensor of one rank. \throws  as above. Cost: independent of the number of ranks.
RankPiece part_of(const TensorLayout& layout, std::int64_t rank);

// The numbers of a box, as torch takes them.
inline at::IntArrayRef offsets_of(const Box& box) { return {box.offsets().data(), box.offsets().size()}; }
inline at::IntArrayRef sizes_of(const Box& box) { return {box.sizes().data(), box.sizes().size()}; }

/// A box to copy between two local tensors.
struct BoxCopy {
  Sizes from, to;  ///< Its first element in the source, and in the destination.
  Sizes sizes;

  friend bool operator==(const BoxCopy&, const BoxCopy&) = default;
};

/// The common boxes of two local tensors, in the order of the boxes of `from`.
std::vector<BoxCopy> common_boxes(const RankPiece& from, const RankPiece& to);

/// Boxes that one rank sends and receives.
struct RedistributionPlan {
  Sizes new_sizes;  ///< The shape of the new local tensor.
  /// By rank of the mesh, including this one. No two boxes from one rank fill the same element. If no axis was Partial
  /// before, every element of the new local tensor is received once; otherwise, once from every rank with a term of it.
  std::vector<std::vector<BoxCopy>> to, from;
  /// For each sending rank, the index of its term among the terms of one element, in the order of ranks; 0 if there is
  /// only one term.
  std::vector<std::size_t> term_of;
  std::size_t terms = 1;  ///< The number of terms of each element.
  bool is_local = false;  ///< No rank receives data from another rank.
};

/// The plan from layout `from` to `placements` for rank `own`. A rank reads the replica at its own position on all axes
/// that replicate, so elements that it already has are not sent. An axis that is Partial before and not afterwards
/// contributes terms. On an axis that is Partial on both sides, each rank's terms stay separate.
/// \pre `placements` are normalized; an axis that is Partial afterwards has the same operation before
/// Cost: proportional to the ranks, times the boxes of each pair of ranks that may share elements.
RedistributionPlan plan_redistribution(const TensorLayout& from, const Placements& placements, std::int64_t own);

}  // namespace shard::dtensor
