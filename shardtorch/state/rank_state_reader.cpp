#include <ATen/ATen.h>

#include <algorithm>
#include <span>
#include <unordered_map>

#include "formats/torch/saved_files.h"
#include "formats/torch_ranks/dtensor_reader.h"
#include "formats/torch_ranks/pickled_object.h"
#include "formats/torch_ranks/sharded_values.h"
#include "libshard/catalog/layouts/layout.h"
#include "libshard/core/box.h"
#include "libshard/io/local_disk.h"
#include "shardtorch/dtensor/dtensor.h"
#include "shardtorch/errors.h"
#include "shardtorch/sharded_tensor/sharded_tensor_impl.h"
#include "shardtorch/state/dtypes.h"
#include "shardtorch/state/state_dict.h"
#include "shardtorch/state/values.h"

namespace shard {

namespace {

using torch_ranks::ShardBox;
using torch_ranks::ShardedTensorValue;
using torch_save::TensorView;

[[noreturn]] void refuse(const std::string& why) {
  throw Error(ErrorCode::kUnsupported, "a tensor cannot be loaded").because(why);
}

/// The ranks and sizes of a process. They must be the same as when the state was saved.
void check_group(const torch_ranks::GroupState& saved, const ProcessGroup& group, const ProcessGroup& world) {
  const auto check = [](const char* what, std::int64_t at_save, std::int64_t now) {
    SHARD_CHECK(at_save == now, what, " at save time was ", at_save, ", but at load time was ", now);
  };
  check("Local rank", saved.local_rank, group.rank());
  check("Global rank", saved.rank, world.rank());
  check("Local world size", saved.local_world_size, group.size());
  check("Global world size", saved.world_size, world.size());
}

Sizes sizes_of(Dims dims) { return {dims.begin(), dims.end()}; }

/// Maps saved devices to the current ones.
class Locations {
 public:
  explicit Locations(MapLocation map) : map_(std::move(map)) {}

  at::Device device(at::Device saved) const { return map_ ? map_(saved) : saved; }
  RemoteDevice placement(std::string_view saved) const {
    RemoteDevice placement(saved);
    placement.set_device(device(placement.device()));
    return placement;
  }
  ShardMetadata shard(const ShardBox& box) const {
    ShardMetadata shard(sizes_of(box.offsets), sizes_of(box.sizes));
    if (!box.placement.empty()) shard.placement = placement(box.placement);
    return shard;
  }

