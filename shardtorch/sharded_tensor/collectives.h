/// \file
/// Collectives of tensors, for handlers of ops and for programs. They are those of torch.distributed, over the groups
/// of this library.
///
/// All members call them in the same order, with tensors of the same dtype and, unless documented otherwise, of the
/// same shape. Differences between ranks are not detected. A tensor may have any strides and be on any device. A tensor
/// that is not packed on ProcessGroup::preferred_device() is copied through that device (ProcessGroup::wire_bytes
/// counts this). All dtypes are supported. Each call returns when this rank is done, even with NCCL. Autograd records
/// nothing; functional.h has differentiable collectives.
///
/// Gloo and NCCL run c10d's own operation if they have it. All other operations, and ranks that are threads, use one
/// reference implementation. It reduces in the order of ranks, so all ranks get the same bits.
///
/// `group` null: the default group. Errors of all functions: c10::ValueError  this process is not a member, an invalid
/// rank or dimension; c10::TypeError  the operation cannot reduce this dtype; Error kPeer  a rank died, which breaks
/// the group. Threads: as Group.
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
  kMin,  ///< kMin and kMax are not for complex numbers.
  kMax,
  kAnd,  ///< kAnd, kOr and kXor combine the bits of integers and booleans.
  kOr,
  kXor,
};

/// Reduces in place, on every rank. Cost: each of n ranks sends 2 (n - 1) / n of the tensor.
void all_reduce(const at::Tensor& tensor, ReduceOp how = ReduceOp::kSum, const ProcessGroupPtr& group = nullptr);

/// Replaces the elements on all ranks by those of group rank `root`, in place.
void broadcast(const at::Tensor& tensor, int root, const ProcessGroupPtr& group = nullptr);

/// \returns  the `own` of all ranks, concatenated along `dim`. Scalars become a tensor of one dimension.
at::Tensor all_gather(const at::Tensor& own, std::int64_t dim = 0, const ProcessGroupPtr& group = nullptr);

/// Rank i's `own` becomes all[i]. Shapes may differ between ranks. \pre all ranks know all shapes
void all_gather_into(const std::vector<at::Tensor>& all, const at::Tensor& own, const ProcessGroupPtr& group = nullptr);

/// \returns  this rank's part of the reduced tensors, which are split into equal parts along `dim`.
/// \throws c10::ValueError  the dimension cannot be split into as many parts as there are ranks.
at::Tensor reduce_scatter(const at::Tensor& whole, ReduceOp how = ReduceOp::kSum, std::int64_t dim = 0,
                          const ProcessGroupPtr& group = nullptr);

/// to[i] becomes rank i's from[own rank], with the same shape. Shapes and dtypes may differ from pair to pair.
/// \throws c10::ValueError  there is not one tensor per rank.
void all_to_all(const std::vector<at::Tensor>& to, const std::vector<at::Tensor>& from,
                const ProcessGroupPtr& group = nullptr);

/// Rank i's `own` becomes the root's parts[i], with the same shape. Other ranks pass no parts.
/// \throws c10::ValueError  there is not one part per rank, or a rank that is not the root passes some.
void scatter(const at::Tensor& own, const std::vector<at::Tensor>& parts, int root,
             const ProcessGroupPtr& group = nullptr);

/// The root's all[i] becomes rank i's `own`, with the same shape. Other ranks pass none.
/// \throws c10::ValueError  there is not one tensor per rank, or a rank that is not the root passes some.
void gather(const std::vector<at::Tensor>& all, const at::Tensor& own, int root,
            const ProcessGroupPtr& group = nullptr);

}  // namespace shard
