/// \file
/// Which boxes move where when a tensor's placements change. Pure: no mesh, no rank but by number, no element.
///
/// Ranks are the indices of a mesh, row-major. Offsets count elements of the local tensors, whose shapes and boxes are
/// what libshard's place() says.
#pragma once

#include <cstdint>
#include <vector>

#include "shardtorch/dtensor/placements.h"
#include "shardtorch/sharded_tensor/metadata.h"

namespace shard::dtensor {

/// How a tensor lies on a mesh.
struct TensorLayout {
  Sizes shape;            ///< The whole tensor's.
  Sizes mesh;             ///< Of the mesh's axes, slowest first.
  Placements placements;  ///< normalized().

  friend bool operator==(const TensorLayout&, const TensorLayout&) = default;
};
/// "size=[8, 4], placements=[S(0), R]"
std::string to_string(const TensorLayout& layout);

/// A part of a rank's local tensor that is a box of the whole tensor.
struct LocalBox {
  Sizes offsets;  ///< In the whole tensor.
  Sizes sizes;
  Sizes local_offsets;  ///< In the local tensor.
};
struct LocalPart {
  Sizes sizes;  ///< The local tensor's.
  std::vector<LocalBox>
      boxes;                ///< In the order of elements; several where a StridedShard leaves gaps; none when empty.
  bool is_replica = false;  ///< A lower rank holds the same.
};
/// By rank of the mesh.
/// \throws shard::Error kUnsupported  strided shards of too many boxes (place())
std::vector<LocalPart> parts_of(const TensorLayout& layout);

/// A box on its way between two local tensors.
struct BoxCopy {
  Sizes from, to;  ///< Where it begins in the one, and in the other.
  Sizes sizes;

  friend bool operator==(const BoxCopy&, const BoxCopy&) = default;
};

/// What two local tensors share, in the order of the boxes of `from`.
std::vector<BoxCopy> common_boxes(const LocalPart& from, const LocalPart& to);

/// What one rank sends and receives.
struct RedistributionPlan {
  Sizes new_sizes;  ///< Of its new local tensor.
  /// By rank of the mesh, itself included. What it receives from one rank fills no element twice. Where nothing is
  /// Partial before, every element of the new local tensor is received once; where something is, once from every rank
  /// that has a term of it.
  std::vector<std::vector<BoxCopy>> to, from;
  /// For each rank that sends: the number of its terms among those of one element, in the order of ranks; 0 where there
  /// is but one.
  std::vector<std::size_t> term_of;
  std::size_t terms = 1;  ///< Of each element.
  bool is_local = false;  ///< No rank receives anything from another.
};

/// From layout `from` to `placements`, for rank `own`. Of replicas a rank reads the one that has its own place on all
/// axes that replicate, so that what it has already is not sent. An axis that is Partial before and not afterwards
/// contributes terms; one that is Partial on both sides stays apart from the others of the axis.
/// \pre `placements` are normalized; an axis that is Partial afterwards has the same operation before
/// Cost: ranks times boxes of each pair of ranks that share elements or could.
RedistributionPlan plan_redistribution(const TensorLayout& from, const Placements& placements, std::int64_t own);

}  // namespace shard::dtensor
