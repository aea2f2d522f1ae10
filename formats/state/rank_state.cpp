#include "formats/state/rank_state.h"

#include <algorithm>

#include "libshard/core/box.h"
#include "libshard/core/error.h"
#include "libshard/ranks/wire.h"

namespace shard::checkpoint {

template <class Wire>
void pass(Wire& wire, Passed<Wire, Sharding>& sharding) {
  wire.list(sharding.mesh, [&](auto& axis) { wire.pass(axis.name, axis.size); });
  wire.list(sharding.placements, [&](auto& placement) {
    wire.pass_below(placement.kind, Placement::kStridedShard + 1);
    wire.pass_below(placement.dim, kMaxDims + 1);
    wire.pass(placement.split_factor);
  });
  wire.pass(sharding.ranks);
}

template <class Wire>
void pass(Wire& wire, Passed<Wire, TensorInfo>& info) {
  wire.pass_below(info.dtype, kDTypeCount);
  wire.pass(info.requires_grad, info.is_sharded, info.location, info.shape);
  wire.optional(info.sharding, [&](auto& sharding) { pass(wire, sharding); });
  wire.list(info.boxes, [&](auto& box) { wire.pass(box.offsets, box.sizes); });
}

template <class Wire>
void pass(Wire& wire, Passed<Wire, RankState>& state) {
  wire.pass(state.tree);
  wire.list(state.tensors, [&](auto& tensor) { pass(wire, tensor); });
}

namespace {

bool is_well_formed(const TensorInfo& info) {
  const std::size_t dims = info.shape.size();
  if (dims > kMaxDims || (info.sharding && info.sharding->mesh.size() != info.sharding->placements.size()))
    return false;
  return std::ranges::all_of(
      info.boxes, [dims](const HeldBox& box) { return box.offsets.size() == dims && box.sizes.size() == dims; });
}

}  // namespace

bool are_dtensors(const std::vector<RankState>& ranks) {
  bool is_any = false;
  for (const RankState& rank : ranks) {
    for (const TensorInfo& tensor : rank.tensors) {
      if (tensor.is_sharded && !tensor.sharding) return false;
      is_any = is_any || tensor.is_sharded;
    }
  }
  return is_any;
}

Bytes to_bytes(const RankState& state) { return to_message(state); }

RankState rank_state(std::span<const std::byte> bytes) {
  RankState state = from_message<RankState>(bytes);
  if (!std::ranges::all_of(state.tensors, is_well_formed)) {
    throw Error(ErrorCode::kPeer, "a rank sent a malformed description of its state");
  }
  return state;
}

}  // namespace shard::checkpoint
