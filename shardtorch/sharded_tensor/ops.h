/// \file
/// Operators on ShardedTensors: dispatch of torch's operators to handlers.
///
/// In this order: the op that the program registered, the op for the class of the sharding spec, the built-in one
/// (equal, allclose, clone, detach, copy_, type_as, zeros_like and related functions, fill_, uniform_, normal_, ...),
/// otherwise c10::Error "torch function '...', with args: ... and kwargs: ... not supported for ShardedTensor!".
/// `at::asin(sharded.as_tensor())` runs the op registered for "asin".
///
/// torch::nn::functional::linear is not an operator but C++ that calls t(), matmul and addmm. If "linear" is
/// registered, t() of a sharded weight, and the product with it, become that op. So an unchanged torch::nn::Linear
/// reaches it, without bias if the input does not have two dimensions (the bias is added to the op's result).
///
/// at::zeros_like and related functions give a tensor of the same spec, size and group; dtype, layout and pinning are
/// the options', or torch's default. torch::nn::init's functions fill local shards in place; kaiming_uniform_ counts
/// the whole tensor's fans there, a local shard's in shard::init (factories.h), as in Python.
#pragma once

#include <ATen/core/ivalue.h>

#include <concepts>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "shardtorch/sharded_tensor/sharded_tensor.h"

namespace shard {

/// `args` by position, as the operator's schema has them, defaults filled in. Returns the result; an operator with
/// several gets a tuple's elements.
using ShardedOp =
    std::function<c10::IValue(std::string_view op, at::ArrayRef<c10::IValue> args, const ProcessGroupPtr& group)>;

/// The types that can be registered: a handler with other parameters does not compile.
template <class Handler>
concept ShardedOpHandler = std::invocable < Handler&,
        std::string_view, at::ArrayRef<c10::IValue>,
const ProcessGroupPtr& >
    &&std::convertible_to<
        std::invoke_result_t<Handler&, std::string_view, at::ArrayRef<c10::IValue>, const ProcessGroupPtr&>,
        c10::IValue>;

/// The destructor ends a registration; the previous one then applies again.
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
/// \throws c10::ValueError  no operator of torch, nor one that was declared, has that name; no such class of specs.
[[nodiscard]] OpRegistration register_op(std::string table, std::string op, ShardedOp handler);

/// A name that only call_op runs, or a class of specs that the program made: may be registered for from now on. The
/// typed custom_sharding_spec_op below declares its class by itself. Threads: any; process-wide, for good.
void declare_op(std::string op);
void declare_spec_class(std::string spec_class);

/// `op` is the operator's name without "aten::" ("asin", "linear"); overloads share it.
template <ShardedOpHandler Handler>
[[nodiscard]] OpRegistration custom_sharded_op_impl(std::string op, Handler handler) {
  return register_op("", std::move(op), std::move(handler));
}
/// For tensors whose spec's class_name() is `spec_class`.
template <ShardedOpHandler Handler>
[[nodiscard]] OpRegistration custom_sharding_spec_op(std::string spec_class, std::string op, Handler handler) {
  return register_op(std::move(spec_class), std::move(op), std::move(handler));
}
/// The same for a class of specs with a static kClassName: custom_sharding_spec_op<ChunkShardingSpec>("linear",
/// handler).
template <class Spec, ShardedOpHandler Handler>
requires std::derived_from<Spec, ShardingSpec>
[[nodiscard]] OpRegistration custom_sharding_spec_op(std::string op, Handler handler) {
  declare_spec_class(std::string(Spec::kClassName));
  return register_op(std::string(Spec::kClassName), std::move(op), std::move(handler));
}
/// Whether one is registered for the class of `spec`.
bool has_custom_op(const ShardingSpec& spec, std::string_view op);
/// Runs that one. For handlers that leave a part of their work to the spec's.
/// \throws c10::Error  "Custom op: linear not registered for ChunkShardingSpec"
c10::IValue dispatch_custom_op(const ShardingSpec& spec, std::string_view op, at::ArrayRef<c10::IValue> args,
                               const ProcessGroupPtr& group);

/// Runs `op` as the dispatcher would. \throws c10::ValueError  " No input for 'op'!"
/// \throws c10::TypeError  none of `args` (lists included) is a ShardedTensor
/// \throws c10::Error  ShardedTensors of different groups; an op that is not supported.
c10::IValue call_op(std::string_view op, std::vector<c10::IValue> args);

/// True on all members if shards (in any local order), metadata and data are equal on all of them; a collective (some
/// bytes per rank). Processes outside the group see true; tensors of different groups are not equal, which needs no
/// communication.
/// \throws  on all members: the error of one that could not compare; c10::ValueError  ranks differ in a tensor.
bool equal(const ShardedTensor& a, const ShardedTensor& b);
/// The same with torch::allclose on the data.
bool allclose(const ShardedTensor& a, const ShardedTensor& b, double rtol = 1e-5, double atol = 1e-8,
              bool equal_nan = false);

/// The three functions below: same spec, metadata and group. They are collective (RPC) if `tensor` has init_rrefs.
/// Differentiable copies of the local shards; without gradients if the thread's mode is NoGrad.
ShardedTensor clone(const ShardedTensor& tensor);
/// Copies which are leaves, with the requires_grad of the originals.
ShardedTensor deepcopy(const ShardedTensor& tensor);
/// Shares the local shards' elements; no requires_grad.
ShardedTensor detach(const ShardedTensor& tensor);

/// Sets the flag of the wrapper, its metadata and the local shards; returns `tensor`. as_tensor().requires_grad_() does
/// too. \throws c10::Error  torch's, for dtypes without gradients.
ShardedTensor requires_grad_(ShardedTensor tensor, bool requires_grad = true);
/// Copies elements, shard by shard of the same box, also to a different dtype. Returns `to`.
/// \throws c10::Error  "inplace copy can only happen between two ShardedTensor with same metadata!": sizes or shards
///   differ; different groups.
ShardedTensor copy_(ShardedTensor to, const ShardedTensor& from, bool non_blocking = false);
/// With the dtype of `other`; this very tensor if it has it.
ShardedTensor type_as(const ShardedTensor& tensor, const ShardedTensor& other);

}  // namespace shard
