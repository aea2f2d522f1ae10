/// \file
/// The state of torch::optim's Adam, AdamW and SGD as part of a checkpoint, under the names of the parameters.
///
/// The form is that of Python's torch.distributed.checkpoint.state_dict.get_optimizer_state_dict:
///
///     {"state": {"layer.weight": {"step": tensor, "exp_avg": tensor, "exp_avg_sq": tensor}, ...},
///      "param_groups": [{"lr": 0.001, "betas": (0.9, 0.999), ..., "params": ["layer.weight", ...]}]}
///
/// So either language can continue the other's training. The state of a sharded parameter is a ShardedTensor with the
/// same sharding, so a checkpoint can be loaded by different ranks, under different shardings, as parameters can.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <string>

#include "shardtorch/checkpoint/checkpoint.h"

namespace shard::parallel {

/// The optimizer's state. Tensors are shared with the optimizer. "step" is a separate scalar, as in Python: float64 if
/// that is the default dtype, otherwise float32. Parameters without a step so far have no entry. Parameters without a
/// shard on this rank are in "params" if the optimizer has one group that contains all local parameters of `module`.
/// With several groups, each group needs a parameter of which both rank 0 and the loading ranks have shards.
/// \throws c10::ValueError  an optimizer of a different class; one of its tensors is not a local parameter of `module`
///   (parameters.h).
c10::IValue optimizer_state(const torch::nn::Module& module, const torch::optim::Optimizer& optimizer);

/// Gives every parameter without a step so far a state of zeros, which a state can then be loaded into. Python does the
/// same before it loads. An SGD without momentum has no state. \throws c10::ValueError  as above.
void init_optimizer_state(torch::optim::Optimizer& optimizer);

/// Copies steps and options (lr, betas, ...) from a state of the form above, and tensors that are not shared. Groups
/// are matched by their parameters' names. Options that C++ does not have and that do not change the steps (foreach,
/// fused, ...) are skipped. If it throws, nothing has changed.
/// \throws c10::ValueError  as above; a parameter of the optimizer that the state lacks, different shapes or shards;
///   an option that decides about the state or the kind of step and differs (amsgrad, momentum if one is 0, maximize,
///   decoupled_weight_decay).
void set_optimizer_state(const torch::nn::Module& module, torch::optim::Optimizer& optimizer, const c10::IValue& state);

/// A checkpoint of a training run: {"model": the module's state dict, "optim": the optimizer's state dict, ...}, the
/// same as in Python's dcp.save({"model": ..., "optim": ...}). \throws  as optimizer_state.
StateDict training_state(const torch::nn::Module& module, const torch::optim::Optimizer& optimizer);
/// Loads such a checkpoint, saved by any number of ranks, into module and optimizer. A collective. Other names in the
/// checkpoint are in `LoadResult::unexpected`, except for states of parameters of which this rank has no shard. \throws
/// as checkpoint::load and set_optimizer_state.
checkpoint::LoadResult load_training_state(torch::nn::Module& module, torch::optim::Optimizer& optimizer,
                                           const std::string& path, ProcessGroupPtr group = nullptr,
                                           const checkpoint::LoadOptions& options = {});

}  // namespace shard::parallel
