#include <ATen/ATen.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "libshard/core/box.h"
#include "shardtorch/errors.h"
#include "shardtorch/sharded_tensor/functional.h"
#include "shardtorch/sharded_tensor/host_link.h"
#include "shardtorch/sharded_tensor/sharded_tensor_impl.h"
#include "shardtorch/sharded_tensor/transfer.h"

namespace shard {

namespace {

constexpr const char* kOnlyChunk = "Only ChunkShardingSpec supported for reshard.";
constexpr const char* kOnlySingle = "Only single local shard supported for reshard.";

Box box_of(const ShardMetadata& shard) { return {shard.shard_offsets, shard.shard_sizes}; }

/// The one shard of each member, by group rank. \throws c10::NotImplementedError  a member has none, or several.
std::vector<ShardMetadata> by_member(const std::vector<ShardMetadata>& shards, const ProcessGroup& group) {
  std::vector<ShardMetadata> members(group.global_ranks().size());
  SHARD_CHECK_NOT_IMPLEMENTED(shards.size() == members.size(), kOnlySingle);
  for (const ShardMetadata& shard : shards) {
    ShardMetadata& member = members[owner_in(group, shard)];
    SHARD_CHECK_NOT_IMPLEMENTED(!member.placement.has_value(), kOnlySingle);
    member = shard;
  }
  return members;
}

/// All shards of `spec`. Empty ones begin inside the tensor or at its end.
std::vector<ShardMetadata> shards_of(const ShardingSpec& spec, const ShardedTensorMetadata& tensor) {
  std::vector<ShardMetadata> shards = spec.build_metadata(tensor.size, tensor.tensor_properties).shards_metadata;
  for (ShardMetadata& shard : shards) {
    for (std::size_t d = 0; d < tensor.size.size(); ++d) {
      shard.shard_offsets[d] = std::min(shard.shard_offsets[d], tensor.size[d]);
    }
  }
  return shards;
}

/// The part of a shard's tensor that contains `box` of the whole tensor.
at::Tensor view_of(const at::Tensor& tensor, const ShardMetadata& shard, const Box& box) {
  Sizes offsets, sizes;
  for (std::size_t d = 0; d < shard.shard_offsets.size(); ++d) {
    offsets.push_back(box.offset[d] - shard.shard_offsets[d]);
    sizes.push_back(box.size[d]);
  }
  return narrow_tensor_by_index(tensor, offsets, sizes);
}

/// For each member, the part of this rank's `tensor` that is also in the member's shard.
std::vector<std::vector<at::Tensor>> cut(const at::Tensor& tensor, const ShardMetadata& own,
                                         const std::vector<ShardMetadata>& members) {
  std::vector<std::vector<at::Tensor>> parts(members.size());
  for (std::size_t i = 0; i < members.size(); ++i) {
    const Box common = intersect(box_of(own), box_of(members[i]));
    if (!common.empty()) parts[i].push_back(view_of(tensor, own, common));
  }
  return parts;
}

/// One shard per member, by group rank.
struct NewCut {
  std::vector<ShardMetadata> before, after;
};

/// The plan; nothing if dimension and placements do not change. \throws c10::NotImplementedError
std::optional<NewCut> new_cut(const ShardedTensorImpl& tensor, const ShardingSpecPtr& spec) {
  const ChunkShardingSpec *from = as_chunk(*tensor.spec), *to = spec ? as_chunk(*spec) : nullptr;
  SHARD_CHECK_NOT_IMPLEMENTED(from != nullptr && to != nullptr, kOnlyChunk);
  const ProcessGroup& group = *tensor.checked_group();
  NewCut cut{by_member(tensor.metadata.shards_metadata, group), {}};
  if (from->dim() == to->dim() && from->placements() == to->placements()) return std::nullopt;
  cut.after = by_member(shards_of(*spec, tensor.metadata), group);
  return cut;
}

/// Converts this member's `tensors` under one sharding to its tensor under the other, with `plan` to fill it.
/// \throws c10::NotImplementedError  there is not exactly one of `tensors`.
at::Tensor plan_exchange(Transfer& plan, const ProcessGroup& group, const NewCut& cuts,
                         const std::vector<at::Tensor>& tensors) {
  SHARD_CHECK_NOT_IMPLEMENTED(tensors.size() == 1, kOnlySingle);
  const auto rank = static_cast<std::size_t>(group.rank());
  const ShardMetadata &before = cuts.before[rank], &after = cuts.after[rank];
  const auto options = at::TensorOptions(plan.travel_as).device(after.placement->device());
  const at::Tensor fresh = empty_for(group, after.shard_sizes, options);
  plan.to = cut(tensors.front(), before, cuts.after);
  plan.from = cut(fresh, after, cuts.before);
  return fresh;
}

/// Moves gradients from a sharding back to the previous one.
at::Tensor exchange_back(const ProcessGroup& group, const NewCut& cuts, at::ScalarType dtype,
                         const std::vector<at::Tensor>& gradients) {
  at::Tensor fresh;
  transfer(group, [&] {
    Transfer plan(group.size(), dtype);
    fresh = plan_exchange(plan, group, {cuts.after, cuts.before}, gradients);
    return plan;
  });
  return fresh;
}

/// A member's new shards; nothing if the sharding does not change.
struct Resharded {
  std::optional<NewCut> cuts;
  std::vector<at::Tensor> local;
};

/// Checks in one exchange that all members have the same tensor, request the same sharding and can take this rank's
/// elements under it. Otherwise all throw. They also agree on whether there is a backward, which is a collective.
Resharded exchange(const ShardedTensorImpl& tensor, const ShardingSpecPtr& spec, const std::vector<at::Tensor>& local,
                   bool records_gradients) {
  const ProcessGroup& group = *tensor.group;
  Resharded resharded;
  const auto plan_exchanges = [&] {
    resharded.cuts = new_cut(tensor, spec);
    Transfer plan(group.size(), tensor.metadata.tensor_properties.dtype);
    plan.arguments = {"resharding_spec=" + spec->str(), resharded.cuts.has_value() ? "moves=true" : "moves=false"};
    if (resharded.cuts.has_value()) resharded.local = {plan_exchange(plan, group, *resharded.cuts, local)};
    return plan;
  };
  std::vector<std::string> facts = facts_of(tensor.metadata);
  facts.push_back(functional::gradients_fact(records_gradients));
  transfer(group, plan_exchanges, facts);
  return resharded;
}

/// Does the same, with the opposite exchange as its derivative if gradients are recorded.
Resharded reshard_local(const ShardedTensorImpl& tensor, const ShardingSpecPtr& spec) {
  const TensorProperties& properties = tensor.metadata.tensor_properties;
  std::vector<at::Tensor> local;
  for (const Shard& shard : tensor.local_shards) local.push_back(shard.tensor);
  if (!properties.requires_grad || !at::GradMode::is_enabled()) {
    Resharded resharded = exchange(tensor, spec, local, false);
    for (at::Tensor& fresh : resharded.local) {
      if (properties.pin_memory) fresh = fresh.pin_memory();
      fresh.set_requires_grad(properties.requires_grad);
    }
    return resharded;
  }
  const auto resharded = std::make_shared<Resharded>();
  const bool records_gradients = functional::records_gradients(local);
  const auto there = [&] {
    *resharded = exchange(tensor, spec, local, records_gradients);
    return std::exchange(resharded->local, {});
  };
  const auto back = [resharded, group = tensor.group, dtype = properties.dtype](const auto& gradients) {
    return std::vector{exchange_back(*group, *resharded->cuts, dtype, gradients)};
  };
  std::vector<at::Tensor> fresh = functional::differentiable(local, there, back);
  return {resharded->cuts, std::move(fresh)};
}

}  // namespace

ShardedTensor ShardedTensor::reshard(ShardingSpecPtr spec) {
  ShardedTensorImpl& tensor = impl();
  warn_of_deprecation(tensor.group);
  const bool is_member = tensor.checked_group()->is_member();
  Resharded resharded = is_member ? reshard_local(tensor, spec) : Resharded{new_cut(tensor, spec), {}};
  if (!resharded.cuts.has_value()) return *this;
  std::vector<ShardMetadata>& after = resharded.cuts->after;
  if (is_member) {
    const ShardMetadata& own = after[static_cast<std::size_t>(tensor.group->rank())];
    std::vector<Shard> replaced = std::exchange(tensor.local_shards, {Shard(std::move(resharded.local.front()), own)});
    HostLink* const link = tensor.group->host_link();
    if (link != nullptr) link->spare_memory().offer(std::move(replaced.front().tensor));
  }
  tensor.metadata.shards_metadata = std::move(after);
  tensor.spec = std::move(spec);
  return *this;
}

}  // namespace shard
