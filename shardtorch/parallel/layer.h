/// \file
/// Common code of the layers in shardtorch/parallel. They shard a dimension into one chunk per rank of a group, in the
/// order of group ranks. Inside shardtorch/parallel only.
#pragma once

#include <torch/nn/module.h>

#include <ostream>

#include "shardtorch/parallel/module.h"
#include "shardtorch/sharded_tensor/sharded_tensor.h"

namespace shard::parallel {

/// This rank's chunk, under a chunk spec over the group: elements [begin, begin + size) in a dimension of `whole`
/// elements.
struct Chunk {
  std::int64_t begin, size, whole;
};
Chunk chunk_of(const ProcessGroup& group, std::int64_t whole, int rank);
inline Chunk own_chunk(const ProcessGroup& group, std::int64_t whole) { return chunk_of(group, whole, group.rank()); }

/// Shards `whole` of group rank 0 along `dim`: a parameter. A collective. \throws c10::ValueError  this process is not
/// a member; see shard_tensor
at::Tensor cut_parameter(const at::Tensor& whole, std::int64_t dim, const ProcessGroupPtr& group,
                         const ParameterOptions& options);
/// This rank's shard of a sharded parameter, possibly empty.
at::Tensor local_of(const at::Tensor& parameter);
/// Copies the elements on group rank 0 to all ranks: a plain parameter. A collective.
at::Tensor same_parameter(const at::Tensor& whole, const ProcessGroupPtr& group, const ParameterOptions& options);
/// "shard::parallel::NAME(first=8, second=4": the start of a layer's text, with the sizes of its weight.
void print_start(std::ostream& stream, const char* name, const at::Tensor& weight, const char* first,
                 const char* second);

/// Concatenates every rank's chunk of the last dimension, which has `whole` elements, on every rank. Backward: this
/// rank's part.
at::Tensor gather_last(const at::Tensor& own, std::int64_t whole, const ProcessGroupPtr& group);
/// Takes this rank's chunk of the last dimension of a tensor that is the same on all ranks. Backward: all ranks' parts.
at::Tensor split_last(const at::Tensor& whole, const ProcessGroupPtr& group);

}  // namespace shard::parallel
