#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "formats/torch_ranks/dtensor_reader.h"
#include "formats/torch_ranks/pickled_object.h"
#include "formats/torch_ranks/shardings.h"
#include "libshard/core/box.h"
#include "libshard/core/error.h"
#include "libshard/core/plural.h"

namespace shard::torch_ranks {

namespace {

constexpr std::string_view kDTensorClass = "DTensor";

Value& need_state(const Subclass& from, std::string_view name) {
  Value* found = pickle::state_attribute(*from.state, name);
  if (found == nullptr) throw malformed(from.name, fmt::format("it has no attribute '{}'", name));
  return *found;
}

/// A result that was still under way when it was saved lies in a wrapper of its own.
Value& local_tensor(const Subclass& from) {
  Value& local = need_state(from, "_local_tensor");
  if (subclass_name(local) != "AsyncCollectiveTensor") return local;
  return need_state(subclass(local), "elem");
}

int read_dim(const Value& placement, int dimensions) {
  const Value& dim = need(placement, "dim");
  const bool fits = dim.kind == ValueKind::kInt && dim.number >= -dimensions && dim.number < dimensions;
  if (fits) return static_cast<int>(dim.number < 0 ? dim.number + dimensions : dim.number);
  throw malformed("placement", "its dim is not a dimension of the tensor")
      .of_kind(FindingKind::kShapeMismatch)
      .expected(fmt::format("one of {}", dimensions))
      .found(dim.kind == ValueKind::kInt ? std::to_string(dim.number) : std::string(type_name(dim)));
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
        .because("every rank holds a part of each element's value, still to be reduced")
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
    throw malformed(kDTensorClass, "its spec says another shape than the tensor")
        .of_kind(FindingKind::kShapeMismatch)
        .expected(to_string(tensor.shape))
        .found(to_string(shape));
  }
  const DType stated = dtype(*value->items()[2], "TensorMeta");
  if (stated != tensor.dtype) {
    throw malformed(kDTensorClass, "its spec says another dtype than the tensor")
        .of_kind(FindingKind::kDtypeMismatch)
        .expected(dtype_name(tensor.dtype))
        .found(dtype_name(stated));
  }
}

/// The order of cutting, from ShardOrderEntry(tensor_dim, mesh_dims) for each dimension that is cut; torch 2.10 on.
/// Empty: slowest axis first. Strided shards say the order themselves.
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
      if (!fits) throw malformed("ShardOrderEntry", fmt::format("axis {} does not cut dimension {}", axis, dim));
      order.push_back(index);
    }
  }
  if (is_usual) return {};
  for (std::size_t axis = 0; axis < axes; ++axis) {
    if (std::ranges::find(order, axis) == order.end()) order.push_back(axis);
  }
  return order;
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
  arena_.charge(Charge::kRanks, std::ssize(mesh.ranks));  // They are copied.
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

std::optional<DTensorValue> as_dtensor(Arena& arena, const Value& value, const ReadIntegers& integers) {
  return DTensorReader(arena, integers).read(value);
}

}  // namespace shard::torch_ranks
