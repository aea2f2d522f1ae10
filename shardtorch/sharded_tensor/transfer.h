/// \file
/// Transfers elements between tensors of a group's members. Inside shardtorch only.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "shardtorch/sharded_tensor/process_group.h"

namespace shard {

/// The tensors that this rank sends and receives: lists of tensors (views, of any strides, on any device) by group
/// rank. This rank's from[i] has the shapes of rank i's to[this rank], in the same order.
struct Transfer {
  Transfer(int ranks, at::ScalarType dtype)
      : travel_as(dtype), to(static_cast<std::size_t>(ranks)), from(static_cast<std::size_t>(ranks)) {}

  at::ScalarType travel_as;  ///< The dtype of elements in transit, even on this rank.
  std::vector<std::vector<at::Tensor>> to, from;
  /// The call's arguments as text. Like `travel_as`, they are the same on all ranks.
  std::vector<std::string> arguments;
};

/// A tensor as from `at::empty`, to receive elements. It may use memory that an earlier one left (spare_memory.h). The
/// group's first call is a collective.
at::Tensor empty_for(const ProcessGroup& group, at::IntArrayRef sizes, const at::TensorOptions& options);

/// Copies the elements of each `to` into the corresponding `from` of the other rank, and those that stay on this rank.
/// Over Gloo, ranks on one host use shared memory (host_link.h). Otherwise, a single contiguous tensor that is on the
/// group's device and already has the dtype in transit is sent and received in place. Other tensors are packed there.
/// So between GPUs over NCCL, no byte passes through host memory (ProcessGroup::wire_bytes counts). No autograd.
/// \param plan  Returns the transfers, on each rank separately. If it throws, or if packing throws, then all ranks
///   throw (agree.h) and nothing is sent or written.
/// \param facts  Values that must be the same on all ranks for any plan to make sense; compared before errors of plans
///   are thrown.
/// \throws c10::ValueError  on all ranks, if facts or arguments differ; shard::Error kPeer
/// Cost: one all_gather of a few bytes and one exchange, with memory on the group's device for data that is not
/// transferred in place; or, with shared memory, a barrier for each additional 16 MiB that a rank sends.
void transfer(const ProcessGroup& group, const std::function<Transfer()>& plan,
              const std::vector<std::string>& facts = {});

}  // namespace shard
