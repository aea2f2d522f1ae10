/// \file
/// The state dicts of all ranks as one catalog. Inside shardtorch/checkpoint only.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "libshard/catalog/catalog_builder.h"
#include "libshard/ranks/group.h"
#include "shardtorch/dtensor/dtensor.h"
#include "shardtorch/state/state_dict.h"

namespace shard::checkpoint {

/// A box of a tensor, in elements.
struct HeldBox {
  Sizes offsets, sizes;
};

/// One tensor as a rank describes it.
struct TensorInfo {
  DType dtype{};
  bool requires_grad = false;
  bool is_sharded = false;
  Sizes shape;                 ///< Shape of the whole tensor.
  std::string location;        ///< The device: "cpu", "cuda:0".
  std::vector<HeldBox> boxes;  ///< The boxes on this rank; for a plain tensor, one box that covers it.
  /// Set for a DTensor whose mesh contains all ranks of the group that saves. Its ranks are numbered as in that group.
  std::optional<Sharding> sharding{};
};

/// The state of one rank: a tree, and the tensors that the tree's kTensor values number.
struct RankState {
  std::string tree;  ///< A pickle in which persistent ids represent tensors.
  std::vector<TensorInfo> tensors;
};

/// The state of this rank, with the local tensors.
struct OwnState : RankState {
  std::vector<std::vector<at::Tensor>> local;  ///< By tensor and box. Shared with the state dict.
};

/// \throws Error kUnsupported  a tensor without strided elements: sparse, quantized, meta, ...
void check_storable(const at::Tensor& tensor);
/// \throws Error kUnsupported  as above; kInvalidArgument  a local tensor that contradicts the metadata. torch lets
///   programs that make a ShardedTensorBase, or resize a local tensor, create such a contradiction.
void check_storable(const Shard& shard, at::ScalarType dtype);

/// A box of a DTensor on this rank.
struct LocalBox {
  Sizes offsets;
  at::Tensor tensor;  ///< A view of the local tensor.
};
/// All boxes of a DTensor; none on a rank without elements. If the tensor has no elements, each rank of its mesh has
/// its part.
/// \throws Error kUnsupported  Partial placements; as above.
std::vector<LocalBox> local_boxes(const dtensor::DTensor& tensor);

/// \throws Error kUnsupported  a value that no checkpoint can store, naming it; kInvalidArgument  see check_storable.
OwnState own_state(const StateDict& state, const ProcessGroup& group);

/// Whether there are sharded tensors, and all of them on all ranks are DTensors on meshes of all ranks.
bool are_dtensors(const std::vector<RankState>& ranks);

/// Serialization, for transfer between ranks. \throws Error kPeer  bytes that `to_bytes` did not write.
Bytes to_bytes(const RankState& state);
RankState rank_state(std::span<const std::byte> bytes);

/// Adds a box whose elements are packed, row-major, in a separate storage: `stored` has storage, dtype and rank.
void add_packed_chunk(CatalogBuilder& builder, std::span<const std::int64_t> offsets,
                      std::span<const std::int64_t> sizes, StoredTensor stored);

/// The states of all ranks as one checkpoint whose file r is rank r's memory. Shards are the chunks of one tensor. If
/// several ranks have a plain tensor or a shard of one box, the rank with the fewest bytes to write provides it (the
/// lowest of equals); an object is that of the lowest rank.
struct MergedState {
  Catalog catalog;
  struct Held {
    std::uint32_t tensor, box;  ///< Indices into the rank's own state.
  };
  std::vector<Held> held;  ///< The content of the calling rank's file, in the file's order.
};

/// `keeps_replicas`: every rank's shard stays, as in a format in which each rank stores its own. `keeps_shardings`: the
/// catalog has the placements of DTensors.
/// \throws Error kInvalidArgument  ranks contradict one another: different kinds, dtypes or shapes, shards that overlap
///   or leave gaps.
/// Cost: n log n in tensors and boxes; ranks whose trees are equal bytes are parsed once.
MergedState merge_states(const std::vector<RankState>& ranks, int own_rank, bool keeps_replicas, bool keeps_shardings);

}  // namespace shard::checkpoint
