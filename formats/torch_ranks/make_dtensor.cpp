#include <algorithm>
#include <map>

#include "formats/torch_ranks/sharded_value_maker.h"
#include "formats/torch_ranks/shardings.h"

namespace shard::torch_ranks {

namespace {

std::vector<std::int64_t> sizes_of(const Sharding& sharding) {
  std::vector<std::int64_t> sizes;
  for (const MeshAxis& axis : sharding.mesh) sizes.push_back(axis.size);
  return sizes;
}

std::vector<std::int64_t> strides_of(std::span<const std::int64_t> sizes) {
  std::vector<std::int64_t> strides(sizes.size(), 1);
  for (std::size_t axis = sizes.size(); axis-- > 1;) strides[axis - 1] = strides[axis] * sizes[axis];
  return strides;
}

}  // namespace

std::vector<std::string> GroupNames::add_mesh(const Sharding& sharding, std::int64_t index, std::int64_t world_size) {
  const std::vector<std::int64_t> sizes = sizes_of(sharding), strides = strides_of(sizes);
  const std::int64_t ranks = sizes.empty() ? 1 : sizes[0] * strides[0];
  std::vector<std::string> names;
  for (std::size_t axis = 0; axis < sizes.size(); ++axis) {
    if (sizes[axis] == world_size) {
      names.push_back("0");
      continue;
    }
    // Rows in the order of their first ranks: the number of this rank's row is its index without the axis.
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
    const std::size_t dims = sizes[axis] == 1 ? 0 : 1;  // Such an axis has none: equal layouts are to be equal values.
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
  const bool has_names = std::ranges::none_of(sharding.mesh, [](const MeshAxis& axis) { return axis.name.empty(); });
  const std::vector<std::int64_t> ranks = mesh_ranks(sharding);
  Attributes state{{"_device_type", text(mesh.device_type)},
                   {"_layout", mesh_layout(sizes, strides, mesh.layout)},
                   {"_rank_map", mesh.ranks},
                   {"_mesh_dim_names", has_names ? make_list(arena_, ValueKind::kTuple, names) : none()},
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

// The mesh axes that cut each dimension.
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
  // As DTensorSpec.__post_init__: strided shards say the order themselves.
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

}  // namespace shard::torch_ranks
