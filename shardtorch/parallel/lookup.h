/// \file
/// Looks up rows of a sharded table. Inside shardtorch/parallel only.
#pragma once

#include <ATen/core/Tensor.h>

#include "shardtorch/errors.h"
#include "shardtorch/parallel/embedding.h"

namespace shard::parallel {

/// \throws c10::IndexError  an index outside of the table.
void check_indices(const at::Tensor& indices, std::int64_t rows);

/// A zero that depends on `tensor` in the autograd graph. With it, a rank without elements still takes part in the
/// backward pass, for which other ranks wait.
at::Tensor zero_of(const at::Tensor& tensor);

/// Indices in this rank's rows, and a mask of those on other ranks, which are replaced by 0.
struct OwnRows {
  at::Tensor indices, elsewhere;
};
OwnRows own_rows(const at::Tensor& indices, const ProcessGroup& group, std::int64_t rows);

/// The rows of `indices`, on all ranks, from a table that is sharded by rows. `padding`: a row without gradient, or -1.
at::Tensor rows_of(const at::Tensor& weight, const at::Tensor& indices, std::int64_t padding,
                   const ProcessGroupPtr& group);

}  // namespace shard::parallel
