#include "shardtorch/parallel/cross_entropy.h"

#include <ATen/ATen.h>

#include <limits>

#include "shardtorch/parallel/layer.h"
#include "shardtorch/sharded_tensor/functional.h"

namespace shard::parallel {

namespace {

void check_shapes(const at::Tensor& logits, const at::Tensor& targets, const Chunk& chunk) {
  SHARD_CHECK_VALUE(logits.dim() >= 1 && logits.size(-1) == chunk.size, "this rank has ", chunk.size, " of ",
                    chunk.whole, " classes, but the logits have the shape ", logits.sizes());
  SHARD_CHECK_VALUE(targets.sizes() == logits.sizes().slice(0, logits.dim() - 1), "the targets have the shape ",
                    targets.sizes(), ", but the logits ", logits.sizes());
}

/// The largest logit of each target over all ranks. Has no gradient, because the result does not depend on it.
at::Tensor largest(const at::Tensor& logits, const ProcessGroupPtr& group) {
  at::Tensor most = logits.size(-1) > 0
                        ? logits.detach().amax(-1)
                        : at::full(logits.sizes().slice(0, logits.dim() - 1), -std::numeric_limits<double>::infinity(),
                                   logits.options().requires_grad(false));
  most = most.contiguous();
  all_reduce(most, ReduceOp::kMax, group);
  return most;
}

/// The logit of each target that is on this rank; 0 for the others.
at::Tensor picked(const at::Tensor& logits, const at::Tensor& targets, const Chunk& chunk) {
  if (chunk.size == 0) return logits.sum(-1);  // Zeros that keep the logits in the graph.
  const at::Tensor local = targets - chunk.begin;
  const at::Tensor elsewhere = local.lt(0).logical_or(local.ge(chunk.size));
  return logits.gather(-1, local.masked_fill(elsewhere, 0).unsqueeze(-1)).squeeze(-1).masked_fill(elsewhere, 0);
}

}  // namespace

at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& targets, std::int64_t classes,
                         const CrossEntropyOptions& options, const ProcessGroupPtr& group) {
  const ProcessGroupPtr ranks = group_or_default(group);
  const Chunk chunk = own_chunk(*ranks, classes);
  check_shapes(logits, targets, chunk);
  const at::Tensor ignored = targets.eq(options.ignore_index);
  const at::Tensor outside = targets.lt(0).logical_or(targets.ge(classes)).logical_and(ignored.logical_not());
  SHARD_CHECK_INDEX(!outside.any().item<bool>(), "a target is out of bounds: there are ", classes, " classes");
  const auto summed = [&](const at::Tensor& part) {
    return functional::all_reduce(part, functional::Losses::kReplicated, ranks);
  };
  const at::Tensor shifted = logits - largest(logits, ranks).unsqueeze(-1);
  const at::Tensor log_sum = summed(shifted.exp().sum(-1)).log();
  at::Tensor losses = log_sum - summed(picked(shifted, targets, chunk));
  if (options.label_smoothing > 0) {
    const at::Tensor uniform = log_sum - summed(shifted.sum(-1)) / static_cast<double>(classes);
    losses = losses * (1 - options.label_smoothing) + uniform * options.label_smoothing;
  }
  losses = losses.masked_fill(ignored, 0);
  if (options.reduction == CrossEntropyOptions::Reduction::kNone) return losses;
  if (options.reduction == CrossEntropyOptions::Reduction::kSum) return losses.sum();
  return losses.sum() / ignored.logical_not().sum();
}

}  // namespace shard::parallel
