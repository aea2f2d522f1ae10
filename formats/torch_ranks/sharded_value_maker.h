/// \file
/// Makes the calls that rebuild ShardedTensors and DTensors, as torch 2.11 pickles them; meshes also as 2.13 does.
///
/// Source: the files named in sharded_values.h, and pickles that torch 2.11 wrote.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/torch_ranks/sharded_values.h"
#include "libshard/core/hash_table.h"

namespace shard::torch_ranks {

/// The form in which a mesh records its ranks. A torch version of one form cannot use a mesh of the other. The object
/// loads, but fails in use.
enum class LayoutForm {
  kPair,  ///< Torch 2.11: the sizes and the strides of all axes.
  kAxes,  ///< Torch 2.13: a layout for each axis; 2.15 also records whether the order of ranks is kept.
};

/// The DeviceMesh of one sharding as one of its ranks pickles it.
struct PickledMesh {
  const Sharding* sharding = nullptr;
  std::int64_t index = 0;           ///< The rank's index in the mesh, row-major.
  std::vector<std::string> groups;  ///< Names of the process groups of its axes.
  std::string_view device_type = "cpu";
  Value* ranks = nullptr;  ///< kTensor: the ranks as an int32 vector (mesh_ranks()).
  LayoutForm layout = LayoutForm::kPair;
};

/// Numbers process groups as torch does in a process that makes its meshes one after another, each by init_device_mesh
/// and before any other group. "0" is the group of all ranks; every row of ranks along an axis then has the next
/// number.
class GroupNames {
 public:
  /// The names for one rank, by axis. All ranks must call it for the same meshes in the same order.
  std::vector<std::string> add_mesh(const Sharding& sharding, std::int64_t index, std::int64_t world_size);

 private:
  std::int64_t next_ = 1;
};

/// Builds the values of one file. Repeated values are built once. The local tensors stay kTensor values
/// (torch_save::dump).
/// Ownership: all values are stored in the arena, which must outlive the maker.
class ShardedValueMaker {
 public:
  explicit ShardedValueMaker(Arena& arena) : arena_(arena) {}

  /// Local shards share the boxes of `all` if they are a part of it, in the same order.
  Value* sharded_tensor(const ShardedTensorValue& tensor);
  Value* device_mesh(const PickledMesh& mesh);
  /// `mesh` is the result of device_mesh for the tensor's sharding. Equal meshes of one file are the same object.
  Value* dtensor(const DTensorValue& tensor, Value* mesh);

 private:
  using Attributes = std::vector<std::pair<std::string_view, Value*>>;

  Value* text(std::string_view content);
  Value* integer(std::int64_t number);
  Value* boolean(bool value);
  Value* none() { return make_value(arena_, ValueKind::kNone); }
  Value* global(std::string_view module, std::string_view name);
  Value* integers(ValueKind kind, std::span<const std::int64_t> numbers);
  Value* tuple(std::initializer_list<Value*> items);
  Value* dict(const Attributes& attributes);
  /// cls.__new__(cls, *arguments), with `state` set by BUILD if it is not null.
  Value* instance(Value* cls, std::span<Value* const> arguments, Value* state);
  Value* mesh_layout(std::span<const std::int64_t> sizes, std::span<const std::int64_t> strides, LayoutForm form);
  Value* size(Dims shape);
  Value* strides(Dims shape);
  Value* device(std::string_view text_of_device);
  /// None if the text is empty.
  Value* remote_device(std::string_view placement);
  Value* shard_metadata(const ShardBox& box);
  Value* tensor_properties(const ShardedTensorValue& tensor);
  Value* group_state(Value* cls, const GroupState& group);
  Value* sharding_spec(const ShardedTensorValue& tensor, Value* shards);
  Value* placement(const Placement& placement);
  Value* shard_order(std::span<const Placement> placements);
  /// _rebuild_from_type_v2 of a wrapper subclass.
  Value* wrapper(Value* cls, DType dtype, Dims shape, std::string_view device, bool requires_grad, Value* state);

  Arena& arena_;
  HashMap<std::string, Value*> texts_, globals_, devices_, remote_devices_;
  HashMap<std::int64_t, Value*> integers_;
};

}  // namespace shard::torch_ranks
