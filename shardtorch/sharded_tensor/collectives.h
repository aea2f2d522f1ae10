/// \file
/// Collectives of tensors, for handlers of ops and for programs: torch.distributed's, over the groups of this library.
///
/// All members call them in the same order, with tensors of the same dtype (and, unless documented otherwise, of the
/// same shape); differences between ranks are not detected. A tensor may have any strides and be on any device: a
/// tensor that is not packed on ProcessGroup::preferred_device() goes through a copy there (ProcessGroup::wire_bytes
/// counts it). All dtypes are supported. Each call returns when this rank is done, also for NCCL. Autograd records
/// nothing; functional.h has differentiable ones.
///
/// Gloo and NCCL run c10d's own operation if they have it. Everything else, and ranks that are threads, use one
/// reference implementation, which reduces in the order of ranks: all ranks see the same bits.
///
/// `group` null: the default group. Errors of all: c10::ValueError  this process is not a member, an invalid rank or
/// dimension; c10::TypeError  a dtype that this operation cannot reduce; Error kPeer  a rank died, which breaks the
/// group. Threads: as Group.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "shardtorch/sharded_tensor/process_group.h"

namespace shard {

enum class ReduceOp : std::uint8_t {
  kSum,
  kMean,  ///< For floating-point and complex numbers.
  kProduct,
  kMin,  ///< The same as the next: not for complex numbers.
  kMax,
};

/// In place, on every rank. Cost: 2 (n - 1) / n of the tensor is sent by each of n ranks.
void all_reduce(const at::Tensor& tensor, ReduceOp how = ReduceOp::kSum, const ProcessGroupPtr& group = nullptr);

/// Group rank `root`'s elements become everybody's, in place.
void broadcast(const at::Tensor& tensor, int root, const ProcessGroupPtr& group = nullptr);

/// \returns  All ranks' `own` one after the other along `dim`; scalars become a tensor of one dimension.
at::Tensor all_gather(const at::Tensor& own, std::int64_t dim = 0, const ProcessGroupPtr& group = nullptr);

/// Rank i's `own` becomes all[i]: shapes may differ between ranks. \pre all ranks know all shapes
void all_gather_into(const std::vector<at::Tensor>& all, const at::Tensor& own, const ProcessGroupPtr& group = nullptr);

/// \returns  This rank's part of the reduced tensors, which are cut into equal parts along `dim`.
/// \throws c10::ValueError  the dimension cannot be cut into as many parts as there are ranks.
at::Tensor reduce_scatter(const at::Tensor& whole, ReduceOp how = ReduceOp::kSum, std::int64_t dim = 0,
                          const ProcessGroupPtr& group = nullptr);

/// to[i] becomes rank i's from[own rank], with the same shape; shapes and dtypes may differ from pair to pair.
/// \throws c10::ValueError  not a tensor for each rank.
void all_to_all(const std::vector<at::Tensor>& to, const std::vector<at::Tensor>& from,
                const ProcessGroupPtr& group = nullptr);

}  // namespace shard
