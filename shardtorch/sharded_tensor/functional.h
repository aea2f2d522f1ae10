/// \file
/// Collectives that autograd sees: each returns new tensors, and its backward is a collective too.
///
/// So all ranks must run backward through all of them, in one order, and an input needs gradients on all ranks or on
/// none. A gradient depends on what the ranks' losses are:
///   kSummed      each rank has a loss of its own, and their sum is differentiated (torch.distributed.nn.functional);
///   kReplicated  all ranks compute one and the same loss (tensor parallelism, DTensor).
/// Shapes, groups and errors: collectives.h.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "shardtorch/sharded_tensor/collectives.h"

namespace shard {
class ShardedTensor;
}

namespace shard::functional {

enum class Losses : std::uint8_t { kSummed, kReplicated };

/// The ranks' sum. Backward: kSummed  the sum of gradients; kReplicated  the gradient as it is.
at::Tensor all_reduce(const at::Tensor& tensor, Losses losses, const ProcessGroupPtr& group = nullptr);
/// The same tensor, which all ranks have and which each uses in its own way. Backward: the sum of gradients.
at::Tensor replicated(const at::Tensor& tensor, const ProcessGroupPtr& group = nullptr);
/// Backward: kSummed  reduce_scatter; kReplicated  this rank's part of the gradient.
at::Tensor all_gather(const at::Tensor& own, std::int64_t dim, Losses losses, const ProcessGroupPtr& group = nullptr);
/// The ranks' sum, a part for each. Backward: all_gather.
at::Tensor reduce_scatter(const at::Tensor& whole, std::int64_t dim = 0, const ProcessGroupPtr& group = nullptr);
/// `shapes[i]` is that of what rank i sends here. Backward: the way back.
std::vector<at::Tensor> all_to_all(const std::vector<at::Tensor>& to,
                                   const std::vector<std::vector<std::int64_t>>& shapes,
                                   const ProcessGroupPtr& group = nullptr);

/// ShardedTensor::full_tensor of the local shards as autograd knows them. Backward: each shard's part of the gradient,
/// kSummed  of the sum of gradients; kReplicated  of this rank's. Ranks without shards take part.
at::Tensor full_tensor(const ShardedTensor& tensor, Losses losses);

using Tensors = std::vector<at::Tensor>;
/// What `forward` makes of `inputs` outside of autograd, with `backward` as its derivative: gradients of the outputs
/// (defined, zeros where there are none) become those of the inputs.
Tensors differentiable(const Tensors& inputs, const std::function<Tensors()>& forward,
                       std::function<Tensors(Tensors gradients)> backward);
/// Whether `differentiable` would give outputs of these inputs a derivative.
bool records_gradients(const Tensors& inputs);
/// The fact that ranks must agree on if backward is a collective (agree.h).
std::string gradients_fact(bool are_recorded);

}  // namespace shard::functional
