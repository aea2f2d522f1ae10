/// \file
/// Common code of operators and state dicts. Inside shardtorch only.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <optional>
#include <string_view>

#include "shardtorch/sharded_tensor/ops.h"

namespace shard {

/// The built-in operators of ShardedTensors. The result is empty if the operator does not support these arguments
/// (copy_ from an ordinary tensor). `args` are by position. Trailing arguments with defaults may be missing.
using BuiltinOp = std::optional<c10::IValue> (*)(at::ArrayRef<c10::IValue> args);

/// Runs the operator on its arguments at the end of `stack`, and replaces them by its results. At least one of them
/// has the dispatch key of ShardedTensors, and none is a DTensor. dtensor/operators.cpp registers the caller.
void run_on_sharded_tensors(const c10::OperatorHandle& handle, torch::jit::Stack& stack);

/// The built-in operator, or null.
BuiltinOp builtin_op(std::string_view name);

/// Whether the program registered `op` for these tensors, either for all tensors or for their class of specs.
bool has_registered_op(const ShardingSpec& spec, std::string_view op);

/// \throws c10::Error  "All distributed tensors should use the same ProcessGroup if used together in an op."
void check_same_group(at::ArrayRef<ShardedTensor> tensors);

/// Whether the local shards of both tensors have the same boxes, in any order. Cost: O(n log n).
bool has_same_boxes(const ShardedTensor& a, const ShardedTensor& b);

/// Copies the elements of local shards into those with the same boxes, in any order. If the boxes differ, copies
/// nothing and returns false. Cost: O(n log n) in local shards, plus their elements.
bool copy_local_shards(const ShardedTensor& to, const ShardedTensor& from, bool non_blocking = false);

}  // namespace shard
