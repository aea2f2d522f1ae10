/// \file Transfers the elements of a redistribution between layouts, with autograd. Inside shardtorch/dtensor only.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "shardtorch/dtensor/dtensor.h"

namespace shard::dtensor {

/// A redistribution of `local` from layout `from` to a local tensor of layout `to`. The gradient of the result is in
/// layout `gradient` and is converted to layout `from`.
struct Redistribution {
  DeviceMeshPtr mesh;
  TensorLayout from;
  Placements to;
  Placements gradient;
  std::optional<at::ScalarType> forward_dtype{}, backward_dtype{};  ///< See RedistributeOptions.
};

/// A collective of the mesh. \pre this rank is on the mesh; placements are normalized; no axis becomes Partial
at::Tensor redistribute_local(const at::Tensor& local, const Redistribution& how);

/// This rank's part of `tensor` on a different mesh of the same world; it has no elements if the rank is not on that
/// mesh. Without autograd. A collective of the world. \throws c10::ValueError  worlds differ; c10::Error  Partial
/// placements.
at::Tensor part_on(const DeviceMesh& mesh, const Placements& placements, const DTensor& tensor);

}  // namespace shard::dtensor
