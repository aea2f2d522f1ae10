/// \file
/// Reads the DTensors of one file; what they share is read once.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "formats/torch_ranks/sharded_values.h"
#include "libshard/core/hash_table.h"

namespace shard::torch_ranks {

// A pickled DeviceMesh: its axes, its ranks and this rank's coordinate.
//
// Source: torch/distributed/device_mesh.py. Until torch 2.9 the state contains the ranks as a tensor `mesh`. Later
// versions contain `_rank_map`, the ranks of the root mesh as a flat tensor, and `_layout`, the sizes and strides of
// this mesh in it: one pair of (nested) tuples in 2.11, a `_FlatLayout` per axis in 2.15.

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

class DTensorReader {
 public:
  /// Ownership: `arena` must outlive this.
  DTensorReader(Arena& arena, ReadIntegers integers) : arena_(arena), integers_(std::move(integers)) {}

  /// See as_dtensor.
  std::optional<DTensorValue> read(const Value& value);

 private:
  const DeviceMeshValue& mesh_of(const Value& value);

  Arena& arena_;
  ReadIntegers integers_;
  HashMap<const Value*, std::unique_ptr<DeviceMeshValue>> meshes_;  ///< Pickles share them.
};

}  // namespace shard::torch_ranks
