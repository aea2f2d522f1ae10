// Redistribution from one mesh to another, possibly with different ranks.
#include <ATen/ATen.h>

#include <algorithm>

#include "shardtorch/dtensor/redistribute.h"
#include "shardtorch/errors.h"
#include "shardtorch/sharded_tensor/sharding_spec.h"
#include "shardtorch/sharded_tensor/transfer.h"

namespace shard::dtensor {

namespace {

std::size_t world_rank(const DeviceMesh& mesh, std::size_t index) {
  return static_cast<std::size_t>(mesh.ranks()[index]);
}

/// Reads the replica on the mesh's lowest rank.
Transfer plan_to_mesh(const DTensor& tensor, const DeviceMesh& mesh, const std::vector<RankPiece>& after,
                      const at::Tensor& fresh) {
  const DeviceMesh& own_mesh = *tensor.device_mesh();
  const std::vector<RankPiece> before = parts_of(tensor.layout());
  const auto own = static_cast<std::size_t>(mesh.world()->rank());
  Transfer plan(mesh.world()->size(), tensor.dtype());
  for (std::size_t i = 0; i < before.size(); ++i) {
    if (before[i].replica) continue;
    const std::size_t sender = world_rank(own_mesh, i);
    for (std::size_t j = 0; j < after.size(); ++j) {
      const std::size_t receiver = world_rank(mesh, j);
      if (sender != own && receiver != own) continue;
      for (const BoxCopy& copy : common_boxes(before[i], after[j])) {
        if (sender == own) {
          plan.to[receiver].push_back(narrow_tensor_by_index(tensor.local(), copy.from, copy.sizes));
        }
        if (receiver == own) plan.from[sender].push_back(narrow_tensor_by_index(fresh, copy.to, copy.sizes));
      }
    }
  }
  return plan;
}

}  // namespace

at::Tensor part_on(const DeviceMesh& mesh, const Placements& placements, const DTensor& tensor) {
  const auto check = [&] {
    SHARD_CHECK_VALUE(mesh.world() == tensor.device_mesh()->world(), mesh.str(), " and ", tensor.device_mesh()->str(),
                      " are of different worlds");
    for (const Placements* const each : {&tensor.placements(), &placements}) {
      SHARD_CHECK(std::ranges::none_of(*each, is_partial), "Can not redistribute ", to_string(*each),
                  " to another mesh: redistribute it to Replicate first");
    }
  };
  at::Tensor fresh;
  transfer(*mesh.world(), [&] {
    check();
    const TensorLayout layout{tensor.layout().shape, mesh.shape(), placements};
    const std::vector<RankPiece> after = parts_of(layout);
    const Sizes sizes = mesh.is_member() ? after[static_cast<std::size_t>(*mesh.index())].local_sizes : Sizes{0};
    fresh = at::empty(sizes, at::TensorOptions(mesh.device()).dtype(tensor.dtype()));
    Transfer plan = plan_to_mesh(tensor, mesh, after, fresh);
    plan.arguments = {to_string(tensor.layout()), "new mesh=" + mesh.str(), to_string(layout)};
    return plan;
  });
  return fresh;
}

}  // namespace shard::dtensor
