// Views: the same elements with other dimensions. Source: torch/distributed/tensor/_ops/_view_ops.py (torch 2.11).
#include <ATen/ATen.h>
#include <ATen/InferSize.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "shardtorch/dtensor/operators.h"
#include "shardtorch/errors.h"

namespace shard::dtensor {

namespace {

/// The origin of a dimension of a view: adjacent dimensions of the tensor as one, or a part of them if that one is
/// split. No dimensions: a new one.
struct Origin {
  Sizes dims{};
  std::int64_t first_part = 1;  ///< The size of the slowest part, if it is split.
  bool is_split = false;
  bool is_first = true;      ///< It is that slowest part.
  bool is_repeated = false;  ///< Each element of the dimension occurs several times.
};
using Origins = std::vector<Origin>;

Origins same_dims(std::int64_t dims) {
  Origins origins;
  for (std::int64_t d = 0; d < dims; ++d) origins.push_back({{d}});
  return origins;
}

/// Origins of the dimensions of `to`, whose elements are those of `from` in the same order.
Origins origins_of_view(const Sizes& from, const Sizes& to) {
  Origins origins;
  std::size_t i = 0, j = 0;
  while (i < from.size() || j < to.size()) {
    if (i < from.size() && from[i] == 1 && (j >= to.size() || to[j] != 1)) {
      ++i;
      continue;
    }
    if (j < to.size() && to[j] == 1 && (i >= from.size() || from[i] != 1)) {
      origins.emplace_back();
      ++j;
      continue;
    }
    Origin group;
    const std::size_t begin = j;
    std::int64_t have = from[i], want = to[j++];
    group.dims.push_back(static_cast<std::int64_t>(i++));
    while (have != want) {
      if (have < want) {
        have *= from[i];
        group.dims.push_back(static_cast<std::int64_t>(i++));
      } else {
        want *= to[j++];
      }
    }
    std::erase_if(group.dims,
                  [&](std::int64_t d) { return group.dims.size() > 1 && from[static_cast<std::size_t>(d)] == 1; });
    const auto parts =
        std::count_if(to.begin() + static_cast<std::ptrdiff_t>(begin), to.begin() + static_cast<std::ptrdiff_t>(j),
                      [](std::int64_t n) { return n != 1; });
    bool is_first = true;
    for (std::size_t part = begin; part < j; ++part) {
      if (to[part] == 1 && j - begin > 1) {
        origins.emplace_back();
        continue;
      }
      origins.push_back({group.dims, to[part], parts > 1, std::exchange(is_first, false)});
    }
  }
  return origins;
}

/// The placements of a view: of its tensor before, and of the result.
class ViewPlacements {
 public:
  ViewPlacements(const OperatorCall& call, bool is_strict)
      : call_(call),
        is_strict_(is_strict),
        mesh_(call.mesh->shape()),
        before_(call.placements(0)),
        target_(static_cast<std::size_t>(call.dims(0)), -1) {}

  OperatorPlan plan(const Origins& origins, const Sizes& shape) {
    for (std::size_t d = 0; d < origins.size(); ++d) add(origins[d], static_cast<std::int64_t>(d));
    Placements after;
    for (Placement& each : before_) {
      const std::int64_t dim = sharded_dim(each);
      const std::int64_t moved = dim < 0 ? -1 : target_[static_cast<std::size_t>(dim)];
      if (dim >= 0 && moved < 0) each = Replicate();
      after.push_back(moved < 0 ? each : shard_of(each, moved));
    }
    return {{before_}, {{shape, std::move(after)}}};
  }

 private:
  /// The number of shards of a dimension.
  std::int64_t shards_of(std::int64_t dim) const {
    return shards_by_dim(before_, mesh_, call_.dims(0))[static_cast<std::size_t>(dim)];
  }

  void refuse_if_strict(std::int64_t dim, const std::string& what) const {
    SHARD_CHECK(!is_strict_ || shards_of(dim) == 1, "Attempted to ", what, " (dimension ", dim, " of ",
                to_string(call_.tensors[0].layout),
                "). It cannot be performed without redistribution, which is disallowed by the current operator.");
  }

