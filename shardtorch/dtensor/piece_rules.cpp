// Pieces of a tensor, and tensors from pieces. Source: torch/distributed/tensor/_ops/_tensor_ops.py (torch 2.11).
#include <algorithm>

#include "shardtorch/dtensor/operators.h"
#include "shardtorch/dtensor/redistribute.h"
#include "shardtorch/errors.h"

namespace shard::dtensor {

namespace {

/// Replicate instead of shards of `dim`. Terms stay.
Placements unsharded(const Placements& placements, std::int64_t dim) {
  return replicated_where(placements, [dim](const Placement& each) { return sharded_dim(each) == dim; });
}

/// Adds `shift` to the dimension of shards of `dim` and later ones.
Placements shifted(Placements placements, std::int64_t dim, std::int64_t shift) {
  for (Placement& each : placements) {
    if (const std::int64_t own = sharded_dim(each); own >= dim) each = shard_of(each, own + shift);
  }
  return placements;
}

Sizes without(Sizes shape, std::int64_t dim) {
  shape.erase(shape.begin() + dim);
  return shape;
}

OperatorPlan plan_select(const OperatorCall& call) {
  const std::int64_t dim = call.dim_arg("dim");
  const Placements whole = unsharded(call.placements(0), dim);
  return {{whole}, {{without(call.shape(0), dim), shifted(whole, dim, -1)}}};
}

OperatorPlan plan_slice(const OperatorCall& call) {
  const std::int64_t dim = call.dim_arg("dim");
  const std::int64_t size = call.shape(0)[static_cast<std::size_t>(dim)], step = call.arg("step").toInt();
  const auto bound = [&](std::string_view name, std::int64_t otherwise) {
    const c10::IValue given = call.arg(name);
    const std::int64_t index = given.isNone() ? otherwise : given.toInt();
    return std::clamp<std::int64_t>(index < 0 ? index + size : index, 0, size);
  };
  const std::int64_t start = bound("start", 0), end = std::max(bound("end", size), start);
  if (start == 0 && end == size && step == 1) {
    return {{call.placements(0)}, {{call.shape(0), call.placements(0)}}};
  }
  Sizes shape = call.shape(0);
  shape[static_cast<std::size_t>(dim)] = (end - start + step - 1) / step;
  const Placements whole = unsharded(call.placements(0), dim);
  return {{whole}, {{shape, whole}}};
}

/// split with the size of a piece, or with all sizes.
OperatorPlan plan_split(const OperatorCall& call) {
  const std::int64_t dim = call.dim_arg("dim");
  const std::int64_t size = call.shape(0)[static_cast<std::size_t>(dim)];
  Sizes pieces;
  if (call.args[1].isInt()) {
    const std::int64_t piece = call.args[1].toInt();
    SHARD_CHECK(piece > 0 || size == 0, call.full_name(), ": expected a size of pieces above 0, but found ", piece);
    for (std::int64_t rest = size; rest > 0; rest -= piece) pieces.push_back(std::min(piece, rest));
    if (size == 0) pieces.push_back(0);
  } else {
    pieces = call.args[1].toIntVector();
  }
  const Placements whole = unsharded(call.placements(0), dim);
  OperatorPlan plan{{whole}, {}};
  for (const std::int64_t piece : pieces) {
    plan.results.push_back({call.shape(0), whole});
    plan.results.back().shape[static_cast<std::size_t>(dim)] = piece;
  }
  return plan;
}

OperatorPlan plan_unbind(const OperatorCall& call) {
  const std::int64_t dim = call.dim_arg("dim");
  SHARD_CHECK(unsharded(call.placements(0), dim) == call.placements(0),
              "Attempted to unbind along the sharded dimension ", dim,
              ". It cannot be performed without redistribution, which is disallowed by the current operator.");
  const OperatorResult piece{without(call.shape(0), dim), shifted(call.placements(0), dim, -1)};
  OperatorPlan plan{{call.placements(0)}, {}};
  plan.results.assign(static_cast<std::size_t>(call.shape(0)[static_cast<std::size_t>(dim)]), piece);
  return plan;
}

/// Terms give way to shards, and replicas to both. Different shards become replicas.
Placement merged(const Placement& one, const Placement& other) {
  if (one == other || std::holds_alternative<Replicate>(other)) return one;
  if (std::holds_alternative<Replicate>(one)) return other;
  const bool is_shard = sharded_dim(one) >= 0, is_other_shard = sharded_dim(other) >= 0;
  if (is_shard == is_other_shard) return Replicate();
  return is_shard ? one : other;
}

/// Throws on all ranks if the tensors differ in a dimension other than `dim`, because their parts may fit on some ranks
/// only.
void check_same_sizes(const OperatorCall& call, std::int64_t dim) {
  for (std::size_t i = 1; i < call.tensors.size(); ++i) {
    bool fits = call.dims(i) == call.dims(0);
    for (std::int64_t d = 0; fits && d < call.dims(0); ++d) {
      fits = d == dim || call.shape(i)[static_cast<std::size_t>(d)] == call.shape(0)[static_cast<std::size_t>(d)];
    }
    SHARD_CHECK(fits, call.full_name(), ": the tensors have different sizes: ", at::IntArrayRef(call.shape(0)), " and ",
                at::IntArrayRef(call.shape(i)));
  }
}

OperatorPlan plan_stack(const OperatorCall& call) {
  const std::int64_t dim = wrapped_dim(call.arg("dim").toInt(), call.dims(0) + 1);
  check_same_sizes(call, -1);
  Placements common = call.placements(0);
  for (std::size_t i = 1; i < call.tensors.size(); ++i) {
    for (std::size_t axis = 0; axis < common.size(); ++axis)
      common[axis] = merged(common[axis], call.placements(i)[axis]);
  }
  Sizes shape = call.shape(0);
  shape.insert(shape.begin() + dim, std::ssize(call.tensors));
  return {std::vector<Placements>(call.tensors.size(), common), {{shape, shifted(common, dim, 1)}}};
}

/// All tensors follow that one of them whose placements cost the least.
OperatorPlan plan_cat(const OperatorCall& call) {
  const std::int64_t dim = call.dim_arg("dim");
  check_same_sizes(call, dim);
  std::vector<std::vector<Placements>> choices;
  for (const Operand& each : call.tensors) {
    choices.emplace_back(call.tensors.size(), unsharded(each.layout.placements, dim));
  }
  const Placements& chosen = choices[cheapest(choices, call)][0];
  Sizes shape = call.shape(0);
  for (std::size_t i = 1; i < call.tensors.size(); ++i) {
    shape[static_cast<std::size_t>(dim)] += call.shape(i)[static_cast<std::size_t>(dim)];
  }
  return {std::vector<Placements>(call.tensors.size(), chosen), {{shape, chosen}}};
}

}  // namespace

OperatorRule piece_rule(const OperatorCall& call) {
  const std::string_view name = call.name();
  if (name == "select" && call.schema.overload_name() == "int") return plan_select;
  if (name == "slice") return plan_slice;
  if (name == "split_with_sizes" || (name == "split" && call.schema.overload_name() == "Tensor")) return plan_split;
  if (name == "unbind" && call.schema.overload_name() == "int") return plan_unbind;
  if (name == "cat") return plan_cat;
  return name == "stack" ? plan_stack : nullptr;
}

}  // namespace shard::dtensor