 private:
  const MapLocation map_;
};

ShardedTensorMetadata metadata_of(const ShardedTensorValue& value, const Locations& locations) {
  const auto memory_format = memory_format_of(value.memory_format);
  if (!memory_format) refuse("its memory format is unknown");
  ShardedTensorMetadata metadata;
  for (const ShardBox& box : value.all) metadata.shards_metadata.push_back(locations.shard(box));
  metadata.size = sizes_of(value.shape);
  metadata.tensor_properties = {scalar_type_of(value.dtype), at::kStrided, value.requires_grad, *memory_format,
                                value.pin_memory};
  return metadata;
}

ShardingSpecPtr spec_of(const ShardedTensorValue& value, const ShardedTensorMetadata& metadata,
                        const Locations& locations) {
  if (!value.spec.is_chunk) return enumerable_spec(metadata.shards_metadata);
  std::vector<RemoteDevice> placements;
  for (const std::string_view placement : value.spec.placements) placements.push_back(locations.placement(placement));
  return chunk_spec(value.spec.dim, std::move(placements));
}

/// The existing mesh of this process for a saved DTensor.
/// \throws c10::Error  there is none, or this rank has a different coordinate on it.
dtensor::DeviceMeshPtr mesh_of(const torch_ranks::DTensorValue& value, at::DeviceType device_type) {
  const std::vector<std::int64_t> saved = mesh_ranks(value.sharding);
  const std::vector<int> ranks(saved.begin(), saved.end());
  dtensor::DeviceMeshPtr mesh = dtensor::find_device_mesh(device_type, value.sharding.mesh, ranks);
  SHARD_CHECK(mesh != nullptr, "Need to initialize the device mesh before loading DTensor: ",
              dtensor::describe(device_type, value.sharding.mesh), " of ranks ", at::ArrayRef<int>(ranks));
  const Sizes now = mesh->get_coordinate().value_or(Sizes());
  SHARD_CHECK(value.coordinate == now, "Coordinate on the mesh at save time was ", at::IntArrayRef(value.coordinate),
              ", but at load time was ", at::IntArrayRef(now));
  return mesh;
}

bool is_same_part(const RankPiece& a, const RankPiece& b) {
  const auto is_same_box = [](const Box& x, const Box& y) { return to_string(x) == to_string(y); };
  return a.local_sizes == b.local_sizes && std::ranges::equal(a.boxes, b.boxes, is_same_box);
}

/// Placements that shard in the order of the axes, with the same result as `value`, which shards in its own order.
/// Source: _convert_shard_order_to_StridedShard of torch 2.11.
std::vector<Placement> in_order_of_axes(const torch_ranks::DTensorValue& value) {
  const Sharding& sharding = value.sharding;
  std::vector<Placement> placements = sharding.placements;
  if (value.order.empty()) return placements;
  for (std::size_t i = 0; i < value.order.size(); ++i) {
    Placement& later = placements[value.order[i]];
    std::int64_t pieces = 1;  // The number of parts that earlier shardings over later axes produce.
    for (const std::size_t earlier : std::span(value.order).first(i)) {
      const bool cuts_it = placements[earlier].kind != Placement::kReplicate && placements[earlier].dim == later.dim;
      if (cuts_it && earlier > value.order[i]) pieces *= sharding.mesh[earlier].size;
    }
    if (later.kind == Placement::kShard && pieces > 1) later = {Placement::kStridedShard, later.dim, pieces};
  }
  const Sizes shape = sizes_of(value.shape);
  if (!std::ranges::equal(place(shape, sharding.mesh, sharding.placements, value.order),
                          place(shape, sharding.mesh, placements), is_same_part)) {
    refuse("the axes of its mesh shard a dimension out of order, into parts of different sizes");
  }
  return placements;
}

void check_local_size(const at::Tensor& local, const dtensor::TensorLayout& layout, std::optional<std::int64_t> index) {
  if (!index) return;
  const Sizes expected = part_of(layout, *index).local_sizes;
  if (local.sizes() == at::IntArrayRef(expected)) return;
  throw Error(ErrorCode::kCorruption, "the local tensor of a DTensor does not have the size that its placements define")
      .of_kind(FindingKind::kShapeMismatch)
      .expected(to_string(expected))
      .found(to_string(local.sizes()));
}

/// Throws torch.load's errors for tensors on devices that do not exist here.
void check_here(at::Device device) {
  SHARD_CHECK(!device.is_cuda() || at::hasCUDA(),
              "Attempting to deserialize object on a CUDA device but CUDA is not available here: ", device);
}

/// Converts one file's tree to values. Shared parts of a pickle remain shared: tensors, storages, containers.
class StateReader {
 public:
  StateReader(Catalog& catalog, torch_save::SavedFiles& files, MapLocation map_location)
      : catalog_(catalog),
        files_(files),
        locations_(std::move(map_location)),
        dtensors_(*catalog.arena, [&files](const TensorView& view) { return files.integers(kFile, view, kMaxRanks); }) {
  }

  StateDict read(const Value& root) {
    return to_state_dict(root, [this](const Value& value) { return object_of(value); });
  }

 private:
  static constexpr std::uint32_t kFile = 0;

  std::optional<c10::IValue> object_of(const Value& value) {
    const std::string_view subclass = torch_ranks::subclass_name(value);
    if (subclass == "ShardedTensor" || subclass == "DTensor") need_world(subclass);
    if (const auto sharded = torch_ranks::as_sharded_tensor(*catalog_.arena, value)) return sharded_of(*sharded);
    if (const auto distributed = dtensors_.read(value)) return dtensor_of(*distributed);
    if (!subclass.empty()) refuse("it is a " + std::string(subclass));
    if (const auto view = torch_save::as_tensor(*catalog_.arena, value)) return plain_of(*view);
    if (value.is_call_of("torch._utils", "_rebuild_parameter")) return parameter_of(value);
    if (value.is_call_of("torch", "Size")) return size_of(value);
    return std::nullopt;
  }

  static void need_world(std::string_view subclass) {
    SHARD_CHECK(has_default_group(), "Need to initialize default process group using \"init_process_group\" before ",
                "loading ", subclass);
  }

  c10::IValue size_of(const Value& value) {
    const Dims sizes = torch_ranks::dims(*catalog_.arena, value, "torch.Size");
    return c10::ivalue::Tuple::create(std::vector<c10::IValue>(sizes.begin(), sizes.end()));
  }

  at::Tensor parameter_of(const Value& value) {
    const bool is_whole = value.items().size() == 3 && value.items()[1]->kind == ValueKind::kBool;
    if (!is_whole || !mapping_items(*value.items()[2]).empty()) refuse("it is a Parameter with hooks");
    const auto view = torch_save::as_tensor(*catalog_.arena, *value.items()[0]);
    if (!view) refuse("it is a Parameter around a " + std::string(type_name(*value.items()[0])));
    return plain_of(*view).set_requires_grad(value.items()[1]->boolean());
  }

