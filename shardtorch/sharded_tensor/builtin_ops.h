/// \file
/// What operators and state dicts share. Inside shardtorch only.
#pragma once

#include <optional>
#include <string_view>

#include "shardtorch/sharded_tensor/ops.h"

namespace shard {

/// What ShardedTensors can do by themselves. Nothing where it cannot with these arguments (copy_ from an ordinary
/// tensor). `args` by position; those at the end may be missing, defaults stand for them.
using BuiltinOp = std::optional<c10::IValue> (*)(at::ArrayRef<c10::IValue> args);

/// Null where there is none.
BuiltinOp builtin_op(std::string_view name);

/// \throws c10::Error  "All distributed tensors should use the same ProcessGroup if used together in an op."
void check_same_group(at::ArrayRef<ShardedTensor> tensors);

/// Whether the local shards of both have the same boxes, in any order. Cost: n log n.
bool has_same_boxes(const ShardedTensor& a, const ShardedTensor& b);

/// Copies the elements of local shards into those of the same boxes, also where they come in another order. False where
/// the boxes differ; then nothing is copied. Cost: n log n in local shards, and their elements.
bool copy_local_shards(const ShardedTensor& to, const ShardedTensor& from, bool non_blocking = false);

}  // namespace shard
