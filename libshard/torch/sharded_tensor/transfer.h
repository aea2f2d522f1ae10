/// \file
/// Elements between the members of a group, from tensors into tensors. Not for programs.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "libshard/dist/group.h"

namespace shard {

/// What this rank sends and where it puts what it receives: lists of tensors (views, of any strides, on any device) by
/// group rank. This rank's from[i] has the shapes of rank i's to[this rank], in the same order.
struct Transfer {
  explicit Transfer(int ranks) : to(static_cast<std::size_t>(ranks)), from(static_cast<std::size_t>(ranks)) {}
  std::vector<std::vector<at::Tensor>> to, from;
};

/// Copies the elements of each `to` into its `from` on the other side, as `travel_as` on the way; what stays on this
/// rank is copied alike. A lone contiguous host tensor of that dtype is sent, and received into, where it lies.
/// No autograd.
/// \param plan  Says what goes where, on each rank for itself; it may throw, as may the packing of what it named:
///   then all ranks throw (agree.h) and nothing is sent.
/// \throws shard::Error kPeer
/// Cost: one all_gather of a few bytes, then one exchange; host memory for what does not travel as it lies.
void transfer(Group& group, at::ScalarType travel_as, const std::function<Transfer()>& plan);

}  // namespace shard
