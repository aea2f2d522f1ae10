/// \file
/// Partial to elements: the operations over the ranks of an axis. Inside shardtorch/dtensor only.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "shardtorch/dtensor/device_mesh.h"
#include "shardtorch/dtensor/placements.h"

namespace shard::dtensor {

/// `local` of all ranks along `axis`, reduced, on each of them. A collective of the axis's group.
/// \throws c10::Error  an operation that is not for such elements.
at::Tensor all_reduce(const at::Tensor& local, const DeviceMesh& mesh, std::size_t axis, ReduceOp op);

/// Terms of the same elements, reduced by the axes that are Partial in `from` and not in `to`. Reuses the first term's
/// memory. \pre at least one; more than one only if there is such an axis
at::Tensor reduce_terms(std::vector<at::Tensor> terms, const Placements& from, const Placements& to,
                        const DeviceMesh& mesh);

/// The term of each of `axis_size` ranks of a Partial that equals `tensor`.
/// \throws c10::ValueError  a product: "Replicate to P(product) conversion is not supported."; a sum of integers.
at::Tensor term_of(const at::Tensor& tensor, std::int64_t axis_size, ReduceOp op);

}  // namespace shard::dtensor
