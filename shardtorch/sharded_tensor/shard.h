/// \file
/// Shard: a local tensor and its place in the whole.
#pragma once

#include <ATen/core/Tensor.h>

#include "shardtorch/sharded_tensor/metadata.h"

namespace shard {

/// The tensor is shared, not copied.
struct Shard {
  /// Layout and contiguity are checked later, when a ShardedTensor is built from it.
  /// \throws c10::ValueError  tensor and metadata differ in size, or in device if the metadata has a placement.
  Shard(at::Tensor tensor, ShardMetadata metadata);
  /// Sizes and device of the tensor; placement "rank:<rank>/<device>".
  static Shard from_tensor_and_offsets(at::Tensor tensor, Sizes offsets, int rank);

  at::Tensor tensor;
  ShardMetadata metadata;
};

}  // namespace shard
