/// \file
/// Elements between the members of a group, from tensors into tensors. Inside shardtorch only.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "shardtorch/sharded_tensor/process_group.h"

namespace shard {

/// What this rank sends and where it puts what it receives: lists of tensors (views, of any strides, on any device) by
/// group rank. This rank's from[i] has the shapes of rank i's to[this rank], in the same order.
struct Transfer {
  Transfer(int ranks, at::ScalarType dtype)
      : travel_as(dtype), to(static_cast<std::size_t>(ranks)), from(static_cast<std::size_t>(ranks)) {}

  at::ScalarType travel_as;  ///< What elements are on the way, also on this rank.
  std::vector<std::vector<at::Tensor>> to, from;
  std::vector<std::string> arguments;  ///< The call's, in words: the same on all ranks, as `travel_as` is.
};

/// Whether the elements lie one after the other in this host's memory, as they are read.
bool is_packed_on_host(const at::Tensor& tensor);

/// Copies the elements of each `to` into its `from` on the other side, also what stays on this rank. Over Gloo, ranks
/// of one host move them through memory that they share (host_link.h). Else a lone contiguous tensor that travels as
/// its dtype and lies on the group's device is sent, and received into, where it lies, and others are packed there. So
/// between GPUs over NCCL no byte is in host memory (ProcessGroup::wire_bytes counts). No autograd.
/// \param plan  Says what goes where, on each rank for itself; it may throw, as may the packing of what it named:
///   then all ranks throw (agree.h) and nothing is sent or written.
/// \param facts  What must be the same on all ranks for any plan to make sense, compared before what plans throw.
/// \throws c10::ValueError  on all ranks, where facts or arguments differ; shard::Error kPeer
/// Cost: one all_gather of a few bytes; then one exchange, and memory of the group's device for what does not travel as
/// it lies, or a barrier for every 16 MiB more that a rank sends.
void transfer(const ProcessGroup& group, const std::function<Transfer()>& plan,
              const std::vector<std::string>& facts = {});

}  // namespace shard
