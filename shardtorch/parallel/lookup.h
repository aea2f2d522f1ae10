/// \file
/// Rows of a table that is cut. Inside shardtorch/parallel only.
#pragma once

#include <ATen/core/Tensor.h>

#include "shardtorch/errors.h"
#include "shardtorch/parallel/embedding.h"

namespace shard::parallel {

/// \throws c10::IndexError  an index outside of the table.
void check_indices(const at::Tensor& indices, std::int64_t rows);

/// A zero that needs the gradients which `tensor` needs: layers of a rank without elements stay in its graph, whose
/// backward other ranks wait for.
at::Tensor zero_of(const at::Tensor& tensor);

/// Indices into this rank's rows, and which of them other ranks have; those are 0.
struct OwnRows {
  at::Tensor indices, elsewhere;
};
OwnRows own_rows(const at::Tensor& indices, const ProcessGroup& group, std::int64_t rows);

/// The rows of `indices` on all ranks, from a table that is cut by rows. `padding`: a row without gradient, or -1.
at::Tensor rows_of(const at::Tensor& weight, const at::Tensor& indices, std::int64_t padding,
                   const ProcessGroupPtr& group);

}  // namespace shard::parallel
