#include "shardtorch/checkpoint/saved_state.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "formats/parts/pickle/opcodes.h"
#include "formats/parts/pickle/pickle.h"
#include "libshard/core/box.h"
#include "libshard/core/error.h"
#include "shardtorch/sharded_tensor/sharding_spec.h"
#include "shardtorch/state/dtypes.h"
#include "shardtorch/state/values.h"

namespace shard::checkpoint {

namespace {

/// The mesh and the placements in ranks of `group`; nothing if the group lacks one of the mesh's ranks.
std::optional<Sharding> sharding_of(const dtensor::DTensor& tensor, const ProcessGroup& group) {
  const dtensor::DeviceMesh& mesh = *tensor.device_mesh();
  Sharding sharding{mesh.axes(), {}, in_catalog(tensor.placements())};
  for (const int rank : mesh.ranks()) sharding.ranks.push_back(group.group_rank_of(rank));
  const bool has_all = mesh.size() == group.size() && std::ranges::find(sharding.ranks, -1) == sharding.ranks.end();
  if (!has_all) return std::nullopt;
  if (std::ranges::is_sorted(sharding.ranks)) sharding.ranks.clear();
  return sharding;
}

/// Converts a state to values and descriptions of tensors, without copying elements. Tensors become persistent ids with
/// their numbers, so that the tree can be sent as a pickle.
class Collector {
 public:
  explicit Collector(const ProcessGroup& group) : group_(group) {}

  OwnState run(const StateDict& state) {
    const Value* root = to_value(arena_, state, [this](const at::Tensor& tensor) { return value_of(tensor); });
    pickle::Dumper dumper({.protocol = 4, .tensor = [](pickle::Dumper& out, const Value& value) {
                             out.integer(value.number);
                             out.op(pickle::kOpBinPersid);
                           }});
    dumper.value(*root);
    own_.tree = dumper.finish();
    return std::move(own_);
  }

 private:
  /// A tensor with several names becomes one node.
  Value* value_of(const at::Tensor& tensor) {
    if (!tensor.defined()) return make_value(arena_, ValueKind::kNone);
    Value*& known = known_[tensor.unsafeGetTensorImpl()];
    if (known != nullptr) return known;
    if (const ShardedTensor sharded = ShardedTensor::of(tensor); sharded.defined()) {
      add_shards(sharded);
    } else if (const dtensor::DTensor distributed = dtensor::DTensor::of(tensor); distributed.defined()) {
      add_boxes(distributed);
    } else {
      add_plain(tensor);
    }
    return known = make_tensor(arena_, std::ssize(own_.tensors) - 1);
  }

  void add_plain(const at::Tensor& tensor) {
    check_storable(tensor);
    TensorInfo& info = add_info(tensor.scalar_type(), tensor.requires_grad(), tensor.sizes());
    info.location = tensor.device().str();
    info.boxes.push_back({Sizes(info.shape.size()), info.shape});
    own_.local.back().push_back(tensor);
  }

  void add_shards(const ShardedTensor& tensor) {
    TensorInfo& info = add_info(tensor.dtype(), tensor.requires_grad(), tensor.sizes());
    info.is_sharded = true;
    info.location = "cpu";
    for (const Shard& shard : tensor.local_shards()) {
      check_storable(shard, tensor.dtype());
      info.location = shard.tensor.device().str();
      info.boxes.push_back({shard.metadata.shard_offsets, shard.metadata.shard_sizes});
      own_.local.back().push_back(shard.tensor);
    }
  }

  void add_boxes(const dtensor::DTensor& tensor) {
    TensorInfo& info = add_info(tensor.dtype(), tensor.requires_grad(), tensor.sizes());
    info.is_sharded = true;
    info.location = tensor.device().str();
    info.sharding = sharding_of(tensor, group_);
    for (LocalBox& box : local_boxes(tensor)) {
      info.boxes.push_back({std::move(box.offsets), box.tensor.sizes().vec()});
      own_.local.back().push_back(std::move(box.tensor));
    }
  }

  TensorInfo& add_info(at::ScalarType type, bool requires_grad, at::IntArrayRef shape) {
    if (shape.size() > kMaxDims) {
      throw Error(ErrorCode::kUnsupported, "checkpoints cannot store tensors with so many dimensions")
          .expected(c10::str("at most ", kMaxDims))
          .found(std::ssize(shape));
    }
    own_.local.emplace_back();
    own_.tensors.push_back({dtype_of(type), requires_grad, false, shape.vec(), {}, {}, {}});
    return own_.tensors.back();
  }

  const ProcessGroup& group_;
  Arena arena_;
  OwnState own_;
  std::unordered_map<const c10::TensorImpl*, Value*> known_;  ///< The state keeps the tensors alive.
};

}  // namespace

void check_storable(const at::Tensor& tensor) {
  if (tensor.layout() == at::kStrided && !tensor.is_quantized() && !tensor.is_meta() && !tensor.is_nested()) return;
  throw Error(ErrorCode::kUnsupported, "checkpoints cannot store this kind of tensor")
      .expected("a strided tensor with elements")
      .found(tensor.toString());
}

void check_storable(const Shard& shard, at::ScalarType dtype) {
  check_storable(shard.tensor);
  const auto check = [&shard](bool is_as_said, const std::string& expected, const std::string& found) {
    if (is_as_said) return;
    throw Error(ErrorCode::kInvalidArgument, "a local tensor does not match its metadata")
        .because(c10::str(shard.metadata))
        .expected(expected)
        .found(found);
  };
  const Sizes& sizes = shard.metadata.shard_sizes;
  check(shard.tensor.scalar_type() == dtype, c10::toString(dtype), c10::toString(shard.tensor.scalar_type()));
  check(shard.tensor.sizes() == at::IntArrayRef(sizes), to_string(sizes), to_string(shard.tensor.sizes()));
}

/// A strided shard can be several boxes of the whole tensor. A tensor without elements has one empty box, so that it is
/// not lost.
std::vector<LocalBox> local_boxes(const dtensor::DTensor& tensor) {
  const dtensor::Placements& placements = tensor.placements();
  if (std::ranges::any_of(placements, dtensor::is_partial)) {
    throw Error(ErrorCode::kUnsupported, "checkpoints cannot store DTensors with Partial placements")
        .because("each rank has only a partial value of each element")
        .expected("Shard or Replicate; redistribute it first")
        .found(to_string(placements));
  }
  check_storable(tensor.local());
  const std::optional<std::int64_t> index = tensor.device_mesh()->index();
  if (!index) return {};
  std::vector<LocalBox> boxes;
  const RankPiece own = part_of(tensor.layout(), *index);
  for (std::size_t i = 0; i < own.boxes.size(); ++i) {
    const Box& box = own.boxes[i];
    boxes.push_back({dtensor::offsets_of(box).vec(),
                     narrow_tensor_by_index(tensor.local(), own.local_offsets[i], dtensor::sizes_of(box))});
  }
  if (boxes.empty() && tensor.numel() == 0) boxes.push_back({Sizes(tensor.sizes().size()), tensor.local()});
  return boxes;
}

OwnState own_state(const StateDict& state, const ProcessGroup& group) { return Collector(group).run(state); }

}  // namespace shard::checkpoint
