/// \file
/// The elements of a redistribution: from one layout to another, with autograd. Inside shardtorch/dtensor only.
#pragma once

#include <ATen/core/Tensor.h>

#include "shardtorch/dtensor/device_mesh.h"
#include "shardtorch/dtensor/redistribution_plan.h"

namespace shard::dtensor {

/// What moves where: `local`, of layout `from`, becomes a local tensor of `to`. The gradient of the result comes in
/// `gradient`, and goes on as that of `from`.
struct Redistribution {
  DeviceMeshPtr mesh;
  TensorLayout from;
  Placements to;
  Placements gradient;
};

/// A collective of the mesh. \pre this rank is on the mesh; placements are normalized; no axis becomes Partial
at::Tensor redistribute_local(const at::Tensor& local, const Redistribution& how);

}  // namespace shard::dtensor
