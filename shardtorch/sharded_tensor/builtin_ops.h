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
/// (copy_ from an ordinary tensor). `args` are by position; trailing arguments with defaults may be missing.
using BuiltinOp = std::optional<c10::IValue> (*)(at::ArrayRef<c10::IValue> args);

/// Runs the operator on its arguments at the end of `stack`, and replaces them by its results. At least one of them
/// has the dispatch key of ShardedTensors, and none is a DTensor. dtensor/operators.cpp registers the caller.
void run_on_sharded_tensors(const c10::OperatorHandle& handle, torch::jit::Stack& stack);

/// The built-in operator, or null.
BuiltinOp builtin_op(std::string_view name);

/// Whether the program registered `op` for these tensors, either for all tensors or for their class of specs.
bool has_registered_op(const ShardingSpec& spec, std::string_view op);

/// Argument `index`; undefined if it is not a ShardedTensor.
ShardedTensor sharded_arg(at::ArrayRef<c10::IValue> args, std::size_t index);
/// Argument `index`, or `otherwise` if it is missing or None.
c10::IValue arg_or(at::ArrayRef<c10::IValue> args, std::size_t index, c10::IValue otherwise);

// creation_ops.cpp: empty_like and related functions; functions that fill a tensor in place.
std::optional<c10::IValue> run_empty_like(at::ArrayRef<c10::IValue> args);
std::optional<c10::IValue> run_full_like(at::ArrayRef<c10::IValue> args);
std::optional<c10::IValue> run_ones_like(at::ArrayRef<c10::IValue> args);
std::optional<c10::IValue> run_zeros_like(at::ArrayRef<c10::IValue> args);
std::optional<c10::IValue> run_rand_like(at::ArrayRef<c10::IValue> args);
std::optional<c10::IValue> run_randn_like(at::ArrayRef<c10::IValue> args);
std::optional<c10::IValue> run_fill(at::ArrayRef<c10::IValue> args);
std::optional<c10::IValue> run_zero(at::ArrayRef<c10::IValue> args);
std::optional<c10::IValue> run_uniform(at::ArrayRef<c10::IValue> args);
std::optional<c10::IValue> run_normal(at::ArrayRef<c10::IValue> args);

// linear_op.cpp: the operators that torch::nn::functional::linear calls; each becomes the program's op "linear".
std::optional<c10::IValue> run_t(at::ArrayRef<c10::IValue> args);
std::optional<c10::IValue> run_matmul(at::ArrayRef<c10::IValue> args);
std::optional<c10::IValue> run_addmm(at::ArrayRef<c10::IValue> args);

/// \throws c10::Error  "All distributed tensors should use the same ProcessGroup if used together in an op."
void check_same_group(at::ArrayRef<ShardedTensor> tensors);

/// Whether the local shards of both tensors have the same boxes, in any order. Cost: O(n log n).
bool has_same_boxes(const ShardedTensor& a, const ShardedTensor& b);

/// Copies the elements of local shards into those with the same boxes, in any order. If the boxes differ, copies
/// nothing and returns false. Cost: O(n log n) in local shards, plus their elements.
bool copy_local_shards(const ShardedTensor& to, const ShardedTensor& from, bool non_blocking = false);

}  // namespace shard