  /// Replicates the dimension on axes whose ranks do not divide `part`, except on the first axis that shards it.
  void unshard_axes_after_first(std::int64_t dim, std::int64_t part) {
    bool is_first = true;
    for (std::size_t axis = 0; axis < mesh_.size(); ++axis) {
      if (sharded_dim(before_[axis]) != dim) continue;
      if (!std::exchange(is_first, false) && part % mesh_[axis] != 0) before_[axis] = Replicate();
    }
  }

  /// Notes where the shards of the origin's dimensions may be in the result.
  void add(const Origin& origin, std::int64_t dim) {
    if (origin.dims.empty() || origin.is_repeated) return;
    const std::int64_t slowest = origin.dims[0];
    for (std::size_t i = 1; i < origin.dims.size(); ++i) {
      refuse_if_strict(origin.dims[i], "flatten multiple dimensions, with one being sharded");
    }
    const std::int64_t shards = shards_of(slowest);
    if (origin.dims.size() > 1 && call_.shape(0)[static_cast<std::size_t>(slowest)] % shards != 0) {
      return refuse_if_strict(slowest, "flatten an unevenly sharded dimension");
    }
    if (origin.is_split && !origin.is_first) return;
    if (origin.is_split) unshard_axes_after_first(slowest, origin.first_part);
    if (origin.is_split && origin.first_part % shards_of(slowest) != 0) {
      return refuse_if_strict(slowest, "split the sharded dimension into multiple subdimensions");
    }
    target_[static_cast<std::size_t>(slowest)] = dim;
  }

