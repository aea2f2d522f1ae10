#include <fmt/format.h>

#include <algorithm>

#include "formats/torch_ranks/pickled_object.h"
#include "formats/torch_ranks/sharded_values.h"
#include "libshard/catalog/layouts/placement.h"
#include "libshard/core/box.h"
#include "libshard/core/error.h"

namespace shard::torch_ranks {

namespace {

constexpr std::string_view kShardedTensorClass = "ShardedTensor";
constexpr std::size_t kStateItems = 5;       // Shards, metadata, process group, spec, init_rrefs.
constexpr std::size_t kPropertiesItems = 5;  // torch 2.15 adds a sixth item.

/// Sets the placement from a _remote_device ("rank:1/cuda:0"): an object, or a text if the spec was built from text.
void read_placement(Arena& arena, const Value& value, ShardBox& box) {
  if (value.kind == ValueKind::kNone) return;
  if (value.is_string()) {
    box.placement = value.text();
    box.rank = rank_of_placement(value.text()).value_or(-1);
    return;
  }
  need_class(value, "_remote_device");
  const std::string_view where = device(need(value, "_device"), arena, "_remote_device");
  const Value& rank = need(value, "_rank");
  if (rank.kind != ValueKind::kNone) {
    box.rank = natural(rank, "_remote_device's rank");
    box.placement = arena.copy(fmt::format("rank:{}/{}", box.rank, where));
    return;
  }
  const Value& worker = need(value, "_worker_name");
  box.placement = worker.kind == ValueKind::kNone
                      ? where
                      : arena.copy(fmt::format("{}/{}", string(worker, "_remote_device's worker"), where));
}

/// Only the number of dimensions is checked here; the box may be outside the tensor.
ShardBox read_box(Arena& arena, const Value& value, int dimensions) {
  need_class(value, "ShardMetadata");
  ShardBox box;
  box.offsets = dims(arena, need(value, "shard_offsets"), "ShardMetadata's offsets");
  box.sizes = dims(arena, need(value, "shard_sizes"), "ShardMetadata's sizes");
  if (box.offsets.size() != dimensions || box.sizes.size() != dimensions) {
    throw malformed("ShardMetadata", fmt::format("offsets {} and sizes {} are not those of a tensor of {} dimensions",
                                                 to_string(box.offsets), to_string(box.sizes), dimensions))
        .of_kind(FindingKind::kShapeMismatch);
  }
  if (const Value* placement = attribute(value, "placement")) read_placement(arena, *placement, box);
  return box;
}

/// For attributes that do not matter when a checkpoint is read: only True is true.
bool is_true(const Value& value) { return value.kind == ValueKind::kBool && value.boolean(); }

/// A MEM_FORMAT_ENCODING, by number or (Python 3.11) by name.
std::int64_t memory_format_of(const Value& value) {
  constexpr std::string_view kNames[] = {"TORCH_CONTIGUOUS_FORMAT", "TORCH_CHANNELS_LAST", "TORCH_PRESERVE_FORMAT"};
  if (value.kind != ValueKind::kCall || value.items().empty()) return -1;
  const Value& last = *value.items().back();
  const std::int64_t known = std::ssize(kNames);
  const std::int64_t number = last.is_string() ? std::ranges::find(kNames, last.text()) - std::begin(kNames)
                                               : (last.kind == ValueKind::kInt ? last.number : known);
  return number >= 0 && number < known ? number : -1;
}

/// TensorProperties: BUILD of a tuple (dtype, layout, requires_grad, memory format, pinned[, strides]).
void read_properties(const Value& value, ShardedTensorValue& tensor) {
  need_class(value, "TensorProperties");
  const Value* state = value.state();
  if (state == nullptr || state->kind != ValueKind::kTuple || state->items().size() < kPropertiesItems) {
    throw malformed("TensorProperties", "its state is not a tuple of five values or more");
  }
  tensor.requires_grad = boolean(*state->items()[2], "TensorProperties' requires_grad");
  tensor.memory_format = memory_format_of(*state->items()[3]);
  tensor.pin_memory = is_true(*state->items()[4]);
  const DType stated = dtype(*state->items()[0], "TensorProperties");
  if (stated == tensor.dtype) return;
  throw malformed(kShardedTensorClass, "the dtype in its metadata is not the tensor's")
      .of_kind(FindingKind::kDtypeMismatch)
      .expected(dtype_name(tensor.dtype))
      .found(dtype_name(stated));
}

void read_metadata(Arena& arena, const Value& value, ShardedTensorValue& tensor) {
  need_class(value, "ShardedTensorMetadata");
  const Dims shape = dims(arena, need(value, "size"), "ShardedTensorMetadata's size");
  if (!(shape == tensor.shape)) {
    throw malformed(kShardedTensorClass, "the shape in its metadata is not the tensor's")
        .of_kind(FindingKind::kShapeMismatch)
        .expected(to_string(tensor.shape))
        .found(to_string(shape));
  }
  read_properties(need(value, "tensor_properties"), tensor);
  const auto boxes = sequence(need(value, "shards_metadata"), "ShardedTensorMetadata's list of shards");
  arena.charge(Charge::kShards, std::ssize(boxes));
  std::vector<ShardBox> all;
  all.reserve(boxes.size());
  for (const Value* box : boxes) all.push_back(read_box(arena, *box, shape.size()));
  tensor.all = std::move(all);
}

void read_local(Arena& arena, const Value& list, ShardedTensorValue& tensor) {
  const auto shards = sequence(list, "ShardedTensor's list of local shards");
  arena.charge(Charge::kShards, std::ssize(shards));
  for (const Value* shard : shards) {
    need_class(*shard, "Shard");
    LocalShard local;
    local.box = read_box(arena, need(*shard, "metadata"), tensor.shape.size());
    local.tensor = &need(*shard, "tensor");
    tensor.local.push_back(local);
  }
}

GroupState read_group(const Value& value) {
  need_class(value, "ProcessGroupState");
  GroupState group;
  const auto is_outside = [&value](std::string_view name) {
    const Value& number = need(value, name);
    return number.kind == ValueKind::kInt && number.number == -1;
  };
  if (is_outside("local_rank") && is_outside("local_world_size")) {
    group.local_rank = group.local_world_size = -1;
  } else {
    group.local_rank = natural(need(value, "local_rank"), "ProcessGroupState's local rank");
    group.local_world_size = natural(need(value, "local_world_size"), "ProcessGroupState's local world size");
  }
  group.rank = natural(need(value, "global_rank"), "ProcessGroupState's rank");
  group.world_size = natural(need(value, "global_world_size"), "ProcessGroupState's world size");
  const auto check = [](std::string_view what, std::int64_t rank, std::int64_t size) {
    if (size > kMaxRanks) {
      throw malformed("ProcessGroupState", fmt::format("its {}world size is {}", what, size))
          .of_kind(FindingKind::kWorldSizeMismatch)
          .expected(fmt::format("at most {}", kMaxRanks))
          .found(size);
    }
    if (rank < size) return;
    throw malformed("ProcessGroupState", fmt::format("its {0}rank is {1}, its {0}world size is {2}", what, rank, size))
        .of_kind(FindingKind::kRankMismatch)
        .expected(fmt::format("a rank below {}", size))
        .found(rank);
  };
  check("", group.rank, group.world_size);
  if (group.local_rank >= 0) check("local ", group.local_rank, group.local_world_size);
  if (group.local_world_size > group.world_size) {
    throw malformed("ProcessGroupState", "its group is larger than the world")
        .of_kind(FindingKind::kWorldSizeMismatch)
        .expected(fmt::format("at most {}", group.world_size))
        .found(group.local_world_size);
  }
  return group;
}

ShardSpec read_spec(Arena& arena, const Value& value, int dimensions) {
  ShardSpec spec;
  if (class_name(value) != "ChunkShardingSpec") {
    need_class(value, "EnumerableShardingSpec");
    return spec;
  }
  spec.is_chunk = true;
  spec.dim = dim_of(value, dimensions, "ChunkShardingSpec");
  const auto placements = sequence(need(value, "placements"), "ChunkShardingSpec's placements");
  arena.charge(Charge::kShards, std::ssize(placements));
  for (const Value* placement : placements) {
    ShardBox box;
    read_placement(arena, *placement, box);
    spec.placements.push_back(box.placement);
  }
  return spec;
}

}  // namespace

std::optional<ShardedTensorValue> as_sharded_tensor(Arena& arena, const Value& value) {
  if (subclass_name(value) != kShardedTensorClass) return std::nullopt;
  const Subclass from = subclass(value);
  const Wrapper whole = wrapper(arena, from);
  const Value& state = *from.state;
  if (state.kind != ValueKind::kTuple || state.items().size() < kStateItems) {
    throw malformed(kShardedTensorClass, "its state is not a tuple of five values").found(type_name(state));
  }
  ShardedTensorValue tensor;
  tensor.dtype = whole.dtype;
  tensor.shape = whole.shape;
  read_metadata(arena, *state.items()[1], tensor);
  read_local(arena, *state.items()[0], tensor);
  tensor.group = read_group(*state.items()[2]);
  tensor.spec = read_spec(arena, *state.items()[3], tensor.shape.size());
  tensor.init_rrefs = is_true(*state.items()[4]);
  return tensor;
}

bool is_sharded(const Value& value) {
  const std::string_view name = subclass_name(value);
  return name == kShardedTensorClass || name == "DTensor";
}

}  // namespace shard::torch_ranks
