/// \file
/// Shard: a local tensor and its position in the whole tensor.
#pragma once

#include <ATen/core/Tensor.h>

#include "shardtorch/sharded_tensor/metadata.h"

namespace shard {

/// The tensor is shared, not copied.
struct Shard {
  /// Layout and contiguity are checked later, when a ShardedTensor is built from it.
  /// \throws c10::ValueError  tensor and metadata differ in size, or in device if the metadata has a placement.
  Shard(at::Tensor tensor, ShardMetadata metadata);
  /// Takes sizes and device from the tensor. The placement is "rank:<rank>/<device>".
  static Shard from_tensor_and_offsets(at::Tensor tensor, Sizes offsets, int rank);

  at::Tensor tensor;
  ShardMetadata metadata;
};
using LocalShard = Shard;  ///< The same type, for programs that also use the placement shard::dtensor::Shard.

}  // namespace shard
