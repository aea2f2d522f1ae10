/// \file
/// Tensors in the form that a group's transport needs. Inside shardtorch only.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "shardtorch/sharded_tensor/process_group.h"

namespace shard {

/// Whether the elements are packed (views.h) on the group's device, in this dtype. If so, no copy is needed.
bool can_send_in_place(const ProcessGroup& group, const at::Tensor& tensor, at::ScalarType travel_as);

/// A view of one dimension. \pre `tensor` is contiguous
at::Tensor bytes_of(const at::Tensor& tensor);
std::vector<at::Tensor> bytes_of(const std::vector<at::Tensor>& tensors);

/// to[i] becomes rank i's from[own rank]. \pre contiguous tensors of bytes on the group's device, one per rank
void exchange_bytes(const ProcessGroup& group, const std::vector<at::Tensor>& to, const std::vector<at::Tensor>& from);

/// The memory of bytes on the CPU.
std::span<std::byte> span_of(const at::Tensor& bytes);

}  // namespace shard
