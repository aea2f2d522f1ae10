#include "formats/torch_ranks/dtensor_reader.h"

#include <fmt/format.h>

#include <algorithm>

#include "formats/torch_ranks/pickled_object.h"
#include "formats/torch_ranks/shardings.h"
#include "libshard/core/box.h"
#include "libshard/core/checked.h"
#include "libshard/core/error.h"
#include "libshard/core/short_text.h"

namespace shard::torch_ranks {

namespace {

constexpr std::string_view kDTensorClass = "DTensor";

Value& need_state(const Subclass& from, std::string_view name) {
  Value* found = pickle::state_attribute(*from.state, name);
  if (found == nullptr) throw malformed(from.name, fmt::format("it has no attribute '{}'", name));
  return *found;
}

/// The local tensor. A result that was not finished when it was saved is inside a further wrapper.
Value& local_tensor(const Subclass& from) {
  Value& local = need_state(from, "_local_tensor");
  if (subclass_name(local) != "AsyncCollectiveTensor") return local;
  return need_state(subclass(local), "elem");
}

int read_dim(const Value& placement, int dimensions) {
  const int dim = dim_of(placement, dimensions, "placement");
  return dim < 0 ? dim + dimensions : dim;
}

Placement read_placement(const Value& value, int dimensions) {
  const std::string_view name = class_name(value);
  if (name == "Replicate") return {};
  if (name == "Shard") return {Placement::kShard, read_dim(value, dimensions), 1};
  if (name == "_StridedShard") {
    const std::int64_t factor = natural(need(value, "split_factor"), "split factor");
    if (factor < 1) throw malformed("placement", "its split factor is 0");
    return {Placement::kStridedShard, read_dim(value, dimensions), factor};
  }
  if (name.ends_with("Partial")) {
    throw Error(ErrorCode::kUnsupported, fmt::format("the placement {} is not supported", name))
        .because("every rank has a part of each element's value, still to be reduced")
        .hint("redistribute the tensor to Shard or Replicate before it is saved");
  }
  throw malformed("placement", "it is not one of torch's").found(type_name(value));
}

void read_placements(const Value& value, DTensorValue& tensor) {
  const std::span<Value* const> items = sequence(value, "DTensorSpec's placements");
  if (items.size() != tensor.sharding.mesh.size()) {
    throw malformed("DTensorSpec", fmt::format("it has {} on a mesh of {}", plural(std::ssize(items), "placement"),
                                               plural(std::ssize(tensor.sharding.mesh), "axis", "axes")))
        .of_kind(FindingKind::kShapeMismatch)
        .expected(static_cast<std::int64_t>(tensor.sharding.mesh.size()))
        .found(static_cast<std::int64_t>(items.size()));
  }
  for (const Value* item : items) tensor.sharding.placements.push_back(read_placement(*item, tensor.shape.size()));
}

/// TensorMeta(shape, stride, dtype), a named tuple.
void check_meta(Arena& arena, const Value* value, const DTensorValue& tensor) {
  if (value == nullptr || value->kind == ValueKind::kNone) return;
  need_class(*value, "TensorMeta");
  if (value->items().size() < 3) throw malformed("TensorMeta", fmt::format("it has {} fields", value->items().size()));
  const Dims shape = dims(arena, *value->items()[0], "TensorMeta's shape");
  if (!(shape == tensor.shape)) {
    throw malformed(kDTensorClass, "the shape in its spec is not the tensor's")
        .of_kind(FindingKind::kShapeMismatch)
        .expected(to_string(tensor.shape))
        .found(to_string(shape));
  }
  const DType stated = dtype(*value->items()[2], "TensorMeta");
  if (stated != tensor.dtype) {
    throw malformed(kDTensorClass, "the dtype in its spec is not the tensor's")
        .of_kind(FindingKind::kDtypeMismatch)
        .expected(dtype_name(tensor.dtype))
        .found(dtype_name(stated));
  }
}

/// The order of sharding, from ShardOrderEntry(tensor_dim, mesh_dims) for each sharded dimension; since torch 2.10.
/// Empty: slowest axis first. Strided shards record the order themselves.
std::vector<std::size_t> read_order(const Value* value, const Sharding& sharding) {
  const std::size_t axes = sharding.mesh.size();
  const bool is_strided = std::ranges::any_of(
      sharding.placements, [](const Placement& placement) { return placement.kind == Placement::kStridedShard; });
  if (value == nullptr || value->kind == ValueKind::kNone || is_strided) return {};
  std::vector<std::size_t> order;
  bool is_usual = true;
  for (const Value* entry : sequence(*value, "DTensorSpec's shard order")) {
    if (entry->items().size() != 2) throw malformed("ShardOrderEntry", "it is not a pair");
    const std::int64_t dim = natural(*entry->items()[0], "ShardOrderEntry's dimension");
    const std::vector<std::int64_t> cuts = naturals(*entry->items()[1], "ShardOrderEntry's axes");
    is_usual = is_usual && std::ranges::is_sorted(cuts);
    for (const std::int64_t axis : cuts) {
      const auto index = static_cast<std::size_t>(axis);
      const bool fits = index < axes && sharding.placements[index].kind == Placement::kShard &&
                        sharding.placements[index].dim == dim && std::ranges::find(order, index) == order.end();
      if (!fits) throw malformed("ShardOrderEntry", fmt::format("axis {} does not shard dimension {}", axis, dim));
      order.push_back(index);
    }
  }
  if (is_usual) return {};
  for (std::size_t axis = 0; axis < axes; ++axis) {
    if (std::ranges::find(order, axis) == order.end()) order.push_back(axis);
  }
  return order;
}

constexpr std::string_view kMeshClass = "DeviceMesh";
constexpr std::size_t kMaxAxes = 64;
constexpr int kMaxNesting = 8;

/// One size and stride of a layout; an axis that merges several others has several.
struct Step {
  std::int64_t size, stride;
};
using AxisSteps = std::vector<Step>;

const Value* first_of(const Value& mesh, std::string_view name, std::string_view other) {
  const Value* found = attribute(mesh, name);
  return found != nullptr ? found : attribute(mesh, other);
}

/// The elements of a small integer tensor, at most as many as a mesh may have ranks.
std::vector<std::int64_t> read_ranks(Arena& arena, const Value& value, const ReadIntegers& integers, Dims& shape) {
  const std::optional<torch_save::TensorView> view = torch_save::as_tensor(arena, value);
  if (!view) throw malformed(kMeshClass, "its ranks are not a tensor").found(type_name(value));
  const std::int64_t count = checked_numel(view->shape);
  if (count < 1 || count > kMaxRanks) {
    throw malformed(kMeshClass, fmt::format("it has {} ranks", count))
        .of_kind(FindingKind::kWorldSizeMismatch)
        .expected(fmt::format("1 to {}", kMaxRanks))
        .found(count);
  }
  shape = view->shape;
  return integers(*view);
}

/// Flattens nested sizes and strides, which have the same form, to steps.
void append_steps(const Value& sizes, const Value& strides, AxisSteps& steps, int depth = 0) {
  if (sizes.kind == ValueKind::kInt) {
    const std::int64_t size = natural(sizes, "mesh layout's size");
    if (size < 1) throw malformed("mesh layout", "a size is 0");
    if (steps.size() == kMaxAxes) throw malformed("mesh layout", "it has too many sizes");
    return steps.push_back({size, natural(strides, "mesh layout's stride")});
  }
  const auto each_size = sequence(sizes, "mesh layout's shape"),
             each_stride = sequence(strides, "mesh layout's stride");
  if (each_size.size() != each_stride.size() || depth == kMaxNesting) {
    throw malformed("mesh layout", "its shape and stride do not match");
  }
  for (std::size_t i = 0; i < each_size.size(); ++i) append_steps(*each_size[i], *each_stride[i], steps, depth + 1);
}

/// The steps of each axis: from a `_FlatLayout` per axis (torch 2.15), or from one pair of tuples (2.11).
std::vector<AxisSteps> read_layout(const Value& layout) {
  std::vector<AxisSteps> axes;
  if (const Value* list = attribute(layout, "axes")) {
    for (const Value* axis : sequence(*list, "mesh layout's axes")) {
      append_steps(need(*axis, "shape"), need(*axis, "stride"), axes.emplace_back());
    }
  } else {
    const Value &shape = need(layout, "shape"), &stride = need(layout, "stride");
    if (shape.kind == ValueKind::kInt) {
      append_steps(shape, stride, axes.emplace_back());
    } else {
      const auto sizes = sequence(shape, "mesh layout's shape"), strides = sequence(stride, "mesh layout's stride");
      if (sizes.size() != strides.size()) throw malformed("mesh layout", "its shape and stride do not match");
      for (std::size_t i = 0; i < sizes.size(); ++i) append_steps(*sizes[i], *strides[i], axes.emplace_back());
    }
  }
  if (axes.size() > kMaxAxes) throw malformed("mesh layout", fmt::format("it has {} axes", axes.size()));
  return axes;
}

/// The position of the mesh's first rank in the rank map: this rank's position minus its steps on the mesh.
std::int64_t first_position(const Value& mesh, const std::vector<std::int64_t>& map,
                            const std::vector<AxisSteps>& axes) {
  const Value* own = attribute(mesh, "_rank");
  if (own == nullptr || own->kind != ValueKind::kInt) return 0;
  const auto found = std::ranges::find(map, own->number);
  if (found == map.end()) return 0;
  const std::int64_t position = found - map.begin();
  std::int64_t steps = 0;
  for (const AxisSteps& axis : axes) {
    for (const Step& step : axis) {
      if (step.stride > 0) steps += position / step.stride % step.size * step.stride;
    }
  }
  return position - steps;
}

/// Extends each position by all multiples of the stride. The last step varies fastest, so the result is row-major.
void append_positions(std::vector<std::int64_t>& positions, const Step& step) {
  const std::size_t count = positions.size();
  if (checked_mul(static_cast<std::int64_t>(count), step.size) > kMaxRanks) {
    throw malformed(kMeshClass, fmt::format("it has more than {} ranks", kMaxRanks))
        .of_kind(FindingKind::kWorldSizeMismatch);
  }
  std::vector<std::int64_t> all;
  all.reserve(count * static_cast<std::size_t>(step.size));
  for (const std::int64_t position : positions) {
    for (std::int64_t i = 0; i < step.size; ++i) all.push_back(checked_add(position, checked_mul(i, step.stride)));
  }
  positions = std::move(all);
}

/// Computes the mesh's ranks: positions in the root mesh's flat map, by the sizes and strides of the layout.
void read_mapped(Arena& arena, const Value& mesh, const ReadIntegers& integers, DeviceMeshValue& result) {
  Dims shape;
  const std::vector<std::int64_t> map = read_ranks(arena, need(mesh, "_rank_map"), integers, shape);
  const std::vector<AxisSteps> axes = read_layout(need(mesh, "_layout"));
  const auto outside = [&] {
    return malformed(kMeshClass, fmt::format("its layout refers to more than its {} ranks", map.size()))
        .of_kind(FindingKind::kOutOfBounds);
  };
  std::vector<std::int64_t> positions{first_position(mesh, map, axes)};
  if (positions.front() < 0) throw outside();
  for (const AxisSteps& axis : axes) {
    std::int64_t size = 1;
    for (const Step& step : axis) {
      append_positions(positions, step);
      size *= step.size;
    }
    result.axes.push_back({"", size});
  }
  for (const std::int64_t position : positions) {
    if (position >= std::ssize(map)) throw outside();
    result.ranks.push_back(map[static_cast<std::size_t>(position)]);
  }
  result.world_size = std::ssize(map);
}

void read_names(const Value& mesh, DeviceMeshValue& result) {
  const Value* names = first_of(mesh, "mesh_dim_names", "_mesh_dim_names");
  if (names == nullptr || names->kind == ValueKind::kNone) return;
  const std::span<Value* const> items = sequence(*names, "DeviceMesh's names");
  if (items.size() != result.axes.size()) {
    throw malformed(kMeshClass, fmt::format("it has {} and {}", plural(std::ssize(result.axes), "axis", "axes"),
                                            plural(std::ssize(items), "name")))
        .of_kind(FindingKind::kShapeMismatch);
  }
  for (std::size_t i = 0; i < items.size(); ++i) result.axes[i].name = string(*items[i], "DeviceMesh's name");
}

void read_coordinate(const Value& mesh, DeviceMeshValue& result) {
  const Value* value = attribute(mesh, "_coordinate_on_dim");
  if (value == nullptr || value->kind == ValueKind::kNone) return;
  result.coordinate = naturals(*value, "DeviceMesh's coordinate");
  bool fits = result.coordinate.size() == result.axes.size();
  for (std::size_t i = 0; fits && i < result.axes.size(); ++i) fits = result.coordinate[i] < result.axes[i].size;
  if (fits) return;
  throw malformed(kMeshClass, fmt::format("coordinate {} is not in it", fmt::join(result.coordinate, ", ")))
      .of_kind(FindingKind::kRankMismatch);
}

/// Checks that each rank occurs once and is in the world, and that the coordinate and the rank agree if both are
/// recorded.
void check_ranks(const Value& mesh, const DeviceMeshValue& result) {
  std::vector<std::int64_t> sorted = result.ranks;
  std::ranges::sort(sorted);
  if (sorted.front() < 0 || sorted.back() >= kMaxRanks) {
    throw malformed(kMeshClass, fmt::format("rank {} is on it", sorted.front() < 0 ? sorted.front() : sorted.back()))
        .of_kind(FindingKind::kRankMismatch)
        .expected(fmt::format("0 to {}", kMaxRanks - 1));
  }
  if (const auto twice = std::ranges::adjacent_find(sorted); twice != sorted.end()) {
    throw malformed(kMeshClass, fmt::format("rank {} is on it twice", *twice)).of_kind(FindingKind::kRankMismatch);
  }
  const Value* own = attribute(mesh, "_rank");
  if (own == nullptr || own->kind != ValueKind::kInt || result.coordinate.empty()) return;
  const std::size_t index = index_on_mesh(result.axes, result.coordinate);
  if (result.ranks[index] == own->number) return;
  throw malformed(kMeshClass, "its rank is not the one at its coordinate")
      .of_kind(FindingKind::kRankMismatch)
      .expected(result.ranks[index])
      .found(own->number);
}

/// \throws Error kCorruption  a malformed mesh: kinds bad_pickle, rank_mismatch, world_size_mismatch.
DeviceMeshValue read_device_mesh(Arena& arena, const Value& value, const ReadIntegers& integers) {
  need_class(value, kMeshClass);
  DeviceMeshValue mesh;
  if (const Value* ranks = attribute(value, "mesh")) {
    Dims shape;
    mesh.ranks = read_ranks(arena, *ranks, integers, shape);
    for (const std::int64_t size : shape) mesh.axes.push_back({"", size});
  } else {
    read_mapped(arena, value, integers, mesh);
  }
  read_names(value, mesh);
  read_coordinate(value, mesh);
  check_ranks(value, mesh);
  mesh.world_size = std::max(mesh.world_size, *std::ranges::max_element(mesh.ranks) + 1);
  if (const Value* type = first_of(value, "device_type", "_device_type")) {
    mesh.device_type = string(*type, "DeviceMesh's device type");
  }
  return mesh;
}

}  // namespace

const DeviceMeshValue& DTensorReader::mesh_of(const Value& value) {
  auto& mesh = meshes_[&value];
  if (mesh == nullptr) {
    mesh = std::make_unique<DeviceMeshValue>(read_device_mesh(arena_, value, integers_));
    if (is_counting(mesh->ranks)) mesh->ranks.clear();
  }
  return *mesh;
}

std::optional<DTensorValue> DTensorReader::read(const Value& value) {
  if (subclass_name(value) != kDTensorClass) return std::nullopt;
  const Subclass from = subclass(value);
  const Wrapper whole = wrapper(arena_, from);
  DTensorValue tensor;
  tensor.dtype = whole.dtype;
  tensor.shape = whole.shape;
  tensor.requires_grad = whole.requires_grad;
  tensor.local = &local_tensor(from);
  const Value& spec = need_state(from, "_spec");
  need_class(spec, "DTensorSpec");
  const DeviceMeshValue& mesh = mesh_of(need(spec, "mesh"));
  arena_.charge(Charge::kRanks, std::ssize(mesh.ranks));  // The ranks are copied.
  tensor.sharding.mesh = mesh.axes;
  tensor.sharding.ranks = mesh.ranks;
  tensor.coordinate = mesh.coordinate;
  tensor.world_size = mesh.world_size;
  tensor.device_type = mesh.device_type;
  read_placements(need(spec, "placements"), tensor);
  check_meta(arena_, attribute(spec, "tensor_meta"), tensor);
  tensor.order = read_order(attribute(spec, "shard_order"), tensor.sharding);
  return tensor;
}

}  // namespace shard::torch_ranks
