#include "formats/torch_ranks/sharded_value_maker.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "libshard/catalog/layouts/placement.h"
#include "libshard/core/box.h"
#include "libshard/core/parse_number.h"

namespace shard::torch_ranks {

namespace {

constexpr std::string_view kPackage = "torch.distributed._shard.";
constexpr std::string_view kMetadata = "torch.distributed._shard.sharded_tensor.metadata";

/// "cuda:0" for "rank:1/cuda:0" and for "cuda:0".
std::string_view device_of(std::string_view placement) { return placement.substr(placement.find('/') + 1); }

/// Ignores the placement, because the same device may be written in several ways.
bool is_same(const ShardBox& a, const ShardBox& b) {
  return a.rank == b.rank && a.offsets == b.offsets && a.sizes == b.sizes;
}

std::vector<std::int64_t> sizes_of(const Sharding& sharding) {
  std::vector<std::int64_t> sizes;
  for (const MeshAxis& axis : sharding.mesh) sizes.push_back(axis.size);
  return sizes;
}

/// Row-major strides of a mesh, in ranks.
std::vector<std::int64_t> strides_of(std::span<const std::int64_t> sizes) {
  std::vector<std::int64_t> strides(sizes.size());
  row_major_strides(sizes, strides);
  return strides;
}

}  // namespace

// Equal texts, numbers, classes and devices are one value each, so that the pickle refers to them again instead of
// repeating them.
Value* ShardedValueMaker::text(std::string_view content) {
  Value*& known = texts_[content];
  if (known == nullptr) known = make_string(arena_, content);
  return known;
}

Value* ShardedValueMaker::integer(std::int64_t number) {
  Value*& known = integers_[number];
  if (known == nullptr) known = make_int(arena_, number);
  return known;
}

Value* ShardedValueMaker::boolean(bool value) { return make_bool(arena_, value); }

Value* ShardedValueMaker::global(std::string_view module, std::string_view name) {
  Value*& known = globals_[std::string(module) + " " + std::string(name)];
  if (known == nullptr) known = make_global(arena_, module, name);
  return known;
}

Value* ShardedValueMaker::integers(ValueKind kind, std::span<const std::int64_t> numbers) {
  std::vector<Value*> items;
  for (const std::int64_t number : numbers) items.push_back(integer(number));
  return make_list(arena_, kind, items);
}

Value* ShardedValueMaker::tuple(std::initializer_list<Value*> items) {
  return make_list(arena_, ValueKind::kTuple, std::span(items.begin(), items.size()));
}

Value* ShardedValueMaker::dict(const Attributes& attributes) {
  std::vector<Value*> items;
  for (const auto& [key, value] : attributes) items.insert(items.end(), {text(key), value});
  return make_list(arena_, ValueKind::kDict, items);
}

Value* ShardedValueMaker::instance(Value* cls, std::span<Value* const> arguments, Value* state) {
  Value* made = make_call(arena_, cls, arguments);
  made->is_new = true;
  made->call->state = state;
  return made;
}

Value* ShardedValueMaker::size(Dims shape) {
  Value* argument = tuple({integers(ValueKind::kTuple, shape)});
  return make_call(arena_, global("torch", "Size"), argument->items());
}

Value* ShardedValueMaker::strides(Dims shape) {
  std::int64_t numbers[kMaxDims];
  const auto used = std::span(numbers).first(static_cast<std::size_t>(shape.size()));
  row_major_strides(shape, used);
  return integers(ValueKind::kTuple, used);
}

// device('cpu'), or device('cuda', 1) for "cuda:1", as torch pickles them.
Value* ShardedValueMaker::device(std::string_view text_of_device) {
  Value*& known = devices_[text_of_device];
  if (known != nullptr) return known;
  const std::size_t colon = text_of_device.find(':');
  std::vector<Value*> arguments{text(text_of_device.substr(0, colon))};
  if (colon != std::string_view::npos) {
    std::string_view digits = text_of_device.substr(colon + 1);
    arguments.push_back(integer(take_number(digits).value_or(0)));
  }
  return known = make_call(arena_, global("torch", "device"), arguments);
}

/// The form in which torch pickles wrapper subclasses: a call of _rebuild_from_type_v2 with the arguments of
/// _rebuild_wrapper_subclass.
Value* ShardedValueMaker::wrapper(Value* cls, DType dtype, Dims shape, std::string_view device_text, bool requires_grad,
                                  Value* state) {
  Value* strided = tuple({text("torch.strided")});
  Value* layout = make_call(arena_, global("torch.serialization", "_get_layout"), strided->items());
  Value* arguments = tuple({cls, global("torch", dtype_name(dtype)), integers(ValueKind::kTuple, shape), strides(shape),
                            integer(0), layout, device(device_text), boolean(requires_grad)});
  Value* all = tuple({global("torch._utils", "_rebuild_wrapper_subclass"), cls, arguments, state});
  return make_call(arena_, global("torch._tensor", "_rebuild_from_type_v2"), all->items());
}

std::vector<std::string> GroupNames::add_mesh(const Sharding& sharding, std::int64_t index, std::int64_t world_size) {
  const std::vector<std::int64_t> sizes = sizes_of(sharding), strides = strides_of(sizes);
  const std::int64_t ranks = sizes.empty() ? 1 : sizes[0] * strides[0];
  std::vector<std::string> names;
  for (std::size_t axis = 0; axis < sizes.size(); ++axis) {
    if (sizes[axis] == world_size) {
      names.push_back("0");
      continue;
    }
    // Rows are in the order of their first ranks, so the number of this rank's row is its index without the axis.
    const std::int64_t row = index / (strides[axis] * sizes[axis]) * strides[axis] + index % strides[axis];
    names.push_back(std::to_string(next_ + row));
    next_ += ranks / sizes[axis];
  }
  return names;
}

Value* ShardedValueMaker::mesh_layout(std::span<const std::int64_t> sizes, std::span<const std::int64_t> strides,
                                      LayoutForm form) {
  const auto make = [this](std::string_view name, const Attributes& state) {
    return instance(global("torch.distributed._mesh_layout", name), {}, dict(state));
  };
  const auto pair = [&](std::string_view name, std::span<const std::int64_t> shape,
                        std::span<const std::int64_t> stride) {
    return make(name, {{"shape", integers(ValueKind::kTuple, shape)}, {"stride", integers(ValueKind::kTuple, stride)}});
  };
  if (form == LayoutForm::kPair) return pair("_MeshLayout", sizes, strides);
  std::vector<Value*> axes;
  for (std::size_t axis = 0; axis < sizes.size(); ++axis) {
    // An axis of size 1 has no dimension, so that equal layouts are equal values.
    const std::size_t dims = sizes[axis] == 1 ? 0 : 1;
    axes.push_back(pair("_FlatLayout", sizes.subspan(axis, dims), strides.subspan(axis, dims)));
  }
  return make("_MeshLayout", {{"axes", make_list(arena_, ValueKind::kTuple, axes)}});
}

Value* ShardedValueMaker::device_mesh(const PickledMesh& mesh) {
  const Sharding& sharding = *mesh.sharding;
  const std::vector<std::int64_t> sizes = sizes_of(sharding), strides = strides_of(sizes);
  std::vector<std::int64_t> coordinate;
  std::vector<Value*> names, groups;
  for (std::size_t axis = 0; axis < sizes.size(); ++axis) {
    coordinate.push_back(mesh.index / strides[axis] % sizes[axis]);
    names.push_back(text(sharding.mesh[axis].name));
  }
  for (const std::string& group : mesh.groups) groups.push_back(text(group));
  const std::vector<std::int64_t> ranks = mesh_ranks(sharding);
  Attributes state{
      {"_device_type", text(mesh.device_type)},
      {"_layout", mesh_layout(sizes, strides, mesh.layout)},
      {"_rank_map", mesh.ranks},
      {"_mesh_dim_names", has_axis_names(sharding.mesh) ? make_list(arena_, ValueKind::kTuple, names) : none()},
      {"_root_mesh", none()},
      {"_flatten_rank_map", integers(ValueKind::kTuple, ranks)},
      {"_thread_id", none()},
      {"_flatten_mapping", make_list(arena_, ValueKind::kDict, {})},
      {"_dim_group_names", make_list(arena_, ValueKind::kList, groups)},
      {"_rank", integer(ranks[static_cast<std::size_t>(mesh.index)])},
      {"_coordinate_on_dim", integers(ValueKind::kTuple, coordinate)},
      {"_hash", none()}};
  if (mesh.layout == LayoutForm::kAxes) state.emplace_back("_preserve_rank_order", boolean(false));
  return instance(global("torch.distributed.device_mesh", "DeviceMesh"), {}, dict(state));
}

Value* ShardedValueMaker::placement(const Placement& placement) {
  const auto make = [&](std::string_view name, Value* state) {
    return instance(global("torch.distributed.tensor.placement_types", name), {}, state);
  };
  switch (placement.kind) {
    case Placement::kReplicate:
      return make("Replicate", dict({}));
    case Placement::kShard:
      return make("Shard", dict({{"dim", integer(placement.dim)}}));
    case Placement::kStridedShard:
      break;
  }
  return make("_StridedShard",
              dict({{"dim", integer(placement.dim)}, {"split_factor", integer(placement.split_factor)}}));
}

// The mesh axes that shard each dimension.
Value* ShardedValueMaker::shard_order(std::span<const Placement> placements) {
  std::map<int, std::vector<std::int64_t>> axes_of;
  for (std::size_t axis = 0; axis < placements.size(); ++axis) {
    if (placements[axis].kind == Placement::kReplicate) continue;
    axes_of[placements[axis].dim].push_back(static_cast<std::int64_t>(axis));
  }
  std::vector<Value*> entries;
  for (const auto& [dim, axes] : axes_of) {
    Value* arguments = tuple({integer(dim), integers(ValueKind::kTuple, axes)});
    entries.push_back(
        instance(global("torch.distributed.tensor._dtensor_spec", "ShardOrderEntry"), arguments->items(), nullptr));
  }
  return make_list(arena_, ValueKind::kTuple, entries);
}

Value* ShardedValueMaker::dtensor(const DTensorValue& tensor, Value* mesh) {
  const std::vector<Placement>& placements = tensor.sharding.placements;
  std::vector<Value*> places;
  for (const Placement& each : placements) places.push_back(placement(each));
  // Follows DTensorSpec.__post_init__: strided shards record the order themselves.
  const bool is_strided =
      std::ranges::any_of(placements, [](const Placement& each) { return each.kind == Placement::kStridedShard; });
  Value* meta = tuple({size(tensor.shape), strides(tensor.shape), global("torch", dtype_name(tensor.dtype))});
  Value* tensor_meta = instance(global("torch.distributed.tensor._dtensor_spec", "TensorMeta"), meta->items(), nullptr);
  Value* spec = instance(global("torch.distributed.tensor._dtensor_spec", "DTensorSpec"), {},
                         dict({{"mesh", mesh},
                               {"placements", make_list(arena_, ValueKind::kTuple, places)},
                               {"tensor_meta", tensor_meta},
                               {"shard_order", is_strided ? none() : shard_order(placements)},
                               {"use_strided_shard_as_shard_order", boolean(is_strided)},
                               {"_hash", none()}}));
  Value* slots = dict({{"_local_tensor", tensor.local}, {"_spec", spec}});
  Value* attributes = tensor.is_parameter ? dict({{"_is_param", boolean(true)}}) : none();
  Value* cls = global("torch.distributed.tensor", "DTensor");
  return wrapper(cls, tensor.dtype, tensor.shape, tensor.device_type, tensor.requires_grad, tuple({attributes, slots}));
}

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

// A nested class, which protocol 2 pickles as getattr(ShardedTensor, 'ProcessGroupState').
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
