// Copies of a tensor, tensors like another one, and functions that fill a tensor. Sources: _tensor_ops.py and
// _random_ops.py in torch/distributed/tensor/_ops (torch 2.11).
#include <algorithm>

#include "shardtorch/dtensor/operators.h"
#include "shardtorch/errors.h"

namespace shard::dtensor {

namespace {

using Names = std::initializer_list<std::string_view>;

bool is_one_of(std::string_view name, Names names) { return std::ranges::find(names, name) != names.end(); }

void check_device(const OperatorCall& call) {
  const c10::IValue device = call.arg("device");
  SHARD_CHECK_TYPE(device.isNone() || device.toDevice().type() == call.mesh->device_type(), call.full_name(),
                   ": a DTensor is on the devices of its mesh, ", call.mesh->str(), ", not on ", device);
}

OperatorPlan plan_same(const OperatorCall& call) {
  check_device(call);
  return {{call.placements(0)}, {{call.shape(0), call.placements(0)}}};
}

/// Whether terms that all are the same value combine to that value.
bool keeps_one_value(const Placement& placement) {
  const auto* const partial = std::get_if<Partial>(&placement);
  return partial == nullptr || (partial->op != ReduceOp::kSum && partial->op != ReduceOp::kProduct);
}

/// Functions that fill a tensor. Random numbers of terms would differ, so only fill_ takes terms.
OperatorPlan plan_fill(const OperatorCall& call) {
  const auto is_fillable = [&](const Placement& each) {
    return !is_partial(each) || (call.name() == "fill_" && keeps_one_value(each));
  };
  SHARD_CHECK(std::ranges::all_of(call.placements(0), is_fillable), call.full_name(), " with ",
              to_string(call.placements(0)), " is not supported yet!");
  const OperatorResult result{call.shape(0), call.placements(0)};
  return {{call.placements(0)}, std::vector<OperatorResult>(call.schema.returns().size(), result)};
}

OperatorPlan plan_like(const OperatorCall& call) {
  check_device(call);
  return {{call.placements(0)}, {{call.shape(0), without_partials(call.placements(0))}}};
}

/// new_zeros and related functions: the shards of the tensor if the sizes are the same, otherwise replicas.
OperatorPlan plan_new(const OperatorCall& call) {
  check_device(call);
  const Sizes shape = call.arg("size").toIntVector();
  const bool is_sharded =
      std::ranges::any_of(call.placements(0), [](const Placement& each) { return sharded_dim(each) >= 0; });
  const Placements placements = is_sharded && shape == call.shape(0) ? call.placements(0) : call.replicas();
  return {{call.placements(0)},
          {{shape, placements}},
          {{call.position_of("size"), c10::IValue(call.own_sizes(shape, placements))}}};
}

}  // namespace

OperatorRule creation_rule(const OperatorCall& call) {
  const std::string_view name = call.name();
  if (is_one_of(name, {"clone", "contiguous", "detach", "alias", "_to_copy", "zero_", "empty_like"})) return plan_same;
  if (name == "fill_" && call.schema.overload_name() == "Scalar") return plan_fill;
  if (is_one_of(name, {"normal_", "uniform_", "bernoulli", "native_dropout"})) return plan_fill;
  if (name == "bernoulli_" && call.schema.overload_name() == "float") return plan_fill;
  if (is_one_of(name, {"ones_like", "zeros_like", "full_like", "rand_like", "randn_like", "randint_like"})) {
    return plan_like;
  }
  return is_one_of(name, {"new_empty", "new_full", "new_ones", "new_zeros"}) ? plan_new : nullptr;
}

}  // namespace shard::dtensor