  at::Tensor sharded_of(const ShardedTensorValue& value) {
    const ProcessGroupPtr group = current_load_group();
    check_group(value.group, *group, *default_group());
    ShardedTensorMetadata metadata = metadata_of(value, locations_);
    const auto impl = make_impl(spec_of(value, metadata, locations_), metadata.size, metadata.tensor_properties);
    impl->metadata = std::move(metadata);
    impl->group = group;
    impl->init_rrefs = value.init_rrefs;
    for (const torch_ranks::LocalShard& local : value.local) {
      impl->local_shards.emplace_back(local_of(*local.tensor, value.dtype), locations_.shard(local.box));
    }
    init_remote_shards(impl);
    return at::Tensor(impl);
  }

  at::Tensor dtensor_of(const torch_ranks::DTensorValue& value) {
    const at::Device device = locations_.device(at::Device(std::string(value.device_type)));
    dtensor::DeviceMeshPtr mesh = mesh_of(value, device.type());
    dtensor::TensorLayout layout{sizes_of(value.shape), mesh->shape(), {}};
    for (const Placement& placement : in_order_of_axes(value)) {
      layout.placements.push_back(dtensor::from_catalog(placement));
    }
    const at::Tensor local = local_of(*value.local, value.dtype).set_requires_grad(value.requires_grad);
    check_local_size(local, layout, mesh->index());
    Sizes strides(layout.shape.size());
    row_major_strides(layout.shape, strides);
    return dtensor::make_dtensor(local, std::move(mesh), std::move(layout), std::move(strides)).as_tensor();
  }

  at::Tensor local_of(const Value& value, DType dtype) {
    const std::optional<TensorView> view = torch_save::as_tensor(*catalog_.arena, value);
    if (!view) refuse("a local shard of it is a " + std::string(type_name(value)));
    if (view->dtype == dtype) return plain_of(*view);
    throw Error(ErrorCode::kCorruption, "a local shard has a different dtype from the tensor")
        .of_kind(FindingKind::kDtypeMismatch)
        .expected(dtype_name(dtype))
        .found(dtype_name(view->dtype));
  }

  at::Tensor plain_of(const TensorView& view) {
    if (!view.device.empty()) refuse("it was on the device " + std::string(view.device));
    if (view.has_attributes) refuse("its Python object has attributes");
    const at::Device device = locations_.device(at::Device(std::string(view.location)));
    check_here(device);
    at::Tensor tensor = at::empty({0}, at::TensorOptions(scalar_type_of(view.dtype)).device(device));
    const auto dims = [](Dims from) { return at::IntArrayRef(from.begin(), static_cast<std::size_t>(from.size())); };
    tensor.set_(storage_of(view, device), view.first, dims(view.shape), dims(view.strides));
    return tensor.set_requires_grad(view.requires_grad);
  }

  /// Read once, as a whole.
  const at::Storage& storage_of(const TensorView& view, at::Device device) {
    const std::uint32_t number = files_.storage_of(kFile, view);
    at::Storage& known = storages_[number];
    if (known) return known;
    files_.locate({number});
    const at::Tensor bytes = at::empty({view.storage_bytes}, at::kByte);
    const auto size = static_cast<std::size_t>(view.storage_bytes);
    files_.bytes_of(number)->read_at(catalog_.storages[number].offset,
                                     {static_cast<std::byte*>(bytes.mutable_data_ptr()), size});
    return known = bytes.to(device).storage();
  }

  Catalog& catalog_;
  torch_save::SavedFiles& files_;
  const Locations locations_;
  torch_ranks::DTensorReader dtensors_;
  std::unordered_map<std::uint32_t, at::Storage> storages_;
};

template <class Add>
StateDict read_state(const SourceStore& store, MapLocation map_location, const Add& add) {
  Catalog catalog;
  torch_save::SavedFiles files(store, catalog, {});
  const Value* root = add(files);
  try {
    return StateReader(catalog, files, std::move(map_location)).read(*root);
  } catch (Error& error) {
    throw error.in_file(catalog.files[0].path);
  }
}

}  // namespace

StateDict load_state(std::string_view bytes, MapLocation map_location) {
  return read_state(posix_disk(), std::move(map_location),
                    [bytes](torch_save::SavedFiles& files) { return files.add_bytes(bytes, "state"); });
}

StateDict load_state_file(const std::string& path, const SourceStore& store, MapLocation map_location) {
  return read_state(store, std::move(map_location), [&path](torch_save::SavedFiles& files) { return files.add(path); });
}

}  // namespace shard
