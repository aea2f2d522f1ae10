/// \file
/// Reads the DTensors of one file; what they share is read once.
#pragma once

#include <memory>
#include <optional>

#include "formats/torch_ranks/device_mesh.h"
#include "formats/torch_ranks/sharded_values.h"
#include "libshard/core/hash_table.h"

namespace shard::torch_ranks {

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
