#include <fmt/format.h>

#include "formats/torch_ranks/sharded_value_maker.h"

namespace shard::torch_ranks {

namespace {

constexpr std::string_view kPackage = "torch.distributed._shard.";
constexpr std::string_view kMetadata = "torch.distributed._shard.sharded_tensor.metadata";

std::string_view device_of(const ShardBox& box) { return box.placement.substr(box.placement.find('/') + 1); }

bool is_same(const ShardBox& a, const ShardBox& b) {
  return a.rank == b.rank && a.offsets == b.offsets && a.sizes == b.sizes;
}

}  // namespace

Value* ShardedValueMaker::remote_device(const ShardBox& box) {
  Value*& known = remote_devices_[std::string(box.placement)];
  if (known != nullptr) return known;
  Value* state = dict({{"_worker_name", none()}, {"_rank", integer(box.rank)}, {"_device", device(device_of(box))}});
  return known = instance(global("torch.distributed.remote_device", "_remote_device"), {}, state);
}

Value* ShardedValueMaker::shard_metadata(const ShardBox& box) {
  Value* slots = dict({{"shard_offsets", integers(ValueKind::kList, box.offsets)},
                       {"shard_sizes", integers(ValueKind::kList, box.sizes)},
                       {"placement", remote_device(box)}});
  return instance(global(fmt::format("{}metadata", kPackage), "ShardMetadata"), {}, tuple({none(), slots}));
}

Value* ShardedValueMaker::tensor_properties(const ShardedTensorValue& tensor) {
  Value* strided = tuple({text("torch.strided")});
  Value* layout = make_call(arena_, global("torch.serialization", "_get_layout"), strided->items);
  Value* contiguous = tuple({integer(0)});
  Value* memory_format = make_call(arena_, global(kMetadata, "MEM_FORMAT_ENCODING"), contiguous->items);
  Value* state = tuple({global("torch", dtype_name(tensor.dtype)), layout, boolean(tensor.requires_grad), memory_format,
                        boolean(false)});
  return instance(global(kMetadata, "TensorProperties"), {}, state);
}

// A nested class: protocol 2 pickles it as getattr(ShardedTensor, 'ProcessGroupState').
Value* ShardedValueMaker::group_state(Value* cls, const GroupState& group) {
  Value* name = tuple({cls, text("ProcessGroupState")});
  Value* nested = make_call(arena_, global("builtins", "getattr"), name->items);
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
  for (const ShardBox& box : tensor.all) placements.push_back(remote_device(box));
  return instance(
      global(package + "chunk_sharding_spec", "ChunkShardingSpec"), {},
      dict({{"dim", integer(tensor.spec.dim)}, {"placements", make_list(arena_, ValueKind::kList, placements)}}));
}

Value* ShardedValueMaker::sharded_tensor(const ShardedTensorValue& tensor) {
  Value* cls = global(fmt::format("{}sharded_tensor.api", kPackage), "ShardedTensor");
  Value* shard_class = global(fmt::format("{}sharded_tensor.shard", kPackage), "Shard");
  std::vector<Value*> all, local;
  for (const ShardBox& box : tensor.all) {
    all.push_back(shard_metadata(box));
    if (local.size() == tensor.local.size() || !is_same(tensor.local[local.size()].box, box)) continue;
    Value* slots = dict({{"tensor", tensor.local[local.size()].tensor}, {"metadata", all.back()}});
    local.push_back(instance(shard_class, {}, tuple({none(), slots})));
  }
  Value* shards = make_list(arena_, ValueKind::kList, all);
  Value* metadata = instance(global(kMetadata, "ShardedTensorMetadata"), {},
                             dict({{"shards_metadata", shards},
                                   {"size", size(tensor.shape)},
                                   {"tensor_properties", tensor_properties(tensor)}}));
  Value* state = tuple({make_list(arena_, ValueKind::kList, local), metadata, group_state(cls, tensor.group),
                        sharding_spec(tensor, shards), boolean(false)});
  const std::string_view device_text = tensor.local.empty() ? "cpu" : device_of(tensor.local.front().box);
  return wrapper(cls, tensor.dtype, tensor.shape, device_text, tensor.requires_grad, state);
}

}  // namespace shard::torch_ranks
