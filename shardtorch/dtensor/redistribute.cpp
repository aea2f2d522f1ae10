#include "shardtorch/dtensor/redistribute.h"

#include <ATen/ATen.h>

#include <utility>

#include "shardtorch/dtensor/reduction.h"
#include "shardtorch/sharded_tensor/agree.h"
#include "shardtorch/sharded_tensor/functional.h"
#include "shardtorch/sharded_tensor/sharding_spec.h"
#include "shardtorch/sharded_tensor/transfer.h"

namespace shard::dtensor {

namespace {

/// The arguments that must be the same on all ranks.
std::vector<std::string> request(const TensorLayout& from, const Placements& to, at::ScalarType dtype) {
  return {to_string(from), "new placements=" + to_string(to), c10::str("dtype=", dtype)};
}

/// The parts of `local` that this rank sends, and the parts of `fresh` that it receives, by term and by rank of the
/// mesh's group.
Transfer plan_transfer(const RedistributionPlan& plan, const DeviceMesh& mesh, const at::Tensor& local,
                       const std::vector<at::Tensor>& fresh) {
  const ProcessGroup& group = *mesh.group();
  Transfer parts(group.size(), local.scalar_type());
  for (std::size_t rank = 0; rank < plan.to.size(); ++rank) {
    const auto member = static_cast<std::size_t>(group.group_rank_of(mesh.ranks()[rank]));
    for (const BoxCopy& copy : plan.to[rank]) {
      parts.to[member].push_back(narrow_tensor_by_index(local, copy.from, copy.sizes));
    }
    for (const BoxCopy& copy : plan.from[rank]) {
      parts.from[member].push_back(narrow_tensor_by_index(fresh[plan.term_of[rank]], copy.to, copy.sizes));
    }
  }
  return parts;
}

/// Performs one exchange. Reduces axes that are Partial in `from` and not in `to`.
at::Tensor exchange(const at::Tensor& local, const DeviceMesh& mesh, const TensorLayout& from, const Placements& to) {
  const RedistributionPlan plan = plan_redistribution(from, to, *mesh.index());
  std::vector<at::Tensor> fresh;
  for (std::size_t term = 0; term < plan.terms; ++term) fresh.push_back(at::empty(plan.new_sizes, local.options()));
  if (plan.is_local) {
    for (const BoxCopy& copy : plan.from[static_cast<std::size_t>(*mesh.index())]) {
      narrow_tensor_by_index(fresh[0], copy.to, copy.sizes).copy_(narrow_tensor_by_index(local, copy.from, copy.sizes));
    }
    return fresh[0];
  }
  transfer(*mesh.group(), [&] {
    Transfer parts = plan_transfer(plan, mesh, local, fresh);
    parts.arguments = request(from, to, local.scalar_type());
    return parts;
  });
  return reduce_terms(std::move(fresh), from.placements, to, mesh);
}

/// Performs the collectives, without autograd.
at::Tensor move(const at::Tensor& local, const DeviceMesh& mesh, TensorLayout from, const Placements& to) {
  at::Tensor moved = local;
  const auto reduces = [&](std::size_t axis, bool is_replicated) {
    return is_partial(from.placements[axis]) && !is_partial(to[axis]) &&
           std::holds_alternative<Replicate>(to[axis]) == is_replicated;
  };
  bool is_agreed = false;
  Placements scattered = from.placements;
  for (std::size_t axis = 0; axis < mesh.ndim(); ++axis) {
    if (reduces(axis, true)) {
      if (!std::exchange(is_agreed, true)) {
        agree_on(mesh.group()->group(), [&] { return request(from, to, local.scalar_type()); });
      }
      moved = all_reduce(moved, mesh, axis, std::get<Partial>(from.placements[axis]).op);
      from.placements[axis] = scattered[axis] = Replicate();
    }
    if (reduces(axis, false)) scattered[axis] = to[axis];
  }
  if (scattered != from.placements) {
    moved = exchange(moved, mesh, from, scattered);
    from.placements = std::move(scattered);
  }
  return from.placements == to ? moved : exchange(moved, mesh, from, to);
}

}  // namespace

// Source of the gradient: Redistribute and _ToTorchTensor of torch 2.11. If the gradient itself has a gradient
// (create_graph), it is redistributed by a differentiable step.
at::Tensor redistribute_local(const at::Tensor& local, const Redistribution& how) {
  using functional::Tensors;
  const Placements target = placements_of_gradient(how.from.placements);
  const at::ScalarType dtype = local.scalar_type(), there = how.forward_dtype.value_or(dtype);
  if (how.from.placements == how.to && how.gradient == target && there == dtype) return local;
  const auto forward = [&] {
    const at::Tensor moved = move(local.to(there), *how.mesh, how.from, how.to);
    return Tensors{moved.is_same(local) ? local.detach() : moved};
  };
  const Redistribution back{how.mesh, {how.from.shape, how.from.mesh, how.gradient}, target, target};
  const auto backward = [back, travel_as = how.backward_dtype.value_or(dtype)](const Tensors& gradients) {
    const at::AutoGradMode mode(gradients[0].requires_grad());
    return Tensors{redistribute_local(gradients[0].to(travel_as), back)};
  };
  return functional::differentiable({local}, forward, backward)[0];
}

}  // namespace shard::dtensor
