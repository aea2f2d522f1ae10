/// \file
/// Differentiable collectives. Each returns new tensors, and its backward is a collective as well.
///
/// Therefore all ranks must run backward through all of them in one order, and an input needs gradients on all ranks or
/// on none. A gradient depends on the ranks' losses:
/// - kSummed: each rank has its own loss, and their sum is differentiated (torch.distributed.nn.functional);
/// - kReplicated: all ranks compute the same loss (tensor parallelism, DTensor).
///
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

/// Sums over the ranks. Backward: kSummed  the sum of gradients; kReplicated  the gradient unchanged.
at::Tensor all_reduce(const at::Tensor& tensor, Losses losses, const ProcessGroupPtr& group = nullptr);
/// Returns the same tensor, which is equal on all ranks but used differently by each. Backward: the sum of gradients.
at::Tensor replicated(const at::Tensor& tensor, const ProcessGroupPtr& group = nullptr);
/// Gathers. Backward: kSummed  reduce_scatter; kReplicated  this rank's part of the gradient.
at::Tensor all_gather(const at::Tensor& own, std::int64_t dim, Losses losses, const ProcessGroupPtr& group = nullptr);
/// Sums over the ranks and gives each a part. Backward: all_gather.
at::Tensor reduce_scatter(const at::Tensor& whole, std::int64_t dim = 0, const ProcessGroupPtr& group = nullptr);
/// Exchanges tensors. `shapes[i]` is the shape of the tensor from rank i. Backward: the opposite exchange.
std::vector<at::Tensor> all_to_all(const std::vector<at::Tensor>& to,
                                   const std::vector<std::vector<std::int64_t>>& shapes,
                                   const ProcessGroupPtr& group = nullptr);

/// ShardedTensor::full_tensor of the local shards as autograd knows them. Backward: each shard gets its part of the
/// gradient: with kSummed of the sum of gradients, with kReplicated of this rank's gradient. Ranks without shards take
/// part.
at::Tensor full_tensor(const ShardedTensor& tensor, Losses losses);

/// The rows of `indices` in a table of which this rank has the rows from `first` on, as `table`; zeros for other rows.
/// Their sum over the ranks is the rows of the whole table. `padding`: a row without gradient, or -1. No collective.
at::Tensor own_rows(const at::Tensor& table, const at::Tensor& indices, std::int64_t first, std::int64_t padding);

using Tensors = std::vector<at::Tensor>;
/// The result of `forward` on `inputs` without autograd. `backward` becomes its derivative. It converts gradients of
/// the outputs (always defined, zeros if there are none) to gradients of the inputs.
Tensors differentiable(const Tensors& inputs, const std::function<Tensors()>& forward,
                       std::function<Tensors(Tensors gradients)> backward);
/// Whether `differentiable` would give outputs of these inputs a derivative.
bool records_gradients(const Tensors& inputs);
/// The facts that ranks must agree on if backward is a collective (agree.h).
std::string gradients_fact(bool are_recorded);

}  // namespace shard::functional
