/// \file
/// The state dict of this rank, as its description for other ranks. Inside shardtorch/checkpoint only.
#pragma once

#include <vector>

#include "formats/state/rank_state.h"
#include "shardtorch/dtensor/dtensor.h"
#include "shardtorch/state/state_dict.h"

namespace shard::checkpoint {

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

}  // namespace shard::checkpoint
