// Operators that compute each element from those at the same place, with broadcasting. Source:
// torch/distributed/tensor/_ops/_pointwise_ops.py (torch 2.11).
#include <ATen/ExpandUtils.h>

#include <algorithm>
#include <array>

#include "shardtorch/dtensor/operators.h"

namespace shard::dtensor {

namespace {

/// Names without the underscore of an in-place operator, sorted.
constexpr auto kElementwise = std::to_array<std::string_view>(
    {"abs",      "acos",     "acosh",       "add",        "addcdiv",     "addcmul",     "angle",      "asin",
     "asinh",    "atan",     "atan2",       "atanh",      "bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor",
     "ceil",     "clamp",    "clamp_max",   "clamp_min",  "copy",        "copysign",    "cos",        "cosh",
     "deg2rad",  "digamma",  "div",         "elu",        "eq",          "erf",         "erfc",       "erfinv",
     "exp",      "exp2",     "expm1",       "floor",      "fmax",        "fmin",        "fmod",       "frac",
     "ge",       "gelu",     "gt",          "hardtanh",   "heaviside",   "hypot",       "isinf",      "isnan",
     "isneginf", "isposinf", "le",          "leaky_relu", "lerp",        "lgamma",      "log",        "log10",
     "log1p",    "log2",     "logaddexp",   "logaddexp2", "logical_and", "logical_not", "logical_or", "logical_xor",
     "logit",    "lt",       "masked_fill", "maximum",    "minimum",     "mul",         "nan_to_num", "ne",
     "neg",      "pow",      "rad2deg",     "reciprocal", "relu",        "remainder",   "round",      "rsqrt",
     "rsub",     "sgn",      "sigmoid",     "sign",       "signbit",     "silu",        "sin",        "sinc",
     "sinh",     "softplus", "sqrt",        "sub",        "tan",         "tanh",        "threshold",  "trunc",
     "where",    "xlogy"});

/// How an operator treats terms of a sum: not at all, all arguments as terms, or one as terms and others whole.
enum class Linearity { kNone, kSum, kProduct };

std::string_view base_name(const OperatorCall& call) {
  std::string_view name = call.name();
  if (name.ends_with('_')) name.remove_suffix(1);
  return name;
}

Linearity linearity_of(const OperatorCall& call) {
  const std::string_view name = base_name(call), overload = call.schema.overload_name();
  if (name == "neg") return Linearity::kSum;
  if (name == "mul" || (name == "div" && (overload == "Tensor" || overload == "Scalar"))) return Linearity::kProduct;
  return (name == "add" || name == "sub") && overload == "Tensor" ? Linearity::kSum : Linearity::kNone;
}

/// The tensor whose placements the others follow: that with the most shards, then with the most dimensions.
std::size_t leader(const OperatorCall& call) {
  if (call.is_in_place()) return 0;
  const auto rank_of = [&](std::size_t i) {
    std::int64_t shards = 1;
    for (std::size_t axis = 0; axis < call.mesh->ndim(); ++axis) {
      if (sharded_dim(call.placements(i)[axis]) >= 0) shards *= call.mesh->size(axis);
    }
    return std::pair(shards, call.dims(i));
  };
  std::size_t best = 0;
  for (std::size_t i = 1; i < call.tensors.size(); ++i) {
    if (rank_of(i) > rank_of(best)) best = i;
  }
  return best;
}

/// Whether the result may stay in these terms.
bool keeps(const Partial& partial, const OperatorCall& call, std::size_t followed) {
  const std::string_view name = base_name(call);
  if (name == "copy") return true;
  if (name == "maximum") return partial.op == ReduceOp::kMax;
  if (name == "minimum") return partial.op == ReduceOp::kMin;
  const bool is_linear = linearity_of(call) != Linearity::kNone && (name != "div" || followed == 0);
  return is_linear && (partial.op == ReduceOp::kSum || partial.op == ReduceOp::kMean);
}

/// The placements of argument `index` for a result of `shape` in `placements`.
Placements broadcast_from(const Placements& placements, const Sizes& shape, const OperatorCall& call, std::size_t index,
                          bool takes_terms) {
  const auto padding = std::ssize(shape) - call.dims(index);
  Placements own = takes_terms ? placements : without_partials(placements);
  for (Placement& each : own) {
    const std::int64_t dim = sharded_dim(each);
    if (dim < 0) continue;
    const bool is_here = dim >= padding && call.shape(index)[static_cast<std::size_t>(dim - padding)] ==
                                               shape[static_cast<std::size_t>(dim)];
    each = is_here ? shard_of(each, dim - padding) : Replicate();
  }
  return own;
}

OperatorPlan plan_elementwise(const OperatorCall& call) {
  Sizes shape;
  for (const Operand& each : call.tensors) shape = at::infer_size(shape, each.layout.shape);
  const std::size_t followed = leader(call);
  const auto padding = std::ssize(shape) - call.dims(followed);
  Placements placements = call.placements(followed);
  for (Placement& each : placements) {
    if (const auto* const partial = std::get_if<Partial>(&each)) {
      if (!keeps(*partial, call, followed)) each = Replicate();
    } else if (const std::int64_t dim = sharded_dim(each); dim >= 0) {
      each = shard_of(each, dim + padding);
    }
  }
  OperatorPlan plan{{}, {{shape, placements}}};
  for (std::size_t i = 0; i < call.tensors.size(); ++i) {
    const bool takes_terms = linearity_of(call) != Linearity::kProduct || i == followed;
    plan.inputs.push_back(broadcast_from(placements, shape, call, i, takes_terms));
  }
  return plan;
}

}  // namespace

OperatorRule elementwise_rule(const OperatorCall& call) {
  static_assert(std::ranges::is_sorted(kElementwise));
  const std::string_view name = base_name(call);
  if (name == "where" && call.schema.overload_name() != "self") return nullptr;
  return std::ranges::binary_search(kElementwise, name) ? plan_elementwise : nullptr;
}

}  // namespace shard::dtensor
