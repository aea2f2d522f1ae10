#include <fmt/format.h>

#include "formats/torch_ranks/sharded_value_maker.h"

namespace shard::torch_ranks {

namespace {

constexpr std::string_view kPackage = "torch.distributed._shard.";
constexpr std::string_view kMetadata = "torch.distributed._shard.sharded_tensor.metadata";

/// "cuda:0" of "rank:1/cuda:0", and of itself.
std::string_view device_of(std::string_view placement) { return placement.substr(placement.find('/') + 1); }

bool is_same(const ShardBox& a, const ShardBox& b) {
  return a.rank == b.rank && a.offsets == b.offsets && a.sizes == b.sizes;
}

}  // namespace

Value* ShardedValueMaker::remote_device(std::string_view placement) {
  if (placement.empty()) return none();
  Value*& known = remote_devices_[std::string(placement)];
  if (known != nullptr) return known;
  const std::optional<std::int64_t> rank = rank_of_placement(placement);
  const bool is_worker = !rank && placement.find('/') != std::string_view::npos;
  Value* state = dict({{"_worker_name", is_worker ? text(placement.substr(0, placement.find('/'))) : none()},
                       {"_rank", rank ? integer(*rank) : none()},
                       {"_device", device(device_of(placement))}});
  return known = instance(global("torch.distributed.remote_device", "_remote_device"), {}, state);
}

Value* ShardedValueMaker::shard_metadata(const ShardBox& box) {
  Value* slots = dict({{"shard_offsets", integers(ValueKind::kList, box.offsets)},
                       {"shard_sizes", integers(ValueKind::kList, box.sizes)},
                       {"placement", remote_device(box.placement)}});
  return instance(global(fmt::format("{}metadata", kPackage), "ShardMetadata"), {}, tuple({none(), slots}));
}

Value* ShardedValueMaker::tensor_properties(const ShardedTensorValue& tensor) {
  Value* strided = tuple({text("torch.strided")});
  Value* layout = make_call(arena_, global("torch.serialization", "_get_layout"), strided->items());
  Value* encoding = tuple({integer(tensor.memory_format)});
  Value* memory_format = make_call(arena_, global(kMetadata, "MEM_FORMAT_ENCODING"), encoding->items());
  Value* state = tuple({global("torch", dtype_name(tensor.dtype)), layout, boolean(tensor.requires_grad), memory_format,
                        boolean(tensor.pin_memory)});
  return instance(global(kMetadata, "TensorProperties"), {}, state);
}

// A nested class: protocol 2 pickles it as getattr(ShardedTensor, 'ProcessGroupState').
Value* ShardedValueMaker::group_state(Value* cls, const GroupState& group) {
  Value* name = tuple({cls, text("ProcessGroupState")});
  Value* nested = make_call(arena_, global("builtins", "getattr"), name->items());
  return instance(nested, {},
                  dict({{"local_rank", integer(group.local_rank)},
                        {"global_rank", integer(group.rank)},
                        {"local_world_size", integer(group.local_world_size)},
                        {"global_world_size", integer(group.world_size)}}));
}

Value* ShardedValueMaker::sharding_spec(const ShardedTensorValue& tensor, Value* shards) {
  const std::string package = fmt::format("{}sharding_spec.", kPackage);
  if (!tensor.spec.is_chunk) {
    return instance(global(package + "api", "EnumerableShardingSpec"), {}, dict({{"shards", shards}}));
  }
  std::vector<Value*> placements;
  for (const std::string_view placement : tensor.spec.placements) placements.push_back(remote_device(placement));
  return instance(
      global(package + "chunk_sharding_spec", "ChunkShardingSpec"), {},
      dict({{"dim", integer(tensor.spec.dim)}, {"placements", make_list(arena_, ValueKind::kList, placements)}}));
}

Value* ShardedValueMaker::sharded_tensor(const ShardedTensorValue& tensor) {
  Value* cls = global(fmt::format("{}sharded_tensor.api", kPackage), "ShardedTensor");
  Value* shard_class = global(fmt::format("{}sharded_tensor.shard", kPackage), "Shard");
  std::vector<Value*> all, local;
  const auto add_local = [&](Value* box) {
    Value* slots = dict({{"tensor", tensor.local[local.size()].tensor}, {"metadata", box}});
    local.push_back(instance(shard_class, {}, tuple({none(), slots})));
  };
  for (const ShardBox& box : tensor.all) {
    all.push_back(shard_metadata(box));
    if (local.size() < tensor.local.size() && is_same(tensor.local[local.size()].box, box)) add_local(all.back());
  }
  while (local.size() < tensor.local.size()) add_local(shard_metadata(tensor.local[local.size()].box));
  Value* shards = make_list(arena_, ValueKind::kList, all);
  Value* metadata = instance(global(kMetadata, "ShardedTensorMetadata"), {},
                             dict({{"shards_metadata", shards},
                                   {"size", size(tensor.shape)},
                                   {"tensor_properties", tensor_properties(tensor)}}));
  Value* state = tuple({make_list(arena_, ValueKind::kList, local), metadata, group_state(cls, tensor.group),
                        sharding_spec(tensor, shards), boolean(tensor.init_rrefs)});
  const std::string_view placement = tensor.local.empty() ? "" : tensor.local.front().box.placement;
  return wrapper(cls, tensor.dtype, tensor.shape, placement.empty() ? "cpu" : device_of(placement),
                 tensor.requires_grad, state);
}

}  // namespace shard::torch_ranks
