/// \file
/// A pickled DeviceMesh: its axes, the ranks on it and this rank's place.
///
/// Source: torch/distributed/device_mesh.py. Until torch 2.9 the state holds the ranks as a tensor `mesh`; later
/// `_rank_map`, the ranks of the root mesh as a flat tensor, and `_layout`, which says by sizes and strides where this
/// mesh's ranks stand in it: one pair of (nested) tuples in 2.11, a `_FlatLayout` for each axis in 2.15.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "formats/torch_ranks/sharded_values.h"

namespace shard::torch_ranks {

struct DeviceMeshValue {
  std::vector<MeshAxis> axes;
  std::vector<std::int64_t> ranks;  ///< Row-major.
  std::vector<std::int64_t>
      coordinate;  ///< The coordinate of the rank that wrote it; empty where it is not on the mesh, or not said.
  std::int64_t world_size = 1;  ///< As far as it says: ranks of its root mesh, or 1 + the highest.
  std::string_view device_type = "cpu";
};

/// \throws Error kCorruption  a malformed one: kinds bad_pickle, rank_mismatch, world_size_mismatch.
DeviceMeshValue read_device_mesh(Arena& arena, const Value& value, const ReadIntegers& integers);

}  // namespace shard::torch_ranks