  const OperatorCall& call_;
  const bool is_strict_;
  const Sizes mesh_;
  Placements before_;  ///< Placements of the tensor.
  Sizes target_;       ///< By dimension of the tensor: that of the result which keeps its shards; -1 if none does.
};

Sizes sizes_of(const Origins& origins, const Sizes& shape) {
  Sizes sizes;
  for (const Origin& each : origins)
    sizes.push_back(each.dims.empty() ? 1 : shape[static_cast<std::size_t>(each.dims[0])]);
  return sizes;
}

/// A view whose dimensions are whole ones of the tensor, or new.
OperatorPlan plan_dims(const OperatorCall& call, const Origins& origins) {
  return ViewPlacements(call, false).plan(origins, sizes_of(origins, call.shape(0)));
}

OperatorPlan plan_view(const OperatorCall& call) {
  const Sizes& from = call.shape(0);
  const std::int64_t elements = c10::multiply_integers(from);
  const Sizes shape = at::infer_size(call.args[1].toIntVector(), elements);
  SHARD_CHECK(elements > 0 || shape == from, call.full_name(), ": a DTensor without elements keeps its shape ",
              at::IntArrayRef(from), "; found ", at::IntArrayRef(shape));
  OperatorPlan plan =
      ViewPlacements(call, true).plan(elements > 0 ? origins_of_view(from, shape) : same_dims(call.dims(0)), shape);
  const Sizes own = call.own_sizes(shape, plan.results[0].placements);
  const bool may_copy = call.name() == "reshape" || call.name() == "_reshape_alias";
  plan.compute = [own, may_copy](const Tensors& locals) {
    return Tensors{may_copy ? locals[0].reshape(own) : locals[0].view(own)};
  };
  return plan;
}

OperatorPlan plan_permute(const OperatorCall& call, const Sizes& order) {
  Origins origins;
  for (const std::int64_t dim : order) origins.push_back({{dim}});
  return plan_dims(call, origins);
}

OperatorPlan plan_transpose(const OperatorCall& call) {
  Sizes order(call.shape(0).size());
  std::iota(order.begin(), order.end(), 0);
  if (call.name() == "t") {
    SHARD_CHECK(order.size() <= 2, "t() expects a tensor with <= 2 dimensions, but self is ", order.size(), "D");
    std::ranges::reverse(order);
  } else if (!order.empty()) {
    std::swap(order[static_cast<std::size_t>(call.dim_arg("dim0"))],
              order[static_cast<std::size_t>(call.dim_arg("dim1"))]);
  }
  return plan_permute(call, order);
}

OperatorPlan plan_permutation(const OperatorCall& call) {
  Sizes order = call.arg("dims").toIntVector();
  SHARD_CHECK(std::ssize(order) == call.dims(0), call.full_name(), ": expected ", call.dims(0), " dimensions, found ",
              order.size());
  for (std::int64_t& dim : order) dim = wrapped_dim(dim, call.dims(0));
  return plan_permute(call, order);
}

OperatorPlan plan_unsqueeze(const OperatorCall& call) {
  Origins origins = same_dims(call.dims(0));
  origins.insert(origins.begin() + wrapped_dim(call.arg("dim").toInt(), call.dims(0) + 1), Origin{});
  return plan_dims(call, origins);
}

/// Removes dimensions of one element of the whole tensor. Dimensions of one element on this rank only stay.
OperatorPlan plan_squeeze(const OperatorCall& call) {
  const c10::IValue dim = call.arg("dim");
  Sizes chosen(call.shape(0).size());
  std::iota(chosen.begin(), chosen.end(), 0);
  if (dim.isInt()) chosen = {dim.toInt()};
  if (dim.isIntList()) chosen = dim.toIntVector();
  for (std::int64_t& each : chosen) each = wrapped_dim(each, call.dims(0));
  Origins origins;
  Sizes removed;
  for (std::int64_t d = 0; d < call.dims(0); ++d) {
    const bool is_removed =
        call.shape(0)[static_cast<std::size_t>(d)] == 1 && std::ranges::find(chosen, d) != chosen.end();
    is_removed ? removed.push_back(d) : origins.push_back({{d}});
  }
  OperatorPlan plan = plan_dims(call, origins);
  plan.compute = [removed](const Tensors& locals) { return Tensors{at::squeeze(locals[0], removed)}; };
  return plan;
}

OperatorPlan plan_expand(const OperatorCall& call) {
  Sizes shape = call.arg("size").toIntVector();
  const std::int64_t added = std::ssize(shape) - call.dims(0);
  SHARD_CHECK(added >= 0, call.full_name(), ": the number of sizes ", at::IntArrayRef(shape),
              " must be at least the number of dimensions of ", at::IntArrayRef(call.shape(0)));
  Origins origins(static_cast<std::size_t>(added));
  for (std::int64_t d = 0; d < call.dims(0); ++d) {
    const std::int64_t size = call.shape(0)[static_cast<std::size_t>(d)];
    std::int64_t& target = shape[static_cast<std::size_t>(d + added)];
    if (target == -1) target = size;
    SHARD_CHECK(size == 1 || target == size, call.full_name(), ": the expanded size ", target,
                " must match the existing size ", size, " at dimension ", d);
    origins.push_back({.dims = {d}, .is_repeated = target != size});
  }
  OperatorPlan plan = ViewPlacements(call, false).plan(origins, shape);
  plan.local_args = {{call.position_of("size"), c10::IValue(call.own_sizes(shape, plan.results[0].placements))}};
  return plan;
}

}  // namespace

OperatorRule view_rule(const OperatorCall& call) {
  const std::string_view name = call.name(), overload = call.schema.overload_name();
  if (name == "view" && overload.empty()) return plan_view;
  if (name == "_unsafe_view" || name == "reshape" || name == "_reshape_alias") return plan_view;
  if (name == "t" || (name == "transpose" && overload == "int")) return plan_transpose;
  if (name == "permute") return plan_permutation;
  if (name == "unsqueeze") return plan_unsqueeze;
  if (name == "squeeze" && overload != "dimname") return plan_squeeze;
  return name == "expand" ? plan_expand : nullptr;
}

}  // namespace shard::dtensor
