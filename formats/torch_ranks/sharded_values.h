/// \file
/// Converts the calls of ShardedTensors and DTensors inside torch.save pickles to plain structs. sharded_value_maker.h
/// converts back.
///
/// Source: torch/distributed/_shard/sharded_tensor/{api,shard,metadata}.py, torch/distributed/_shard/metadata.py,
/// torch/distributed/tensor/{_api,_dtensor_spec,placement_types}.py and torch/distributed/device_mesh.py, torch 1.13 to
/// 2.15. Attributes are read by name, so new and removed ones have no effect.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/torch/tensor_pickle.h"
#include "libshard/catalog/catalog.h"
#include "libshard/catalog/layouts/placement.h"

namespace shard::torch_ranks {

/// One entry of a ShardedTensor's metadata: torch's ShardMetadata.
struct ShardBox {
  Dims offsets, sizes;         ///< May be empty, and past the end.
  std::string_view placement;  ///< A text such as "rank:1/cpu" or "rank:0/cuda:0"; empty if there is none.
  std::int64_t rank = -1;      ///< From the placement, or -1.

  friend bool operator==(const ShardBox&, const ShardBox&) = default;
};

/// Boxes that never change, so that the values of several ranks may share them. Copies are cheap.
class SharedBoxes {
 public:
  SharedBoxes() : SharedBoxes(std::vector<ShardBox>()) {}
  SharedBoxes(std::vector<ShardBox> boxes) : boxes_(std::make_shared<const std::vector<ShardBox>>(std::move(boxes))) {}
  SharedBoxes(std::initializer_list<ShardBox> boxes) : SharedBoxes(std::vector<ShardBox>(boxes)) {}
  operator const std::vector<ShardBox>&() const { return *boxes_; }

  std::size_t size() const { return boxes_->size(); }
  const ShardBox& operator[](std::size_t i) const { return (*boxes_)[i]; }
  auto begin() const { return boxes_->begin(); }
  auto end() const { return boxes_->end(); }

 private:
  std::shared_ptr<const std::vector<ShardBox>> boxes_;
};

/// ShardedTensor's process-group state: rank and size in the tensor's group ("local") and in the world. A process
/// outside the group has local rank -1 and local size -1.
struct GroupState {
  std::int64_t local_rank = 0, rank = 0, local_world_size = 1, world_size = 1;

  friend bool operator==(const GroupState&, const GroupState&) = default;
};

struct LocalShard {
  ShardBox box;
  Value* tensor = nullptr;  ///< A call that as_tensor accepts; when a value is made, a kTensor value.
};

/// The description of a ShardedTensor's sharding.
struct ShardSpec {
  /// True for a ChunkShardingSpec; otherwise an EnumerableShardingSpec over all shards.
  bool is_chunk = false;
  /// The dimension of a ChunkShardingSpec, as written: negative ones count from the end.
  int dim = 0;
  std::vector<std::string_view> placements;  ///< The placements of a ChunkShardingSpec, in the order of its shards.
};

struct ShardedTensorValue {
  DType dtype{};
  Dims shape;
  bool requires_grad = false;
  bool pin_memory = false;
  bool init_rrefs = false;  ///< Whether ranks can reach one another's shards.
  std::int64_t memory_format =
      0;  ///< MEM_FORMAT_ENCODING: 0 contiguous, 1 channels_last, 2 preserve; -1 for any other value.
  std::vector<LocalShard> local;
  SharedBoxes all;  ///< The boxes of all ranks.
  GroupState group;
  ShardSpec spec;
};

/// The content of `value` if it rebuilds a ShardedTensor; nothing for any other value.
/// \throws Error kCorruption  the call is malformed.
std::optional<ShardedTensorValue> as_sharded_tensor(Arena& arena, const Value& value);

struct DTensorValue {
  DType dtype{};
  Dims shape;
  bool requires_grad = false;
  bool is_parameter = false;             ///< Only when a value is made: wrap it in an nn.Parameter.
  Value* local = nullptr;                ///< A call that as_tensor accepts; when a value is made, a kTensor value.
  Sharding sharding;                     ///< Its mesh, ranks and placements; axis names may be empty.
  std::vector<std::int64_t> coordinate;  ///< This rank's coordinate on the mesh; empty if the file does not record it.
  std::vector<std::size_t> order;  ///< Axes in the order of sharding (DTensorSpec.shard_order); empty: slowest first.
  std::int64_t world_size = 1;     ///< The lower bound that the mesh implies: at least 1 + its highest rank.
  std::string_view device_type = "cpu";
};

/// Reads the elements of a small integer tensor (SavedFiles::integers).
using ReadIntegers = std::function<std::vector<std::int64_t>(const torch_save::TensorView& view)>;

/// True if `value` rebuilds a ShardedTensor or DTensor; reads only names.
bool is_sharded(const Value& value);

}  // namespace shard::torch_ranks
