#include "shardtorch/dtensor/device_mesh.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>
#include <mutex>
#include <numeric>
#include <utility>

#include "libshard/core/box.h"
#include "shardtorch/errors.h"

namespace shard::dtensor {

namespace {

/// The number of ranks. Checks each size before it is multiplied, so that the product cannot overflow.
std::int64_t product(const std::vector<MeshAxis>& axes) {
  std::int64_t ranks = 1;
  for (const MeshAxis& axis : axes) {
    SHARD_CHECK_VALUE(axis.size >= 1, "a mesh dimension must have a rank, found size ", axis.size);
    SHARD_CHECK_VALUE(axis.size <= kMaxRanks / ranks, "a mesh has at most ", kMaxRanks, " ranks");
    ranks *= axis.size;
  }
  return ranks;
}

void check_names(const std::vector<MeshAxis>& axes) {
  std::vector<std::string> names;
  for (const MeshAxis& axis : axes) {
    SHARD_CHECK_VALUE(axis.name.empty() == axes.front().name.empty(),
                      "all dimensions of a mesh have names, or none has");
    SHARD_CHECK_VALUE(axis.name.empty() || std::ranges::find(names, axis.name) == names.end(),
                      "Each mesh_dim_name must be unique, found '", axis.name, "' twice");
    names.push_back(axis.name);
  }
}

void check_ranks(std::vector<int> ranks, const ProcessGroup& world) {
  std::ranges::sort(ranks);
  SHARD_CHECK_VALUE(ranks.front() >= 0 && ranks.back() < world.size(), "the ranks of a mesh should be within 0 to ",
                    world.size() - 1, ", found ", ranks.front() < 0 ? ranks.front() : ranks.back());
  const auto twice = std::ranges::adjacent_find(ranks);
  SHARD_CHECK_VALUE(twice == ranks.end(), "rank ", *twice, " is on the mesh twice");
}

/// The existing meshes, for find_device_mesh.
struct Registry {
  std::mutex mutex;
  std::vector<std::weak_ptr<const DeviceMesh>> meshes;
};
Registry& registry() {
  static Registry instance;
  return instance;
}

void enter(const DeviceMeshPtr& mesh) {
  const std::scoped_lock lock(registry().mutex);
  std::erase_if(registry().meshes, [](const auto& known) { return known.expired(); });
  registry().meshes.push_back(mesh);
}

}  // namespace

DeviceMesh::DeviceMesh(at::DeviceType device_type, std::vector<int> ranks, std::vector<MeshAxis> axes,
                       ProcessGroupPtr world)
    : device_type_(device_type), ranks_(std::move(ranks)), axes_(std::move(axes)), world_(std::move(world)) {
  const auto own = std::ranges::find(ranks_, world_->rank());
  if (own != ranks_.end()) index_ = own - ranks_.begin();
}

std::int64_t DeviceMesh::size(std::size_t axis) const {
  check_axis(axis);
  return axes_[axis].size;
}

std::vector<std::int64_t> DeviceMesh::shape() const {
  std::vector<std::int64_t> sizes;
  for (const MeshAxis& axis : axes_) sizes.push_back(axis.size);
  return sizes;
}

std::vector<std::string> DeviceMesh::mesh_dim_names() const {
  std::vector<std::string> names;
  for (const MeshAxis& axis : axes_) {
    if (!axis.name.empty()) names.push_back(axis.name);
  }
  return names;
}

std::size_t DeviceMesh::axis(std::string_view name) const {
  const auto found = std::ranges::find(axes_, name, &MeshAxis::name);
  SHARD_CHECK_VALUE(!name.empty() && found != axes_.end(), str(), " has no dimension '", name, "'");
  return static_cast<std::size_t>(found - axes_.begin());
}

at::Device DeviceMesh::device() const {
  if (device_type_ == at::kCPU) return at::kCPU;
  return c10::impl::getDeviceGuardImpl(device_type_)->getDevice();
}

std::optional<std::vector<std::int64_t>> DeviceMesh::get_coordinate() const {
  if (!index_) return std::nullopt;
  std::vector<std::int64_t> coordinate(axes_.size());
  set_index<std::int64_t>(coordinate, shape(), *index_);
  return coordinate;
}

std::int64_t DeviceMesh::get_local_rank(std::size_t axis) const {
  check_axis(axis);
  check_member();
  return (*get_coordinate())[axis];
}

const ProcessGroupPtr& DeviceMesh::get_group(std::size_t axis) const {
  check_axis(axis);
  check_member();
  return groups_[axis];
}

const ProcessGroupPtr& DeviceMesh::group() const {
  check_member();
  return group_;
}

void DeviceMesh::check_axis(std::size_t axis) const {
  SHARD_CHECK_INDEX(axis < axes_.size(), "a mesh of ", axes_.size(), " dimensions has no dimension ", axis);
}

void DeviceMesh::check_member() const { SHARD_CHECK_VALUE(is_member(), "rank ", world_->rank(), " is not on ", str()); }

/// All lines of ranks along an axis, in the same order on all ranks. A step along the axis skips the ranks of all
/// faster axes.
std::vector<std::vector<int>> DeviceMesh::lines_along(std::size_t axis) const {
  const auto length = static_cast<std::size_t>(axes_[axis].size);
  std::size_t stride = 1;
  for (std::size_t i = axis + 1; i < axes_.size(); ++i) stride *= static_cast<std::size_t>(axes_[i].size);
  std::vector<std::vector<int>> lines;
  for (std::size_t outer = 0; outer < ranks_.size(); outer += stride * length) {
    for (std::size_t inner = 0; inner < stride; ++inner) {
      std::vector<int>& line = lines.emplace_back();
      for (std::size_t i = 0; i < length; ++i) line.push_back(ranks_[outer + inner + i * stride]);
    }
  }
  return lines;
}

/// A collective of the world.
void DeviceMesh::make_groups() {
  const auto group_of = [this](const std::vector<int>& ranks) {
    return std::ssize(ranks) == world_->size() ? world_ : new_group(ranks);
  };
  group_ = group_of(ranks_);
  for (std::size_t axis = 0; axis < axes_.size(); ++axis) {
    ProcessGroupPtr own;
    for (const std::vector<int>& line : lines_along(axis)) {
      const ProcessGroupPtr made = line.size() == ranks_.size() ? group_ : group_of(line);
      if (made->is_member()) own = made;
    }
    groups_.push_back(std::move(own));
  }
}

DeviceMeshPtr DeviceMesh::slice(const std::vector<std::string>& names) const {
  SHARD_CHECK_VALUE(!names.empty(), "a slice of a mesh needs the name of a dimension");
  check_member();
  std::vector<std::size_t> kept;
  for (const std::string& name : names) {
    const std::size_t next = axis(name);
    SHARD_CHECK_VALUE(kept.empty() || kept.back() < next, "the dimensions of a slice of ", str(),
                      " must be in its order, found '", name, "' after '", axes_[kept.back()].name, "'");
    kept.push_back(next);
  }
  if (kept.size() == axes_.size()) return shared_from_this();
  // The part consists of the ranks that differ from this one only along the kept axes.
  const std::vector<std::int64_t> own = *get_coordinate(), sizes = shape();
  std::vector<int> ranks;
  for (std::int64_t i = 0; i < size(); ++i) {
    std::vector<std::int64_t> at(axes_.size());
    set_index<std::int64_t>(at, sizes, i);
    for (const std::size_t axis : kept) at[axis] = own[axis];
    if (at == own) ranks.push_back(ranks_[static_cast<std::size_t>(i)]);
  }
  std::vector<MeshAxis> axes;
  for (const std::size_t axis : kept) axes.push_back(axes_[axis]);
  const std::shared_ptr<DeviceMesh> part(new DeviceMesh(device_type_, ranks, std::move(axes), world_));
  for (const std::size_t axis : kept) part->groups_.push_back(groups_[axis]);
  part->group_ = kept.size() == 1 ? part->groups_.front() : new_group(ranks, {.local_synchronization = true});
  enter(part);
  return part;
}

std::string DeviceMesh::str() const { return describe(device_type_, axes_); }

/// Two meshes are the same if their ranks are in the same order in the same world, even with different groups.
bool operator==(const DeviceMesh& a, const DeviceMesh& b) {
  return a.device_type_ == b.device_type_ && a.axes_ == b.axes_ && a.ranks_ == b.ranks_ && a.world_ == b.world_;
}

DeviceMeshPtr make_device_mesh(at::DeviceType device_type, std::vector<int> ranks, std::vector<MeshAxis> axes) {
  SHARD_CHECK_VALUE(!axes.empty(), "a mesh needs a dimension");
  check_names(axes);
  SHARD_CHECK_VALUE(product(axes) == std::ssize(ranks), "a mesh of ", product(axes), " ranks cannot have ",
                    ranks.size(), " ranks");
  ProcessGroupPtr world = default_group();
  check_ranks(ranks, *world);
  const std::shared_ptr<DeviceMesh> mesh(
      new DeviceMesh(device_type, std::move(ranks), std::move(axes), std::move(world)));
  mesh->make_groups();
  enter(mesh);
  return mesh;
}

DeviceMeshPtr init_device_mesh(at::DeviceType device_type, const std::vector<std::int64_t>& shape,
                               const std::vector<std::string>& mesh_dim_names) {
  SHARD_CHECK_VALUE(mesh_dim_names.empty() || mesh_dim_names.size() == shape.size(),
                    "mesh_shape and mesh_dim_names should have same length! Found len(mesh_dim_names): ",
                    mesh_dim_names.size(), " and len(mesh_shape):", shape.size(), ".");
  std::vector<MeshAxis> axes;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    axes.push_back({mesh_dim_names.empty() ? std::string() : mesh_dim_names[i], shape[i]});
  }
  std::vector<int> ranks(static_cast<std::size_t>(product(axes)));
  std::iota(ranks.begin(), ranks.end(), 0);
  return make_device_mesh(device_type, std::move(ranks), std::move(axes));
}

DeviceMeshPtr find_device_mesh(at::DeviceType device_type, const std::vector<MeshAxis>& axes,
                               const std::vector<int>& ranks) {
  const ProcessGroupPtr world = default_group();
  const std::scoped_lock lock(registry().mutex);
  for (const std::weak_ptr<const DeviceMesh>& known : registry().meshes) {
    DeviceMeshPtr mesh = known.lock();
    if (mesh != nullptr && mesh->world() == world && mesh->device_type() == device_type && mesh->axes() == axes &&
        mesh->ranks() == ranks) {
      return mesh;
    }
  }
  return nullptr;
}

std::string describe(at::DeviceType device_type, const std::vector<MeshAxis>& axes) {
  std::string sizes;
  for (const MeshAxis& axis : axes) {
    sizes += sizes.empty() ? "" : ", ";
    sizes += (axis.name.empty() ? "" : axis.name + "=") + std::to_string(axis.size);
  }
  return c10::str("DeviceMesh((", sizes, "), '", c10::DeviceTypeName(device_type, /*lower_case=*/true), "')");
}

}  // namespace shard::dtensor
