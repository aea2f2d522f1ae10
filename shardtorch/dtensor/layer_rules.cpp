// Norms, softmax and the loss of cross entropy. Source: torch/distributed/tensor/_ops/_math_ops.py (torch 2.11).
#include <ATen/ATen.h>

#include <algorithm>

#include "shardtorch/dtensor/dtensor.h"
#include "shardtorch/dtensor/operators.h"
#include "shardtorch/dtensor/reduction.h"
#include "shardtorch/errors.h"

namespace shard::dtensor {

namespace {

/// Replicate instead of Partial and of shards of dimensions from `first` on.
Placements replicated_from(const Placements& placements, std::int64_t first) {
  return replicated_where(placements,
                          [first](const Placement& each) { return is_partial(each) || sharded_dim(each) >= first; });
}

OperatorPlan plan_softmax(const OperatorCall& call) {
  const Placements whole = replicated_on(call.placements(0), {call.dim_arg("dim")});
  return {{whole}, {{call.shape(0), whole}}};
}

/// native_layer_norm and _fused_rms_norm: the result and its statistics.
OperatorPlan plan_norm(const OperatorCall& call) {
  const auto normed = std::ssize(call.arg("normalized_shape").toIntVector());
  const std::int64_t first = std::max<std::int64_t>(call.dims(0) - normed, 0);
  OperatorPlan plan{{replicated_from(call.placements(0), first)}, {}};
  while (plan.inputs.size() < call.tensors.size()) plan.inputs.push_back(call.replicas());
  Sizes statistics = call.shape(0);
  std::fill(statistics.begin() + first, statistics.end(), 1);
  plan.results.assign(call.schema.returns().size(), {std::move(statistics), plan.inputs[0]});
  plan.results[0].shape = call.shape(0);
  return plan;
}

/// Whether a call of rms_norm has a rule. On the CPU it consists of other operators, as in torch, which keep terms and
/// follow a sharded weight. They fail if the mean over the normalized dimensions is an average over ranks.
bool has_rms_norm_rule(const OperatorCall& call) {
  const DTensor input = DTensor::of(call.args[0].toTensor());
  if (!input.defined() || call.mesh->device_type() != at::kCPU) return true;
  const auto first = static_cast<std::size_t>(input.dim() - std::ssize(call.arg("normalized_shape").toIntVector()));
  const Sizes shards = shards_by_dim(input.placements(), call.mesh->shape(), input.dim());
  bool is_sharded = false;
  for (std::size_t d = first; d < shards.size(); ++d) {
    if (input.sizes()[d] % shards[d] != 0) return false;
    is_sharded = is_sharded || shards[d] > 1;
  }
  return is_sharded;
}

/// The reductions of losses, by their numbers in calls.
enum LossReduction : std::int64_t { kNone, kMean, kSum };

/// The mean over all targets from the sum and the weight of this rank's: its value counts 1 / n in an average over
/// `axes`. \returns  the loss, the weight of this rank's targets
Tensors mean_of(const OperatorCall& call, const std::vector<std::size_t>& axes, const Tensors& locals) {
  const bool has_weight = locals.size() > 2;
  const std::optional<at::Tensor> weight = has_weight ? std::optional(locals[2]) : std::nullopt;
  const std::int64_t ignored = call.arg("ignore_index").toInt();
  const auto [sum, own] = call.name() == "nll_loss_forward"
                              ? at::nll_loss_forward(locals[0], locals[1], weight, kSum, ignored)
                              : at::nll_loss2d_forward(locals[0], locals[1], weight, kSum, ignored);
  at::Tensor total = own.detach();
  double ranks = 1;
  for (const std::size_t axis : axes) {
    total = all_reduce(total, *call.mesh, axis, ReduceOp::kSum);
    ranks *= static_cast<double>(call.mesh->size(axis));
  }
  return {sum * ranks / total, own};
}

/// The whole sizes, because parts of different whole sizes may fit on some ranks only. Classes without a batch are
/// whole on every rank.
void check_targets(const OperatorCall& call) {
  if (call.dims(0) < 2) return;
  Sizes expected = call.shape(0);
  expected.erase(expected.begin() + 1);
  const Sizes found = call.shape(1);
  SHARD_CHECK(found == expected, call.full_name(), ": targets of size ", at::IntArrayRef(found),
              " do not match the input of size ", at::IntArrayRef(call.shape(0)), ", which needs ",
              at::IntArrayRef(expected));
}

OperatorPlan plan_loss(const OperatorCall& call) {
  check_targets(call);
  const std::int64_t channel = call.dims(0) >= 2 ? 1 : 0;
  const std::int64_t reduction = call.arg("reduction").toInt();
  const Placements input = replicated_on(call.placements(0), {channel});
  Placements target = input, loss, weight;
  std::vector<std::size_t> axes;
  for (std::size_t axis = 0; axis < target.size(); ++axis) {
    const std::int64_t dim = sharded_dim(target[axis]);
    if (dim > channel) target[axis] = shard_of(target[axis], dim - 1);
    const bool is_part = dim >= 0 && reduction != kNone;
    if (is_part) axes.push_back(axis);
    loss.push_back(is_part ? Placement(Partial{reduction == kMean ? ReduceOp::kMean : ReduceOp::kSum}) : target[axis]);
    weight.push_back(is_part ? Placement(Partial()) : Placement(Replicate()));
  }
  OperatorPlan plan{{input, target}, {{reduction == kNone ? call.shape(1) : Sizes(), loss}, {Sizes(), weight}}};
  if (call.tensors.size() > 2) plan.inputs.push_back(call.replicas());
  if (reduction == kMean && !axes.empty()) {
    plan.compute = [&call, axes](const Tensors& locals) { return mean_of(call, axes, locals); };
  }
  return plan;
}

}  // namespace

OperatorRule layer_rule(const OperatorCall& call) {
  const std::string_view name = call.name();
  if (name == "_softmax" || name == "_log_softmax" || name == "_safe_softmax") return plan_softmax;
  if (name == "native_layer_norm" || (name == "_fused_rms_norm" && has_rms_norm_rule(call))) return plan_norm;
  return name == "nll_loss_forward" || name == "nll_loss2d_forward" ? plan_loss : nullptr;
}

}  // namespace shard::dtensor
