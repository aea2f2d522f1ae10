/// \file Transfers the elements of a redistribution between layouts, with autograd, and estimates its time. Inside
///   shardtorch/dtensor only.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "shardtorch/dtensor/dtensor.h"
#include "shardtorch/dtensor/operators.h"

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

/// This rank's part of `tensor` on a different mesh of the same world. It has no elements if the rank is not on that
/// mesh. Without autograd. A collective of the world. \throws c10::ValueError  worlds differ; c10::Error  Partial
/// placements.
at::Tensor part_on(const DeviceMesh& mesh, const Placements& placements, const DTensor& tensor);

// The estimated time of a redistribution, by which rules choose among placements.

/// The estimated microseconds of a redistribution to `to`; infinite from a shard to a Partial, between different
/// Partials, and between strided shards. `local_devices`: the devices of one host.
/// Source: redistribute_cost in torch/distributed/tensor/_collective_utils.py (torch 2.11).
double redistribution_cost(const Operand& from, const Placements& to, std::int64_t local_devices);

/// The index of the choice of placements, by tensor, to which the call's tensors are redistributed in the least time:
/// their own placements if there is such a choice, or the first that costs nothing, or the first of the cheapest.
/// \pre at least one choice
std::size_t cheapest(const std::vector<std::vector<Placements>>& choices, const OperatorCall& call);

}  // namespace shard::dtensor
