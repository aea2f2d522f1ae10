#include <ATen/ATen.h>

#include <string>
#include <utility>
#include <vector>

#include "shardtorch/errors.h"
#include "shardtorch/sharded_tensor/agree.h"
#include "shardtorch/sharded_tensor/factories.h"
#include "shardtorch/sharded_tensor/sharded_tensor_impl.h"
#include "shardtorch/sharded_tensor/transfer.h"

namespace shard {

namespace {

/// The source splits `tensor`. All ranks receive into their local shards.
Transfer plan_scatter(const ShardedTensor& sharded, const at::Tensor& tensor, int source) {
  const ProcessGroup& group = *sharded.process_group();
  SHARD_CHECK_VALUE(source >= 0 && source < group.size(), "Source rank ", source, " is not in a group of ",
                    group.size());
  Transfer plan(group.size(), tensor.scalar_type());
  plan.arguments = {c10::str("src_rank=", source), c10::str("size=", tensor.sizes()),
                    c10::str("requires_grad=", tensor.requires_grad() ? "true" : "false"),
                    c10::str("pin_memory=", tensor.is_pinned() ? "true" : "false")};
  for (const Shard& shard : sharded.local_shards()) {
    if (shard.tensor.numel() > 0) plan.from[static_cast<std::size_t>(source)].push_back(shard.tensor);
  }
  if (group.rank() != source) return plan;
  for (const ShardMetadata& shard : sharded.metadata().shards_metadata) {
    if (c10::multiply_integers(shard.shard_sizes) == 0) continue;
    plan.to[owner_in(group, shard)].push_back(narrow_tensor(tensor, shard));
  }
  return plan;
}

}  // namespace

ShardedTensor ChunkShardingSpec::shard(const at::Tensor& tensor, int src_rank, ProcessGroupPtr group) const {
  group = group_or_default(std::move(group));
  ShardingSpecPtr spec = weak_from_this().lock();
  if (!spec) spec = std::make_shared<ChunkShardingSpec>(*this);  // The spec was not created by chunk_spec().
  const auto allocate = [&] {
    const TensorProperties properties = TensorProperties::of(tensor);
    return ShardedTensor(spec, tensor.sizes(),
                         {.dtype = properties.dtype,
                          .layout = properties.layout,
                          .requires_grad = properties.requires_grad,
                          .pin_memory = properties.pin_memory,
                          .process_group = group});
  };
  if (!group->is_member()) return allocate();
  ShardedTensor sharded;
  transfer(*group, [&] {
    sharded = allocate();
    return plan_scatter(sharded, tensor, src_rank);
  });
  return sharded;
}

ShardedTensor EnumerableShardingSpec::shard(const at::Tensor&, int, ProcessGroupPtr) const {
  SHARD_CHECK_NOT_IMPLEMENTED(false, "EnumerableShardingSpec.shard not implemented yet!");
}

ShardedTensor shard_tensor(const at::Tensor& tensor, ShardingSpecPtr spec, int src_rank, ProcessGroupPtr group) {
  group = group_or_default(std::move(group));
  const auto check = [&]() -> std::vector<std::string> {
    SHARD_CHECK_VALUE(tensor.defined() && tensor.is_contiguous(), "input tensor is not a contiguous Tensor");
    SHARD_CHECK_VALUE(spec, "Expecting ShardingSpec but got: None");
    return {c10::str("src_rank=", src_rank), "sharding_spec=" + spec->str()};
  };
  group->is_member() ? agree_on(group->group(), check) : void(check());
  return spec->shard(tensor, src_rank, std::move(group));
}

}  // namespace shard
