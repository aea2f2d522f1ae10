/// \file
/// The object behind the handles of a ShardedTensor. Inside shardtorch only.
#pragma once

#include <c10/core/TensorImpl.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "shardtorch/sharded_tensor/sharded_tensor.h"

namespace shard {

/// A tensor without storage. Its only dispatch key is one that torch reserves for other projects. dtensor/operators.cpp
/// registers the fallback that every operator with this key reaches.
class ShardedTensorImpl final : public c10::TensorImpl {
 public:
  static constexpr c10::DispatchKey kDispatchKey = c10::DispatchKey::DeferredInit;

  /// Takes size, dtype, layout, pinning and requires_grad from `whole`. The wrapper itself reports the CPU, regardless
  /// of the shards.
  ShardedTensorImpl(ShardingSpecPtr cut, ShardedTensorMetadata whole);
  ~ShardedTensorImpl() override;  ///< Removes it from the registry of remote shards.

  ShardingSpecPtr spec;
  ShardedTensorMetadata metadata;
  std::vector<Shard> local_shards;
  ProcessGroupPtr group;  ///< Null for a ShardedTensorBase.
  bool init_rrefs = false;
  std::optional<std::int64_t> id;  ///< Its id in the registry.
  std::vector<Bytes> published;    ///< References at the RPC agent, by local shard.
  std::shared_ptr<RpcAgent> agent;
  std::map<int, std::vector<RemoteShard>> remote_shards;
  at::Tensor transposed_of{};  ///< The weight of which this is the t(), for the op "linear".

  /// Copies the wrapper's requires_grad, the only flag that torch's own setters change, to metadata and local shards.
  void apply_requires_grad();
  /// The group. \throws c10::Error  there is none: the tensor was created as a ShardedTensorBase.
  const ProcessGroupPtr& checked_group() const;

  /// Torch's way to replace the elements of a parameter (set_data, therefore Module::to): local shards get those of
  /// `other`, and remain the same tensors. \pre `other` has the same shards, which the dispatcher checks
  void shallow_copy_from(const c10::intrusive_ptr<c10::TensorImpl>& other) override;
  /// The gradient that the handle itself has, which torch never sets.
  at::Tensor own_gradient() const;

  const char* tensorimpl_type_name() const override { return "ShardedTensor"; }
  /// Torch's way to create a second handle on the same elements, which would have neither elements nor shards.
  /// \throws c10::Error  always; ops.h has detach().
  c10::intrusive_ptr<c10::TensorImpl> shallow_copy_and_detach(const c10::VariableVersion& version,
                                                              bool may_change) const override;
  c10::intrusive_ptr<c10::TensorImpl> shallow_copy_and_detach(c10::VariableVersion&& version,
                                                              bool may_change) const override;
};

/// The object of a handle, with its requires_grad updated. \throws c10::Error  an undefined handle.
ShardedTensorImpl& impl_of(const ShardedTensorBase& tensor);

/// The warning about functions that torch deprecates.
inline constexpr const char* kDeprecated =
    "PyTorch deprecates ShardedTensor: new code should use shard::dtensor::DTensor (shardtorch/dtensor/dtensor.h).";
/// Prints it once, on the first rank of `group` (null: on this rank).
void warn_of_deprecation(const ProcessGroupPtr& group);

/// The first steps of creating any ShardedTensor: checks `spec`, builds the metadata, creates the object. The memory
/// format is contiguous, regardless of `properties`. \throws c10::ValueError  no spec, more than 64 dimensions.
c10::intrusive_ptr<ShardedTensorImpl> make_impl(ShardingSpecPtr spec, at::IntArrayRef size,
                                                TensorProperties properties);

using FillShard = std::function<void(at::Tensor shard)>;
/// Fills local shards in place, in order, without autograd.
void fill_shards(const std::vector<Shard>& shards, const FillShard& fill);
/// Does the same as ShardedTensor's constructor, but local shards get their content before other ranks can see them.
ShardedTensor make_filled(ShardingSpecPtr spec, at::IntArrayRef size, const CreateOptions& options,
                          const FillShard& fill);

/// The last step of creating one: with init_rrefs it registers the tensor, publishes its shards and receives those of
/// others (all workers call it). If it throws, the registry is unchanged once `impl` is destroyed.
/// \throws c10::Error  no agent, or a worker does not connect; c10::ValueError  the world's ranks are not the workers'.
void init_remote_shards(const c10::intrusive_ptr<ShardedTensorImpl>& impl);
/// Undoes the above. Called by the destructor.
void leave_registry(ShardedTensorImpl& impl) noexcept;

/// This process's rank in the world, as in placements. \throws c10::ValueError  it is not a member, and there is no
/// default group.
int world_rank(const ProcessGroup& group);

/// The facts that ranks must agree on before elements are transferred: size, all properties, and each shard's box and
/// placement. A placement counts by its rank and kind of device, because a rank knows device indices only for its
/// own shards (ShardedTensor::cuda).
std::vector<std::string> facts_of(const ShardedTensorMetadata& metadata);
/// ShardedTensor::full_tensor for ranks that must agree on `more` facts.
at::Tensor full_tensor(const ShardedTensor& tensor, const std::vector<std::string>& more);

/// The group rank that has `shard`. \throws c10::Error  no member has it; errors of resolve_placement.
std::size_t owner_in(const ProcessGroup& group, const ShardMetadata& shard);

}  // namespace shard
