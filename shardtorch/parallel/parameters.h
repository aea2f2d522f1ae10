/// \file
/// The parameters of a module with sharded ones, for torch::optim, and the norm of their gradients.
///
/// torch::nn::Module::parameters() has a wrapper without elements for a sharded parameter, which optimizers silently
/// skip. These functions return each local shard instead.
#pragma once

#include <torch/nn/module.h>

#include <string>
#include <vector>

#include "shardtorch/sharded_tensor/sharded_tensor.h"

namespace shard::parallel {

/// A leaf that has elements and a gradient on this rank: a plain parameter, or a local shard of a sharded one.
struct LocalParameter {
  std::string name;           ///< The parameter's name in the module.
  at::Tensor tensor;          ///< Shared with the module.
  ShardedTensor sharded{};    ///< The parameter; undefined for a plain one.
  std::size_t local_shard{};  ///< The index among the local shards.
};

/// All local parameters in the order of the module. A parameter with several names appears once, under the first. Skips
/// parameters without a shard on this rank, and undefined ones.
std::vector<LocalParameter> named_local_parameters(const torch::nn::Module& module);
/// The tensors of these parameters: torch::optim::Adam optimizer(local_parameters(*module), options).
std::vector<at::Tensor> local_parameters(const torch::nn::Module& module);

/// The norm of all gradients as one vector, of order `p`, which may be infinity. The result is the same on all ranks.
/// The gradient of a shard counts on its rank, and that of a plain parameter once, with its value on group rank 0.
/// Parameters without a gradient count as zero. A collective of `group` (null: the default group), which must contain
/// all ranks of all shards.
/// \throws c10::ValueError  p is not above 0, this process is not a member; Error kPeer
/// Cost: an all_reduce of one number.
double grad_norm(const torch::nn::Module& module, double p = 2, const ProcessGroupPtr& group = nullptr);

/// Scales all gradients in place so that their norm is at most `max_norm`; returns the old norm. Uses the formula of
/// torch.nn.utils.clip_grad_norm_: a factor of max_norm / (norm + 1e-6) if this is below 1. A collective, see
/// grad_norm. \throws c10::Error  with `error_if_nonfinite`, the norm is not finite; no gradient is scaled then.
double clip_grad_norm_(const torch::nn::Module& module, double max_norm, double p = 2, bool error_if_nonfinite = false,
                       const ProcessGroupPtr& group = nullptr);

}  // namespace shard::parallel
