#include <ATen/ATen.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "libshard/core/box.h"
#include "shardtorch/errors.h"
#include "shardtorch/sharded_tensor/agree.h"
#include "shardtorch/sharded_tensor/functional.h"
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

/// All shards of `spec`; those without elements begin inside or at the end.
std::vector<ShardMetadata> shards_of(const ShardingSpec& spec, const ShardedTensorMetadata& tensor) {
  std::vector<ShardMetadata> shards = spec.build_metadata(tensor.size, tensor.tensor_properties).shards_metadata;
  for (ShardMetadata& shard : shards) {
    for (std::size_t d = 0; d < tensor.size.size(); ++d) {
      shard.shard_offsets[d] = std::min(shard.shard_offsets[d], tensor.size[d]);
    }
  }
  return shards;
}

/// The part of a shard's tensor that holds `box` of the whole tensor.
at::Tensor view_of(const at::Tensor& tensor, const ShardMetadata& shard, const Box& box) {
  at::Tensor view = tensor;
  for (int d = 0; d < box.dims; ++d) {
    const auto i = static_cast<std::size_t>(d);
    view = view.narrow(d, box.offset[i] - shard.shard_offsets[i], box.size[i]);
  }
  return view;
}

/// For each member the part of this rank's `tensor` that is also in the member's shard.
std::vector<std::vector<at::Tensor>> cut(const at::Tensor& tensor, const ShardMetadata& own,
                                         const std::vector<ShardMetadata>& members) {
  std::vector<std::vector<at::Tensor>> parts(members.size());
  for (std::size_t i = 0; i < members.size(); ++i) {
    const Box common = intersect(box_of(own), box_of(members[i]));
    if (!common.empty()) parts[i].push_back(view_of(tensor, own, common));
  }
  return parts;
}

/// One shard of each member, by group rank.
struct NewCut {
  std::vector<ShardMetadata> before, after;
};

/// Nothing where dimension and placements stay as they are. \throws c10::NotImplementedError
std::optional<NewCut> new_cut(const ShardedTensorImpl& tensor, const ShardingSpecPtr& spec) {
  const ChunkShardingSpec *from = as_chunk(*tensor.spec), *to = spec ? as_chunk(*spec) : nullptr;
  SHARD_CHECK_NOT_IMPLEMENTED(from != nullptr && to != nullptr, kOnlyChunk);
  const ProcessGroup& group = *tensor.checked_group();
  NewCut cut{by_member(tensor.metadata.shards_metadata, group), {}};
  if (from->dim() == to->dim() && from->placements() == to->placements()) return std::nullopt;
  cut.after = by_member(shards_of(*spec, tensor.metadata), group);
  return cut;
}

/// All members want the same, or all throw.
std::optional<NewCut> agreed_cut(const ShardedTensorImpl& tensor, const ShardingSpecPtr& spec) {
  const ProcessGroup& group = *tensor.checked_group();
  if (!group.is_member()) return new_cut(tensor, spec);
  std::optional<NewCut> cut;
  agree_on(group.group(), [&]() -> std::vector<std::string> {
    cut = new_cut(tensor, spec);
    return {"resharding_spec=" + spec->str()};
  });
  return cut;
}

/// This member's elements, from one cut to another; the way back is the derivative.
struct Exchange {
  ProcessGroupPtr group;
  NewCut cuts;
  at::ScalarType dtype;

  /// \throws c10::NotImplementedError  on all ranks: one has not exactly one of `tensors`.
  at::Tensor operator()(const std::vector<at::Tensor>& tensors) const {
    const auto rank = static_cast<std::size_t>(group->rank());
    const ShardMetadata &before = cuts.before[rank], &after = cuts.after[rank];
    at::Tensor fresh;
    transfer(*group, [&] {
      SHARD_CHECK_NOT_IMPLEMENTED(tensors.size() == 1, kOnlySingle);
      fresh = at::empty(after.shard_sizes, at::TensorOptions(dtype).device(after.placement->device()));
      Transfer plan(group->size(), dtype);
      plan.to = cut(tensors.front(), before, cuts.after);
      plan.from = cut(fresh, after, cuts.before);
      return plan;
    });
    return fresh;
  }
  Exchange reversed() const { return {group, {cuts.after, cuts.before}, dtype}; }
};

/// This member's shard under the new cut, with its elements.
Shard exchange_shards(const ShardedTensorImpl& tensor, const NewCut& cuts) {
  const TensorProperties& properties = tensor.metadata.tensor_properties;
  const Exchange exchange{tensor.group, cuts, properties.dtype};
  const ShardMetadata& after = cuts.after[static_cast<std::size_t>(tensor.group->rank())];
  std::vector<at::Tensor> local;
  for (const Shard& shard : tensor.local_shards) local.push_back(shard.tensor);
  if (properties.requires_grad && at::GradMode::is_enabled()) {
    const auto there = [&] { return std::vector{exchange(local)}; };
    const auto back = [reversed = exchange.reversed()](const std::vector<at::Tensor>& gradients) {
      return std::vector{reversed(gradients)};
    };
    return {functional::differentiable(local, there, back).front(), after};
  }
  at::Tensor fresh = exchange(local);
  if (properties.pin_memory) fresh = fresh.pin_memory();
  return {fresh.set_requires_grad(properties.requires_grad), after};
}

}  // namespace

ShardedTensor ShardedTensor::reshard(ShardingSpecPtr spec) {
  TORCH_WARN_ONCE(kDeprecated);
  ShardedTensorImpl& tensor = impl();
  std::optional<NewCut> shards = agreed_cut(tensor, spec);
  if (!shards.has_value()) return *this;
  if (tensor.group->is_member()) tensor.local_shards = {exchange_shards(tensor, *shards)};
  tensor.metadata.shards_metadata = std::move(shards->after);
  tensor.spec = std::move(spec);
  return *this;
}

}  // namespace shard
