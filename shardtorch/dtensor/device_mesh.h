/// \file
/// DeviceMesh: the ranks of a world as an array of any number of axes, with a process group along each of them.
///
/// All ranks of the world create a mesh together, in the same order as its other groups. A rank outside the mesh also
/// takes part. Its object records that the rank is outside. Meshes do not change. Threads: any. Source:
/// torch/distributed/device_mesh.py (torch 2.11).
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "libshard/catalog/layouts/placement.h"
#include "shardtorch/sharded_tensor/process_group.h"

namespace shard::dtensor {

class DeviceMesh;
using DeviceMeshPtr = std::shared_ptr<const DeviceMesh>;

class DeviceMesh : public std::enable_shared_from_this<DeviceMesh> {
 public:
  std::size_t ndim() const { return axes_.size(); }
  std::int64_t size() const { return static_cast<std::int64_t>(ranks_.size()); }  ///< The number of ranks on it.
  /// \throws c10::IndexError  no such axis.
  std::int64_t size(std::size_t axis) const;
  std::vector<std::int64_t> shape() const;
  const std::vector<MeshAxis>& axes() const { return axes_; }  ///< Slowest first.
  /// The ranks of the world at the coordinates, row-major.
  const std::vector<int>& ranks() const { return ranks_; }
  std::vector<std::string> mesh_dim_names() const;  ///< Empty if it has none.
  /// The number of an axis. \throws c10::ValueError  no axis has that name
  std::size_t axis(std::string_view name) const;
  at::DeviceType device_type() const { return device_type_; }
  /// The device of local tensors: the CPU, or this thread's current device of that type.
  at::Device device() const;

  bool is_member() const { return index_.has_value(); }
  /// This rank's position among ranks(); nothing if it is not on the mesh.
  std::optional<std::int64_t> index() const { return index_; }
  /// This rank's position on each axis; nothing if it is not on the mesh.
  std::optional<std::vector<std::int64_t>> get_coordinate() const;
  /// \throws c10::IndexError  no such axis; c10::ValueError  this rank is not on the mesh.
  std::int64_t get_local_rank(std::size_t axis) const;
  std::int64_t get_local_rank(std::string_view name) const { return get_local_rank(axis(name)); }
  /// The group of the ranks that differ from this one only along the axis. Its members are in ascending order of ranks.
  /// \throws as get_local_rank
  const ProcessGroupPtr& get_group(std::size_t axis) const;
  const ProcessGroupPtr& get_group(std::string_view name) const { return get_group(axis(name)); }
  /// The group of all ranks of the mesh. \throws c10::ValueError  this rank is not on the mesh.
  const ProcessGroupPtr& group() const;
  /// The default group from which it was created.
  const ProcessGroupPtr& world() const { return world_; }

  /// The mesh of some of the axes through this rank, in the order that they have here. It shares this mesh's groups. If
  /// it has several axes but not all, its ranks create one more group together.
  /// \throws c10::ValueError  an unknown name, a different order, no names; this rank is not on the mesh.
  DeviceMeshPtr slice(const std::vector<std::string>& names) const;

  std::string str() const;  ///< describe()

  /// Compares devices, axes and ranks.
  friend bool operator==(const DeviceMesh& a, const DeviceMesh& b);

 private:
  friend DeviceMeshPtr make_device_mesh(at::DeviceType, std::vector<int>, std::vector<MeshAxis>);
  DeviceMesh(at::DeviceType device_type, std::vector<int> ranks, std::vector<MeshAxis> axes, ProcessGroupPtr world);
  void check_axis(std::size_t axis) const;
  void check_member() const;
  /// The lines of ranks that differ only in their position on `axis`.
  std::vector<std::vector<int>> lines_along(std::size_t axis) const;
  void make_groups();

  at::DeviceType device_type_;
  std::vector<int> ranks_;
  std::vector<MeshAxis> axes_;
  std::optional<std::int64_t> index_;
  std::vector<ProcessGroupPtr> groups_;  ///< By axis; empty if this rank is not a member.
  ProcessGroupPtr group_, world_;
};

/// A mesh of the ranks 0, 1, 2, ... of the world. A collective of the world.
/// \throws c10::ValueError  no axes, an axis below 1, more ranks than the world has, different numbers of names and
///   axes (no names is fine), a repeated name; there is no default group.
DeviceMeshPtr init_device_mesh(at::DeviceType device_type, const std::vector<std::int64_t>& shape,
                               const std::vector<std::string>& mesh_dim_names = {});
/// A mesh of these ranks, row-major. A collective of the world.
/// \throws c10::ValueError  as above; a rank that is repeated, or is not in the world.
DeviceMeshPtr make_device_mesh(at::DeviceType device_type, std::vector<int> ranks, std::vector<MeshAxis> axes);

/// The existing mesh of the current default group with these axes and ranks; null if there is none.
DeviceMeshPtr find_device_mesh(at::DeviceType device_type, const std::vector<MeshAxis>& axes,
                               const std::vector<int>& ranks);
/// "DeviceMesh((dp=2, tp=4), 'cpu')"
std::string describe(at::DeviceType device_type, const std::vector<MeshAxis>& axes);

}  // namespace shard::dtensor
