// The local tensors on which operators run, with gradients that are those of the whole.
#include <ATen/ATen.h>

#include <algorithm>

#include "shardtorch/dtensor/operators.h"
#include "shardtorch/dtensor/redistribute.h"
#include "shardtorch/dtensor/reduction.h"
#include "shardtorch/errors.h"
#include "shardtorch/sharded_tensor/functional.h"

namespace shard::dtensor {

namespace {

/// Whether the result is an average over the ranks of the axis, so that each rank's result counts 1 / n.
bool is_averaged(const OperatorPlan& plan, std::size_t axis) {
  return !plan.results.empty() && plan.results[0].placements[axis] == Placement(Partial{ReduceOp::kMean});
}

/// Whether the ranks of the axis compute different things.
bool is_divided(const OperatorPlan& plan, std::size_t axis) {
  return std::ranges::any_of(plan.inputs, [&](const Placements& each) { return !is_replicate(each[axis]); }) ||
         std::ranges::any_of(plan.results,
                             [&](const OperatorResult& each) { return !is_replicate(each.placements[axis]); });
}

/// The placements in which the operator's own backward leaves the gradient of an input.
Placements gradient_of(const Placements& input, const OperatorPlan& plan) {
  Placements gradient = placements_of_gradient(input);
  for (std::size_t axis = 0; axis < input.size(); ++axis) {
    if (!is_replicate(input[axis]) || !is_divided(plan, axis)) continue;
    gradient[axis] = Partial{is_averaged(plan, axis) ? ReduceOp::kMean : ReduceOp::kSum};
  }
  return gradient;
}

/// `value` as a function of `input` whose gradient is multiplied by `factor`.
at::Tensor with_gradient(const at::Tensor& input, const at::Tensor& value, double factor) {
  return functional::differentiable(
      {input}, [&] { return Tensors{value.is_same(input) ? value.detach() : value}; },
      [factor](const Tensors& gradients) { return Tensors{factor == 1 ? gradients[0] : gradients[0] * factor}; })[0];
}

/// The factor of the gradient of a sharded input if the result is an average.
double share(const Placements& input, const OperatorCall& call, const OperatorPlan& plan) {
  double factor = 1;
  for (std::size_t axis = 0; axis < input.size(); ++axis) {
    if (sharded_dim(input[axis]) >= 0 && is_averaged(plan, axis)) factor /= static_cast<double>(call.mesh->size(axis));
  }
  return factor;
}

/// Whether the elements of the results are those of the tensors, moved, or constant. The gradient of a maximum, minimum
/// or product of terms is then that of each term, as in a redistribution.
bool computes_no_elements(const OperatorCall& call) {
  return view_rule(call) != nullptr || piece_rule(call) != nullptr || creation_rule(call) != nullptr;
}

void check_has_gradient(const OperatorCall& call, const OperatorPlan& plan) {
  if (computes_no_elements(call)) return;
  for (const OperatorResult& result : plan.results) {
    for (const Placement& each : result.placements) {
      const auto* const partial = std::get_if<Partial>(&each);
      SHARD_CHECK_NOT_IMPLEMENTED(
          partial == nullptr || partial->op == ReduceOp::kSum || partial->op == ReduceOp::kMean, call.full_name(),
          ": the gradient of ", to_string(each),
          " is not supported for DTensor! Redistribute the tensor so that the dimension is not sharded");
    }
  }
}

}  // namespace

at::Tensor prepared(const at::Tensor& local, std::size_t index, const OperatorCall& call, const OperatorPlan& plan) {
  const TensorLayout& from = call.tensors[index].layout;
  const Placements& target = plan.inputs.at(index);
  const bool is_recorded = functional::records_gradients({local});
  if (is_recorded) check_has_gradient(call, plan);
  Placements moved_to = target;  // Without the axes that become Partial.
  for (std::size_t axis = 0; axis < target.size(); ++axis) {
    if (is_partial(target[axis]) && target[axis] != from.placements[axis]) moved_to[axis] = Replicate();
  }
  const Placements gradient = is_recorded ? gradient_of(target, plan) : placements_of_gradient(moved_to);
  at::Tensor moved = local;
  if (moved_to != from.placements || is_recorded) {
    moved = redistribute_local(local, {call.mesh, from, moved_to, gradient});
  }
  for (std::size_t axis = 0; axis < target.size(); ++axis) {
    if (target[axis] == moved_to[axis]) continue;
    const at::Tensor term = term_of(moved.detach(), call.mesh->size(axis), std::get<Partial>(target[axis]).op);
    moved = with_gradient(moved, term, 1);
  }
  const double factor = is_recorded ? share(target, call, plan) : 1;
  return factor == 1 ? moved : with_gradient(moved, moved, factor);
}

bool are_equal(const OperatorCall& call) {
  const bool is_same_shape = call.shape(0) == call.shape(1);
  if (!is_same_shape) return false;
  const Placements placements = without_partials(call.placements(0));
  const OperatorPlan plan{{placements, placements}, {}};
  const at::NoGradGuard no_grad;
  Tensors locals;
  for (std::size_t i = 0; i < 2; ++i) {
    const at::Tensor& tensor = call.args[i].toTensor();
    const DTensor own = DTensor::of(tensor);
    locals.push_back(prepared(own.defined() ? own.local() : tensor, i, call, plan));
  }
  const at::Tensor verdict = at::scalar_tensor(at::equal(locals[0], locals[1]) ? 1 : 0, at::kInt);
  shard::all_reduce(verdict, ReduceOp::kMin, call.mesh->group());
  return verdict.item<int>() == 1;
}

}  // namespace shard::dtensor
