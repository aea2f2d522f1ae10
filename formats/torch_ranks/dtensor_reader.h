/// \file
/// Reads the DTensors of one file; parts that they share are read once.
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
      /// The coordinate of the rank that wrote the mesh; empty if the rank is not on the mesh, or the mesh does not
      /// record it.
      coordinate;
  /// The lower bound that the mesh implies: the ranks of its root mesh, or 1 + the highest rank.
  std::int64_t world_size = 1;
  std::string_view device_type = "cpu";
};

class DTensorReader {
 public:
  /// Ownership: `arena` must outlive this.
  DTensorReader(Arena& arena, ReadIntegers integers) : arena_(arena), integers_(std::move(integers)) {}

  /// The content of `value` if it rebuilds a DTensor; nothing for any other value.
  /// \throws Error kCorruption   the call is malformed.
  /// \throws Error kUnsupported  a Partial placement, by name.
  std::optional<DTensorValue> read(const Value& value);

 private:
  const DeviceMeshValue& mesh_of(const Value& value);

  Arena& arena_;
  ReadIntegers integers_;
  /// Cached, because the tensors of a pickle share meshes.
  HashMap<const Value*, std::unique_ptr<DeviceMeshValue>> meshes_;
};

}  // namespace shard::torch_ranks
