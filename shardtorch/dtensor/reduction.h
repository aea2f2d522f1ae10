/// \file
/// Reduces Partial values to elements, with the operations over the ranks of an axis. Inside shardtorch/dtensor only.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "shardtorch/dtensor/device_mesh.h"
#include "shardtorch/dtensor/placements.h"

namespace shard::dtensor {

/// Reduces `local` over all ranks along `axis`. Each of them gets the result. A collective of the axis's group.
/// \throws c10::Error  the operation does not support these elements.
at::Tensor all_reduce(const at::Tensor& local, const DeviceMesh& mesh, std::size_t axis, ReduceOp op);

/// Reduces terms of the same elements by the axes that are Partial in `from` and not in `to`. Reuses the first term's
/// memory. \pre at least one term; more than one only if there is such an axis
at::Tensor reduce_terms(std::vector<at::Tensor> terms, const Placements& from, const Placements& to,
                        const DeviceMesh& mesh);

/// The term for each of `axis_size` ranks of a Partial whose value is `tensor`.
/// \throws c10::ValueError  a product: "Replicate to P(product) conversion is not supported."; a sum of integers.
at::Tensor term_of(const at::Tensor& tensor, std::int64_t axis_size, ReduceOp op);

}  // namespace shard::dtensor
