// Reductions over dimensions. Source: torch/distributed/tensor/_ops/_math_ops.py (torch 2.11).
#include <algorithm>
#include <array>
#include <numeric>
#include <optional>

#include "libshard/core/contains.h"
#include "shardtorch/dtensor/operators.h"
#include "shardtorch/errors.h"

namespace shard::dtensor {

namespace {

struct Reduction {
  std::string_view name;
  /// Combines the results for parts of a tensor to that for the whole; nothing if no operation does.
  std::optional<ReduceOp> op;
};

const Reduction* reduction_of(std::string_view name) {
  static constexpr auto kReductions = std::to_array<Reduction>({{"amax", ReduceOp::kMax},
                                                                {"amin", ReduceOp::kMin},
                                                                {"cumsum", std::nullopt},
                                                                {"logsumexp", std::nullopt},
                                                                {"max", ReduceOp::kMax},
                                                                {"mean", ReduceOp::kMean},
                                                                {"min", ReduceOp::kMin},
                                                                {"prod", ReduceOp::kProduct},
                                                                {"std", std::nullopt},
                                                                {"sum", ReduceOp::kSum},
                                                                {"var", std::nullopt}});
  const auto* const found = std::ranges::find(kReductions, name, &Reduction::name);
  return found == kReductions.end() ? nullptr : found;
}

/// The dimensions that the call reduces.
Sizes reduced_dims(const OperatorCall& call) {
  const c10::IValue dim = call.arg("dim");
  Sizes dims;
  if (dim.isInt()) dims = {dim.toInt()};
  if (dim.isIntList()) dims = dim.toIntVector();
  for (std::int64_t& each : dims) each = wrapped_dim(each, call.dims(0));
  if (dims.empty()) {
    dims.resize(call.shape(0).size());
    std::iota(dims.begin(), dims.end(), 0);
  }
  return dims;
}

/// Whether each rank has elements of these dimensions. Maxima and minima of none do not exist.
bool have_all_elements(const OperatorCall& call, const Sizes& dims) {
  return std::ranges::all_of(parts_of(call.tensors[0].layout), [&](const RankPiece& part) {
    return std::ranges::none_of(dims, [&](std::int64_t dim) {
      const auto d = static_cast<std::size_t>(dim);
      return d < part.local_sizes.size() && part.local_sizes[d] == 0;
    });
  });
}

/// Whether the result for a tensor in its placements follows from those of the parts.
bool is_combinable(const OperatorCall& call, const Sizes& dims, std::optional<ReduceOp> op) {
  if (!op) return false;
  const Placements& placements = call.placements(0);
  const bool is_extremum = *op == ReduceOp::kMax || *op == ReduceOp::kMin;
  if (is_extremum && !have_all_elements(call, dims)) return false;
  if (*op == ReduceOp::kMean) {  // An average of averages is right for parts of the same size.
    const Sizes shards = shards_by_dim(placements, call.mesh->shape(), call.dims(0));
    for (const std::int64_t dim : dims) {
      const auto d = static_cast<std::size_t>(dim);
      if (d < shards.size() && call.shape(0)[d] % shards[d] != 0) return false;
    }
  }
  return std::ranges::all_of(placements, [&](const Placement& each) {
    const auto* const partial = std::get_if<Partial>(&each);
    return partial == nullptr || partial->op == *op;
  });
}

OperatorPlan plan_reduction(const OperatorCall& call) {
  const std::optional<ReduceOp> op = reduction_of(call.name())->op;
  const bool is_cumulative = call.name() == "cumsum";
  const Sizes dims = reduced_dims(call);
  const c10::IValue keepdim = call.arg("keepdim");
  const bool keeps_dims = is_cumulative || (keepdim.isBool() && keepdim.toBool());
  const Placements input = is_combinable(call, dims, op) ? call.placements(0) : replicated_on(call.placements(0), dims);
  Sizes shape, new_dim;
  for (std::int64_t d = 0; d < call.dims(0); ++d) {
    const bool is_reduced = contains(dims, d);
    new_dim.push_back(std::ssize(shape));
    if (!is_reduced || keeps_dims)
      shape.push_back(is_reduced && !is_cumulative ? 1 : call.shape(0)[static_cast<std::size_t>(d)]);
  }
  Placements result = input;
  for (Placement& each : result) {
    const std::int64_t dim = sharded_dim(each);
    if (dim < 0) continue;
    each = contains(dims, dim) ? Placement(Partial{*op}) : shard_of(each, new_dim[static_cast<std::size_t>(dim)]);
  }
  return {{input}, {{shape, result}}};
}

}  // namespace

OperatorRule reduction_rule(const OperatorCall& call) {
  const bool has_one_result = call.schema.returns().size() == 1;  // Not max with the indices.
  const bool is_of_one = call.schema.argumentIndexWithName("other") == std::nullopt;
  return reduction_of(call.name()) != nullptr && has_one_result && is_of_one ? plan_reduction : nullptr;
}

}  // namespace shard::dtensor
