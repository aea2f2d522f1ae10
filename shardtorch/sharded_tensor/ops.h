/// \file
/// Operators on ShardedTensors: dispatch of torch's operators to handlers.
///
/// The first of these that exists runs: the op that the program registered, the op for the class of the sharding spec,
/// the built-in operator (equal, allclose, clone, detach, copy_, type_as, zeros_like and related functions, fill_,
/// uniform_, normal_, ...). Otherwise c10::Error "torch function '...', with args: ... and kwargs: ... not supported
/// for ShardedTensor!". `at::asin(sharded.as_tensor())` runs the op registered for "asin".
///
/// torch::nn::functional::linear is not an operator but C++ code that calls t(), matmul and addmm. If "linear" is
/// registered, t() of a sharded weight, and the product with it, become that op. So an unchanged torch::nn::Linear
/// reaches it; without bias if the input does not have two dimensions (the bias is added to the op's result).
///
/// at::zeros_like and related functions create a tensor with the same spec, size and group. Dtype, layout and pinning
/// are the options', or torch's default. torch::nn::init's functions fill local shards in place. kaiming_uniform_ uses
/// the fans of the whole tensor there, but shard::init (factories.h) uses those of a local shard, as Python does.
#pragma once

#include <ATen/core/ivalue.h>

#include <concepts>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "shardtorch/sharded_tensor/sharded_tensor.h"

namespace shard {

/// `args` are by position, as in the operator's schema, with defaults filled in. Returns the result. An operator with
/// several results returns a tuple, whose elements the caller gets.
using ShardedOp =
    std::function<c10::IValue(std::string_view op, at::ArrayRef<c10::IValue> args, const ProcessGroupPtr& group)>;

/// The handler types that can be registered. A handler with different parameters does not compile.
template <class Handler>
concept ShardedOpHandler = std::invocable < Handler&,
        std::string_view, at::ArrayRef<c10::IValue>,
const ProcessGroupPtr& >
    &&std::convertible_to<
        std::invoke_result_t<Handler&, std::string_view, at::ArrayRef<c10::IValue>, const ProcessGroupPtr&>,
        c10::IValue>;

/// The destructor ends a registration. The previous one then applies again.
class OpRegistration {
 public:
  OpRegistration(OpRegistration&&) noexcept;
  OpRegistration& operator=(OpRegistration&&) noexcept;
  ~OpRegistration();

 private:
  friend OpRegistration register_op(std::string table, std::string op, ShardedOp handler);
  struct Entry;
  explicit OpRegistration(std::unique_ptr<Entry> entry);
  std::unique_ptr<Entry> entry_;
};
/// `table` is "" for all tensors, or the class name of a spec. Threads: any; process-wide.
/// \throws c10::TypeError  "Custom sharded op function expects signature: ...": the handler is empty.
/// \throws c10::ValueError  neither torch nor the program declares an operator with that name; no such class of specs.
[[nodiscard]] OpRegistration register_op(std::string table, std::string op, ShardedOp handler);

/// Declares a name that only call_op runs, or a class of specs from the program, so that ops can be registered for it.
/// The typed custom_sharding_spec_op below declares its class itself. Threads: any; process-wide, permanent.
void declare_op(std::string op);
void declare_spec_class(std::string spec_class);

/// `op` is the operator's name without "aten::" ("asin", "linear"). Overloads share it.
template <ShardedOpHandler Handler>
[[nodiscard]] OpRegistration custom_sharded_op_impl(std::string op, Handler handler) {
  return register_op("", std::move(op), std::move(handler));
}
/// Registers an op for tensors whose spec's class_name() is `spec_class`.
template <ShardedOpHandler Handler>
[[nodiscard]] OpRegistration custom_sharding_spec_op(std::string spec_class, std::string op, Handler handler) {
  return register_op(std::move(spec_class), std::move(op), std::move(handler));
}
/// Does the same for a class of specs with a static kClassName: custom_sharding_spec_op<ChunkShardingSpec>("linear",
/// handler).
template <class Spec, ShardedOpHandler Handler>
requires std::derived_from<Spec, ShardingSpec>
[[nodiscard]] OpRegistration custom_sharding_spec_op(std::string op, Handler handler) {
  declare_spec_class(std::string(Spec::kClassName));
  return register_op(std::string(Spec::kClassName), std::move(op), std::move(handler));
}
/// Whether an op is registered for the class of `spec`.
bool has_custom_op(const ShardingSpec& spec, std::string_view op);
/// Runs that op. For handlers that let the spec's op do a part of their work.
/// \throws c10::Error  "Custom op: linear not registered for ChunkShardingSpec"
c10::IValue dispatch_custom_op(const ShardingSpec& spec, std::string_view op, at::ArrayRef<c10::IValue> args,
                               const ProcessGroupPtr& group);

/// Runs `op` as the dispatcher would. \throws c10::ValueError  " No input for 'op'!"
/// \throws c10::TypeError  none of `args` (lists included) is a ShardedTensor
/// \throws c10::Error  ShardedTensors of different groups; an op that is not supported.
c10::IValue call_op(std::string_view op, std::vector<c10::IValue> args);

/// True on all members if shards (in any local order), metadata and data are equal on all of them. A collective of a
/// few bytes per rank. Processes outside the group get true. Tensors of different groups are not equal, which needs no
/// communication.
/// \throws  on all members: the error of a member that could not compare; c10::ValueError  ranks differ in a tensor.
bool equal(const ShardedTensor& a, const ShardedTensor& b);
/// Compares in the same way, but the data with torch::allclose.
bool allclose(const ShardedTensor& a, const ShardedTensor& b, double rtol = 1e-5, double atol = 1e-8,
              bool equal_nan = false);

/// The three functions below keep spec, metadata and group. They are collectives (RPC) if `tensor` has init_rrefs.
/// Differentiable copies of the local shards; without gradients if the thread's mode is NoGrad.
ShardedTensor clone(const ShardedTensor& tensor);
/// Copies that are leaves, with the requires_grad of the originals.
ShardedTensor deepcopy(const ShardedTensor& tensor);
/// Shares the local shards' elements, without requires_grad.
ShardedTensor detach(const ShardedTensor& tensor);

/// Sets the flag of the wrapper, its metadata and the local shards; returns `tensor`. as_tensor().requires_grad_() has
/// the same effect. \throws c10::Error  torch's, for dtypes without gradients.
ShardedTensor requires_grad_(ShardedTensor tensor, bool requires_grad = true);
/// Copies elements between shards of the same box, even to a different dtype. Returns `to`.
/// \throws c10::Error  "inplace copy can only happen between two ShardedTensor with same metadata!": sizes or shards
///   differ; different groups.
ShardedTensor copy_(ShardedTensor to, const ShardedTensor& from, bool non_blocking = false);
/// Converts to the dtype of `other`; returns this very tensor if it has that dtype.
ShardedTensor type_as(const ShardedTensor& tensor, const ShardedTensor& other);

}  // namespace shard
