#include "formats/torch_ranks/device_mesh.h"

#include <fmt/format.h>

#include <algorithm>

#include "formats/torch_ranks/pickled_object.h"
#include "libshard/core/checked.h"
#include "libshard/core/error.h"
#include "libshard/core/plural.h"

namespace shard::torch_ranks {

namespace {

constexpr std::string_view kMeshClass = "DeviceMesh";
constexpr std::size_t kMaxAxes = 64;
constexpr int kMaxNesting = 8;

/// One size and stride of a layout; an axis that joins several others has several.
struct Step {
  std::int64_t size, stride;
};
using AxisSteps = std::vector<Step>;

const Value* first_of(const Value& mesh, std::string_view name, std::string_view other) {
  const Value* found = attribute(mesh, name);
  return found != nullptr ? found : attribute(mesh, other);
}

/// The elements of a small integer tensor, no more than a mesh may have ranks.
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
    throw malformed("mesh layout", "its shape and stride do not fit one another");
  }
  for (std::size_t i = 0; i < each_size.size(); ++i) append_steps(*each_size[i], *each_stride[i], steps, depth + 1);
}

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
      if (sizes.size() != strides.size()) throw malformed("mesh layout", "its shape and stride do not fit one another");
      for (std::size_t i = 0; i < sizes.size(); ++i) append_steps(*sizes[i], *strides[i], axes.emplace_back());
    }
  }
  if (axes.size() > kMaxAxes) throw malformed("mesh layout", fmt::format("it has {} axes", axes.size()));
  return axes;
}

/// The position in the rank map of the mesh's first rank: where this rank stands, less its steps on the mesh.
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

void read_mapped(Arena& arena, const Value& mesh, const ReadIntegers& integers, DeviceMeshValue& result) {
  Dims shape;
  const std::vector<std::int64_t> map = read_ranks(arena, need(mesh, "_rank_map"), integers, shape);
  const std::vector<AxisSteps> axes = read_layout(need(mesh, "_layout"));
  const auto outside = [&] {
    return malformed(kMeshClass, fmt::format("its layout leaves its {} ranks", map.size()))
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
  throw malformed(kMeshClass, fmt::format("coordinate {} is not one of its own", fmt::join(result.coordinate, ", ")))
      .of_kind(FindingKind::kRankMismatch);
}

/// Every rank once, and none past what a world has; the place says the same as the rank does, where both are there.
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
  std::size_t index = 0;
  for (std::size_t i = 0; i < result.axes.size(); ++i) {
    index = index * static_cast<std::size_t>(result.axes[i].size) + static_cast<std::size_t>(result.coordinate[i]);
  }
  if (result.ranks[index] == own->number) return;
  throw malformed(kMeshClass, "its rank is not the one at its coordinate")
      .of_kind(FindingKind::kRankMismatch)
      .expected(result.ranks[index])
      .found(own->number);
}

}  // namespace

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

}  // namespace shard::torch_ranks
