/// \file
/// Common code of the layers in shardtorch/parallel: one chunk of a dimension for each rank of a group, in the order of
/// group ranks. Inside shardtorch/parallel only.
#pragma once

#include <torch/nn/module.h>

#include <string>

#include "shardtorch/sharded_tensor/sharded_tensor.h"

namespace shard::parallel {

/// Elements [begin, begin + size) of a dimension of `whole` elements: this rank's chunk of a chunk spec over the group.
struct Chunk {
  std::int64_t begin, size, whole;
};
Chunk chunk_of(const ProcessGroup& group, std::int64_t whole, int rank);
inline Chunk own_chunk(const ProcessGroup& group, std::int64_t whole) { return chunk_of(group, whole, group.rank()); }

/// Group rank 0's `whole` sharded along `dim`, on its device: a parameter. A collective.
/// \throws c10::ValueError  this process is not a member; see shard_tensor
at::Tensor cut_parameter(const at::Tensor& whole, std::int64_t dim, const ProcessGroupPtr& group);
/// This rank's shard of one, which may be empty.
at::Tensor local_of(const at::Tensor& parameter);
/// Group rank 0's elements on all ranks: a plain parameter. A collective.
at::Tensor same_parameter(const at::Tensor& whole, const ProcessGroupPtr& group);

/// Assembles every rank's chunk of a last dimension of `whole` elements on every rank. Backward: the own part.
at::Tensor gather_last(const at::Tensor& own, std::int64_t whole, const ProcessGroupPtr& group);
/// The own chunk of a last dimension that is the same on all ranks. Backward: all ranks' parts.
at::Tensor split_last(const at::Tensor& whole, const ProcessGroupPtr& group);

}  // namespace shard::parallel
