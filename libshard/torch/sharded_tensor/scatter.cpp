#include <ATen/ATen.h>

#include <utility>

#include "libshard/dist/wire.h"
#include "libshard/torch/sharded_tensor/agree.h"
#include "libshard/torch/sharded_tensor/factories.h"
#include "libshard/torch/sharded_tensor/sharded_tensor_impl.h"
#include "libshard/torch/sharded_tensor/transfer.h"

namespace shard {

namespace {

/// The source cuts `tensor`, everyone receives into its local shards.
Transfer plan_scatter(const ShardedTensor& sharded, const at::Tensor& tensor, int source) {
  const ProcessGroup& group = *sharded.process_group();
  TORCH_CHECK_VALUE(source >= 0 && source < group.size(), "Source rank ", source, " is not in a group of ",
                    group.size());
  Transfer plan(group.size());
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

struct Request {
  std::int64_t src_rank;
  std::string spec;
};

Bytes to_bytes(const Request& request) {
  WireWriter out;
  out.number(request.src_rank);
  out.text(request.spec);
  return out.take();
}

Request to_request(const Bytes& bytes) {
  WireReader in(bytes);
  const std::int64_t src_rank = in.number();
  return {src_rank, in.text()};
}

/// \throws c10::ValueError  the ranks do not want the same, or cannot.
void check_same_request(const ProcessGroup& group, const at::Tensor& tensor, const ShardingSpecPtr& spec,
                        int src_rank) {
  const auto gathered = all_gather_or_throw(group.group(), [&] {
    TORCH_CHECK_VALUE(tensor.is_contiguous(), "input tensor is not a contiguous Tensor");
    TORCH_CHECK_VALUE(spec, "Expecting ShardingSpec but got: None");
    return to_bytes({src_rank, spec->str()});
  });
  const std::string own_spec = spec->str();
  for (std::size_t i = 0; i < gathered.size(); ++i) {
    const Request other = to_request(gathered[i]);
    TORCH_CHECK_VALUE(other.src_rank == src_rank, "src_rank=", src_rank, " on rank: ", group.rank(),
                      " does not match with src_rank=", other.src_rank, " on rank: ", i);
    TORCH_CHECK_VALUE(other.spec == own_spec, "sharding_spec=", own_spec, " on rank: ", group.rank(),
                      " does not match with sharding_spec=", other.spec, " on rank: ", i);
  }
}

}  // namespace

ShardedTensor ChunkShardingSpec::shard(const at::Tensor& tensor, int src_rank, ProcessGroupPtr group) const {
  group = group_or_default(std::move(group));
  const TensorProperties properties = TensorProperties::of(tensor);
  const auto allocate = [&] {
    return ShardedTensor(shared_from_this(), tensor.sizes(),
                         {.dtype = properties.dtype,
                          .layout = properties.layout,
                          .requires_grad = properties.requires_grad,
                          .pin_memory = properties.pin_memory,
                          .process_group = group});
  };
  if (!group->is_member()) return allocate();
  ShardedTensor sharded;
  transfer(group->group(), properties.dtype, [&] {
    sharded = allocate();
    return plan_scatter(sharded, tensor, src_rank);
  });
  return sharded;
}

ShardedTensor EnumerableShardingSpec::shard(const at::Tensor&, int, ProcessGroupPtr) const {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "EnumerableShardingSpec.shard not implemented yet!");
}

ShardedTensor shard_tensor(const at::Tensor& tensor, ShardingSpecPtr spec, int src_rank, ProcessGroupPtr group) {
  group = group_or_default(std::move(group));
  if (group->is_member()) check_same_request(*group, tensor, spec, src_rank);
  return spec->shard(tensor, src_rank, std::move(group));
}

}  // namespace shard
