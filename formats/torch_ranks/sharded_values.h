/// \file
/// ShardedTensors and DTensors inside torch.save pickles: from calls to plain structs. Back: sharded_value_maker.h.
///
/// Source: torch/distributed/_shard/sharded_tensor/{api,shard,metadata}.py, torch/distributed/_shard/metadata.py,
/// torch/distributed/tensor/{_api,_dtensor_spec,placement_types}.py and torch/distributed/device_mesh.py, torch 1.13 to
/// 2.15. Read by attribute names, so that attributes that come and go do not matter.
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
#include "libshard/catalog/placement.h"

namespace shard::torch_ranks {

/// One entry of a ShardedTensor's metadata: torch's ShardMetadata.
struct ShardBox {
  Dims offsets, sizes;         ///< May be empty and lie past the end.
  std::string_view placement;  ///< As text: "rank:1/cpu", "rank:0/cuda:0"; empty where there is none.
  std::int64_t rank = -1;      ///< From the placement, or -1.

  friend bool operator==(const ShardBox&, const ShardBox&) = default;
};

/// Boxes that are never changed, so that the values of several ranks may share them. Copied freely.
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

/// 1 of "rank:1/cuda:0"; nothing for a placement that names no rank ("worker1/cpu", or "cuda:0": the process itself).
std::optional<std::int64_t> rank_of_placement(std::string_view placement);

/// ShardedTensor's process-group state: rank and size in the tensor's group ("local") and in the world. A process that
/// is no member of the group has local rank -1 and local size -1.
struct GroupState {
  std::int64_t local_rank = 0, rank = 0, local_world_size = 1, world_size = 1;

  friend bool operator==(const GroupState&, const GroupState&) = default;
};

struct LocalShard {
  ShardBox box;
  Value* tensor = nullptr;  ///< A call that as_tensor takes; for making: a kTensor value.
};

/// How a ShardedTensor says that it is cut.
struct ShardSpec {
  bool is_chunk = false;                     ///< ChunkShardingSpec; else EnumerableShardingSpec over all shards.
  int dim = 0;                               ///< A ChunkShardingSpec's, as written: negative ones count from the end.
  std::vector<std::string_view> placements;  ///< A ChunkShardingSpec's, in the order of cutting.
};

struct ShardedTensorValue {
  DType dtype{};
  Dims shape;
  bool requires_grad = false;
  bool pin_memory = false;
  bool init_rrefs = false;  ///< Its ranks reach one another's shards.
  std::int64_t memory_format =
      0;  ///< MEM_FORMAT_ENCODING: 0 contiguous, 1 channels_last, 2 preserve; -1 anything else.
  std::vector<LocalShard> local;
  SharedBoxes all;  ///< Every rank's.
  GroupState group;
  ShardSpec spec;
};

/// What `value` says if it rebuilds a ShardedTensor; nothing if it is something else.
/// \throws Error kCorruption  a malformed one.
std::optional<ShardedTensorValue> as_sharded_tensor(Arena& arena, const Value& value);

struct DTensorValue {
  DType dtype{};
  Dims shape;
  bool requires_grad = false;
  bool is_parameter = false;             ///< For making: an nn.Parameter around it.
  Value* local = nullptr;                ///< A call that as_tensor takes; for making: a kTensor value.
  Sharding sharding;                     ///< Its mesh, ranks and placements; axis names may be empty.
  std::vector<std::int64_t> coordinate;  ///< This rank's on the mesh; empty where the file does not say.
  std::vector<std::size_t> order;  ///< Axes in the order of cutting (DTensorSpec.shard_order); empty: slowest first.
  std::int64_t world_size = 1;     ///< As far as the mesh says: at least 1 + its highest rank.
  std::string_view device_type = "cpu";
};

/// Reads the elements of a small integer tensor (SavedFiles::integers).
using ReadIntegers = std::function<std::vector<std::int64_t>(const torch_save::TensorView& view)>;

/// What `value` says if it rebuilds a DTensor; nothing if it is something else.
/// \throws Error kCorruption   a malformed one.
/// \throws Error kUnsupported  a Partial placement, by name.
std::optional<DTensorValue> as_dtensor(Arena& arena, const Value& value, const ReadIntegers& integers);

/// True where `value` rebuilds a ShardedTensor or DTensor; looks at names only.
bool is_sharded(const Value& value);

}  // namespace shard::torch_ranks
