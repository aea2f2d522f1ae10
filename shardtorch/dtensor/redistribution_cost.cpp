#include <ATen/Context.h>

#include <algorithm>
#include <limits>

#include "shardtorch/dtensor/redistribute.h"

namespace shard::dtensor {

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

/// The change of one axis's placement.
struct Step {
  std::size_t axis;
  Placement from, to;
};

bool is_shard(const Placement& placement) { return sharded_dim(placement) >= 0; }
bool is_strided(const Placement& placement) { return std::holds_alternative<StridedShard>(placement); }

/// Whether the axes before `axis` shard the dimension differently now and afterwards.
bool is_nested_differently(const Placements& now, const Placements& to, std::size_t axis) {
  const std::int64_t dim = sharded_dim(to[axis]);
  for (std::size_t i = 0; i < axis; ++i) {
    if ((sharded_dim(now[i]) == dim) != (sharded_dim(to[i]) == dim)) return true;
  }
  return false;
}

/// The steps of torch, axis by axis: inner axes first, where shards that nest differently become replicas; then outer
/// ones.
std::vector<Step> steps_between(Placements now, const Placements& to, const Sizes& mesh) {
  std::vector<Step> steps;
  const auto take = [&](std::size_t axis, const Placement& next) {
    if (now[axis] == next) return;
    steps.push_back({axis, now[axis], next});
    now[axis] = next;
  };
  std::int64_t shards = 1;
  for (std::size_t axis = 0; axis < now.size(); ++axis) shards *= is_shard(now[axis]) ? mesh[axis] : 1;
  if (now.size() > 1 && shards > 1) {
    for (std::size_t axis = now.size(); axis-- > 0;) {
      take(axis, is_shard(to[axis]) && is_nested_differently(now, to, axis) ? Placement(Replicate()) : to[axis]);
    }
  }
  for (std::size_t axis = 0; axis < now.size(); ++axis) take(axis, to[axis]);
  return steps;
}

/// The links between the ranks of each axis, as torch assumes them: within a host, or between hosts.
class Links {
 public:
  Links(const Sizes& mesh, std::int64_t local_devices) : mesh_(mesh), is_far_(mesh.size()) {
    std::int64_t devices = 1;
    for (std::size_t axis = mesh.size(); axis-- > 0;) {
      devices *= mesh[axis];
      is_far_[axis] = devices > local_devices;
    }
  }

  /// One collective of `gib` per rank, in `rounds` passes over the ring.
  double collective(std::size_t axis, double gib, double rounds) const {
    const auto ranks = static_cast<double>(mesh_[axis]);
    const double hops = rounds * (ranks - 1);
    const double gib_per_second = is_far_[axis] ? 87.7 * 0.22 : 87.7;
    return 6.6 + hops * (is_far_[axis] ? 2.7 : 0.6) + gib * hops / ranks / gib_per_second * 1e6;
  }

 private:
  const Sizes& mesh_;
  std::vector<bool> is_far_;
};

/// The cost of a step. `gib`, the size of the local tensor, becomes that after it.
double cost_of(const Step& step, const Links& links, std::int64_t ranks, double& gib) {
  const auto count = static_cast<double>(ranks);
  if (is_shard(step.from)) {
    if (is_partial(step.to)) return kNever;
    if (is_shard(step.to)) return links.collective(step.axis, gib, 1) + 1;
    gib *= count;
    return links.collective(step.axis, gib, 1);
  }
  if (is_partial(step.from)) {
    if (is_partial(step.to)) return kNever;
    const double cost = links.collective(step.axis, gib, is_shard(step.to) ? 1 : 2);
    if (is_shard(step.to)) gib /= count;
    return cost;
  }
  if (is_shard(step.to)) gib /= count;
  return 0;
}

std::int64_t devices_of_host(const DeviceMesh& mesh) {
  return mesh.device_type() == at::kCUDA ? std::max<std::int64_t>(1, at::detail::getCUDAHooks().getNumGPUs()) : 1;
}

}  // namespace

double redistribution_cost(const Operand& from, const Placements& to, std::int64_t local_devices) {
  const Placements& own = from.layout.placements;
  if (own == to || std::ranges::all_of(own, is_replicate)) return 0;
  if (std::ranges::any_of(own, is_strided) || std::ranges::any_of(to, is_strided)) return kNever;
  const Sizes& mesh = from.layout.mesh;
  double gib = static_cast<double>(c10::multiply_integers(from.layout.shape) * from.item_size) / (1 << 30);
  for (std::size_t axis = 0; axis < mesh.size(); ++axis) {
    if (is_shard(own[axis])) gib /= static_cast<double>(mesh[axis]);
  }
  const Links links(mesh, local_devices);
  double cost = 0;
  for (const Step& step : steps_between(own, to, mesh)) cost += cost_of(step, links, mesh[step.axis], gib);
  return cost;
}

std::size_t cheapest(const std::vector<std::vector<Placements>>& choices, const OperatorCall& call) {
  const std::int64_t devices = devices_of_host(*call.mesh);
  std::size_t best = 0;
  double least = kNever;
  for (std::size_t i = 0; i < choices.size(); ++i) {
    double cost = 0;
    bool is_own = true;
    for (std::size_t tensor = 0; tensor < call.tensors.size(); ++tensor) {
      cost += redistribution_cost(call.tensors[tensor], choices[i][tensor], devices);
      is_own = is_own && choices[i][tensor] == call.placements(tensor);
    }
    if (is_own) return i;
    if (cost < least) {
      best = i;
      least = cost;
    }
  }
  return best;
}

}  // namespace shard::dtensor
