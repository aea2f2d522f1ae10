#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/formats/rank_files.h"
#include "tests/support/expect_error.h"

namespace shard::testing {
namespace {

using ::testing::HasSubstr;
using Change = std::function<void(Arena&, Value&)>;
using Make = std::function<Value*(Arena&)>;

constexpr std::int64_t kHuge = 1'000'000'000'000'000'000;
const char* const kSharded = "2.11.0/ranks_sharded_r2/rank_1.pt";
const char* const kBoxes = "2.11.0/ranks_blocks_r2/rank_1.pt";
const char* const kDTensor = "2.11.0/ranks_dtensor_r2/model_world_size_2_rank_1.pt";
const char* const kStrided = "2.11.0/ranks_strided_r4/rank_1.pt";
const char* const kOldMesh = "2.8.0/ranks_dtensor_r2/model_world_size_2_rank_1.pt";
const char* const kNewMesh = "2.15.0/ranks_dtensor_r2/model_world_size_2_rank_1.pt";

// --- Values ---

Make none() {
  return [](Arena& arena) { return make_value(arena, ValueKind::kNone); };
}
Make number(std::int64_t value) {
  return [=](Arena& arena) { return make_int(arena, value); };
}
Make text(const std::string& value) {
  return [=](Arena& arena) { return make_string(arena, value); };
}
Make global(const std::string& module, const std::string& name) {
  return [=](Arena& arena) { return make_global(arena, module, name); };
}
Make items(ValueKind kind, const std::vector<Make>& makers) {
  return [=](Arena& arena) {
    std::vector<Value*> made;
    for (const Make& make : makers) made.push_back(make(arena));
    return make_list(arena, kind, made);
  };
}
Make numbers(ValueKind kind, const std::vector<std::int64_t>& values) {
  std::vector<Make> makers;
  for (const std::int64_t value : values) makers.push_back(number(value));
  return items(kind, makers);
}
Make list(const std::vector<std::int64_t>& values) { return numbers(ValueKind::kList, values); }
Make tuple(const std::vector<std::int64_t>& values) { return numbers(ValueKind::kTuple, values); }

// --- Changes ---

/// An attribute of object number `nth` of a class.
Change set(const std::string& type, const std::string& name, const Make& make, int nth = 0) {
  return [=](Arena& arena, Value& root) { attribute_of(object_of(root, type, nth), name) = make(arena); };
}
Change rename(const std::string& type, const std::string& name, int nth = 0) {
  return [=](Arena& arena, Value& root) {
    Value& object = object_of(root, type, nth);
    Value** value = &attribute_of(object, name);
    *(value - 1) = make_string(arena, "x" + name);
  };
}
Change set_class(const std::string& type, const std::string& module, const std::string& name, int nth = 0) {
  return [=](Arena& arena, Value& root) { object_of(root, type, nth).call->callee = make_global(arena, module, name); };
}
/// An argument of _rebuild_wrapper_subclass: class, dtype, size, stride, offset, layout, device, requires_grad.
Change set_argument(const std::string& type, std::size_t index, const Make& make) {
  return [=](Arena& arena, Value& root) { object_of(root, type).items()[2]->items()[index] = make(arena); };
}
/// A value of _rebuild_from_type_v2 itself: function, class, arguments, state.
Change set_part(const std::string& type, std::size_t index, const Make& make) {
  return [=](Arena& arena, Value& root) { object_of(root, type).items()[index] = make(arena); };
}
/// An item of ShardedTensor's state, of TensorProperties' state, of TensorMeta or of ShardOrderEntry.
Change set_item(const std::string& type, std::size_t index, const Make& make) {
  return [=](Arena& arena, Value& root) {
    Value& object = object_of(root, type);
    if (type == "ShardedTensor") {
      object.items()[3]->items()[index] = make(arena);
    } else if (type == "TensorProperties") {
      object.state()->items()[index] = make(arena);
    } else {
      object.items()[index] = make(arena);
    }
  };
}
/// The first ShardedTensor's or DTensor's own tensor: a call of _rebuild_tensor_v2(storage, offset, size, stride, ...).
Change set_tensor(const std::string& type, const std::string& name, std::size_t index, const Make& make) {
  return [=](Arena& arena, Value& root) { attribute_of(object_of(root, type), name)->items()[index] = make(arena); };
}
Change both(const Change& a, const Change& b) {
  return [=](Arena& arena, Value& root) {
    a(arena, root);
    b(arena, root);
  };
}
/// A mesh of this number of ranks: the tensor and its storage claim them.
Change claim_ranks(const std::string& name, std::int64_t count) {
  return [=](Arena& arena, Value& root) {
    Value& tensor = *attribute_of(object_of(root, "DeviceMesh"), name);
    tensor.items()[0]->items()[0]->items()[4] = make_int(arena, count);
    tensor.items()[2] = tuple({count})(arena);
    tensor.items()[3] = tuple({1})(arena);
  };
}

struct Damage {
  std::string name;
  const char* file;
  Change change;
  ErrorCode code;
  std::string words;
  std::optional<FindingKind> kind = FindingKind::kBadPickle;
};
void PrintTo(const Damage& damage, std::ostream* out) { *out << damage.name; }

constexpr auto kBad = ErrorCode::kCorruption;
constexpr auto kNo = ErrorCode::kUnsupported;
const std::string kShardMetadataModule = "torch.distributed._shard.metadata";
const std::string kPlacements = "torch.distributed.tensor.placement_types";

const std::vector<Damage> kShardedTensors{
    {"Function", kSharded, set_part("ShardedTensor", 0, global("torch._utils", "_rebuild_tensor")), kBad,
     "it is not rebuilt by _rebuild_wrapper_subclass"},
    {"ArgumentsNone", kSharded, set_part("ShardedTensor", 2, none()), kBad, "pickled ShardedTensor: it is not a list"},
    {"ArgumentsShort", kSharded, set_part("ShardedTensor", 2, tuple({1, 2, 3, 4, 5, 6, 7})), kBad,
     "it has 7 arguments"},
    {"Dtype", kSharded, set_argument("ShardedTensor", 1, global("torch", "float64")), kBad,
     "the dtype in its metadata is not the tensor's", FindingKind::kDtypeMismatch},
    {"DtypeNumber", kSharded, set_argument("ShardedTensor", 1, number(6)), kBad, "its dtype is not one of torch's"},
    {"DtypeOfBits", kSharded, set_argument("ShardedTensor", 1, global("torch", "int4")), kNo, "dtype torch.int4",
     std::nullopt},
    {"Size", kSharded, set_argument("ShardedTensor", 2, tuple({7, 4})), kBad,
     "the shape in its metadata is not the tensor's", FindingKind::kShapeMismatch},
    {"SizeNegative", kSharded, set_argument("ShardedTensor", 2, tuple({-7, 3})), kBad, "it is not a natural number"},
    {"SizeOf65", kSharded, set_argument("ShardedTensor", 2, tuple(std::vector<std::int64_t>(65, 1))), kBad,
     "it has 65 dimensions"},
    {"Layout", kSharded, set_argument("ShardedTensor", 5, global("torch", "sparse_coo")), kNo, "layout sparse_coo",
     std::nullopt},
    {"Device", kSharded, set_argument("ShardedTensor", 6, number(0)), kBad, "its device is not one of torch's"},
    {"RequiresGrad", kSharded, set_argument("ShardedTensor", 7, number(0)), kBad, "it is not a bool"},
    {"StateNone", kSharded, set_part("ShardedTensor", 3, none()), kBad, "its state is not a tuple of five values"},
    {"StateShort", kSharded, set_part("ShardedTensor", 3, tuple({1, 2, 3, 4})), kBad,
     "its state is not a tuple of five values"},
    {"LocalShards", kSharded, set_item("ShardedTensor", 0, number(1)), kBad, "ShardedTensor's list of local shards"},
    {"LocalShardClass", kSharded, set_item("ShardedTensor", 0, list({1})), kBad, "found a value of type int instead"},
    {"NoLocalShards", kSharded, set_item("ShardedTensor", 0, list({})), kBad, "no file contains the shard of",
     FindingKind::kGap},
    {"Metadata", kSharded, set_item("ShardedTensor", 1, none()), kBad, "the pickled ShardedTensorMetadata:"},
    {"Group", kSharded, set_item("ShardedTensor", 2, none()), kBad, "the pickled ProcessGroupState:"},
    {"Spec", kSharded, set_item("ShardedTensor", 3, none()), kBad, "the pickled EnumerableShardingSpec:"},

    {"MetadataSize", kSharded, set("ShardedTensorMetadata", "size", tuple({kHuge, kHuge})), kBad,
     "the shape in its metadata is not the tensor's", FindingKind::kShapeMismatch},
    {"MetadataNoSize", kSharded, rename("ShardedTensorMetadata", "size"), kBad, "it has no attribute 'size'"},
    {"MetadataShards", kSharded, set("ShardedTensorMetadata", "shards_metadata", none()), kBad, "list of shards"},
    {"MetadataFewer", kSharded, set("ShardedTensorMetadata", "shards_metadata", list({})), kBad,
     "a different number of shards", FindingKind::kMixedSave},
    {"Properties", kSharded, set("ShardedTensorMetadata", "tensor_properties", none()), kBad,
     "the pickled TensorProperties:"},
    {"PropertiesDtype", kSharded, set_item("TensorProperties", 0, global("torch", "int8")), kBad, "the dtype in its",
     FindingKind::kDtypeMismatch},
    {"PropertiesGrad", kSharded, set_item("TensorProperties", 2, none()), kBad, "TensorProperties' requires_grad"},

    {"Offsets", kSharded, set("ShardMetadata", "shard_offsets", list({5, 0})), kBad,
     "rank 1 has a different position of shard 1 from rank 0", FindingKind::kMixedSave},
    {"OffsetsNegative", kSharded, set("ShardMetadata", "shard_offsets", list({-4, 0})), kBad,
     "ShardMetadata's offsets"},
    {"OffsetsText", kSharded, set("ShardMetadata", "shard_offsets", text("4")), kBad, "ShardMetadata's offsets"},
    {"OffsetsOfOneDimension", kSharded, set("ShardMetadata", "shard_offsets", list({4})), kBad,
     "are not those of a tensor of 2 dimensions", FindingKind::kShapeMismatch},
    {"Sizes", kSharded, set("ShardMetadata", "shard_sizes", list({2, 3})), kBad, "a different position of shard 1",
     FindingKind::kMixedSave},
    {"SizesHuge", kSharded, set("ShardMetadata", "shard_sizes", list({kHuge, kHuge})), kBad,
     "a different position of shard 1", FindingKind::kMixedSave},
    {"SizesNegative", kSharded, set("ShardMetadata", "shard_sizes", list({-3, 3})), kBad, "ShardMetadata's sizes"},
    {"NoSizes", kSharded, rename("ShardMetadata", "shard_sizes"), kBad, "it has no attribute 'shard_sizes'"},
    {"Placement", kSharded, set("ShardMetadata", "placement", number(1)), kBad, "the pickled _remote_device:"},
    {"StatedOffsets", kSharded, set("ShardMetadata", "shard_offsets", list({1, 0}), 1), kBad,
     "rank 1 has a different position of shard 0 from rank 0", FindingKind::kMixedSave},
    {"RemoteRank", kSharded, set("_remote_device", "_rank", number(0)), kBad, "a different position of shard 1",
     FindingKind::kMixedSave},
    {"RemoteRankNegative", kSharded, set("_remote_device", "_rank", number(-1)), kBad, "_remote_device's rank"},
    {"RemoteDevice", kSharded, set("_remote_device", "_device", none()), kBad, "its device is not one of torch's"},

    {"Rank", kSharded, set("ProcessGroupState", "global_rank", number(0)), kBad, "records that rank 0 wrote it",
     FindingKind::kRankMismatch},
    {"RankPastTheWorld", kSharded, set("ProcessGroupState", "global_rank", number(2)), kBad,
     "its rank is 2, its world size is 2", FindingKind::kRankMismatch},
    {"RankNegative", kSharded, set("ProcessGroupState", "global_rank", number(-1)), kBad, "ProcessGroupState's rank"},
    {"LocalRank", kSharded, set("ProcessGroupState", "local_rank", number(2)), kBad,
     "its local rank is 2, its local world size is 2", FindingKind::kRankMismatch},
    {"WorldSize", kSharded, set("ProcessGroupState", "global_world_size", number(3)), kBad, "was saved by 3 ranks",
     FindingKind::kWorldSizeMismatch},
    {"WorldSizeHuge", kSharded, set("ProcessGroupState", "global_world_size", number(kHuge)), kBad,
     "its world size is 1000000000000000000", FindingKind::kWorldSizeMismatch},
    {"LocalWorldSize", kSharded, set("ProcessGroupState", "local_world_size", number(3)), kBad,
     "its group is larger than the world", FindingKind::kWorldSizeMismatch},
    {"NoWorldSize", kSharded, rename("ProcessGroupState", "global_world_size"), kBad,
     "it has no attribute 'global_world_size'"},

    {"SpecClass", kSharded, set_class("ChunkShardingSpec", kShardMetadataModule, "ShardMetadata"), kBad,
     "the pickled EnumerableShardingSpec:"},
    {"SpecDim", kSharded, set("ChunkShardingSpec", "dim", number(2)), kBad, "its dim is not a dimension of the tensor",
     FindingKind::kShapeMismatch},
    {"SpecDimOther", kSharded, set("ChunkShardingSpec", "dim", number(1)), kBad, "a different sharding spec",
     FindingKind::kMixedSave},
    {"SpecDimText", kSharded, set("ChunkShardingSpec", "dim", text("rows")), kBad, "its dim is not a dimension",
     FindingKind::kShapeMismatch},
    {"SpecPlacements", kSharded, set("ChunkShardingSpec", "placements", number(2)), kBad, "s placements:"},
    {"SpecPlacementsOther", kSharded, set("ChunkShardingSpec", "placements", list({})), kBad,
     "a different sharding spec", FindingKind::kMixedSave},

    {"Tensor", kSharded, set("Shard", "tensor", none()), kBad, "a local shard is not a tensor"},
    {"TensorStorage", kSharded, set_tensor("Shard", "tensor", 0, none()), kBad, "not a persistent id of a storage"},
    {"TensorOffset", kSharded, set_tensor("Shard", "tensor", 1, number(kHuge)), kBad,
     "extends past the end of its storage", FindingKind::kOutOfBounds},
    {"TensorSize", kSharded, set_tensor("Shard", "tensor", 2, tuple({1, 3})), kBad,
     "a local shard does not have the shape of its box", FindingKind::kShapeMismatch},
    {"ShardNoMetadata", kSharded, rename("Shard", "metadata"), kBad, "it has no attribute 'metadata'"},
    {"SecondShard", kBoxes, set("ShardMetadata", "shard_offsets", list({4, 0}), 1), kBad,
     "the metadata names no shard of", FindingKind::kMixedSave},
};

const std::vector<Damage> kDTensors{
    {"Function", kDTensor, set_part("DTensor", 0, none()), kBad, "it is not rebuilt by _rebuild_wrapper_subclass"},
    {"Dtype", kDTensor, set_argument("DTensor", 1, global("torch", "int32")), kBad,
     "the dtype in its spec is not the tensor's", FindingKind::kDtypeMismatch},
    {"Size", kDTensor, set_argument("DTensor", 2, tuple({7, 2})), kBad, "the shape in its spec is not the tensor's",
     FindingKind::kShapeMismatch},
    {"SizeEverywhere", kDTensor,
     both(set_argument("DTensor", 2, tuple({9, 3})), set_item("TensorMeta", 0, tuple({9, 3}))), kBad,
     "rank 1 has a different shape from rank 0", FindingKind::kShapeMismatch},
    {"StateNone", kDTensor, set_part("DTensor", 3, none()), kBad, "it has no attribute '_local_tensor'"},
    {"NoLocalTensor", kDTensor, rename("DTensor", "_local_tensor"), kBad, "it has no attribute '_local_tensor'"},
    {"LocalTensor", kDTensor, set("DTensor", "_local_tensor", none()), kBad, "a local shard is not a tensor"},
    {"LocalSize", kDTensor, set_tensor("DTensor", "_local_tensor", 2, tuple({2, 3})), kBad,
     "a local shard does not have the shape of its box", FindingKind::kShapeMismatch},
    {"NoSpec", kDTensor, rename("DTensor", "_spec"), kBad, "it has no attribute '_spec'"},
    {"Spec", kDTensor, set("DTensor", "_spec", none()), kBad, "the pickled DTensorSpec:"},

    {"Mesh", kDTensor, set("DTensorSpec", "mesh", none()), kBad, "the pickled DeviceMesh:"},
    {"Placements", kDTensor, set("DTensorSpec", "placements", none()), kBad, "DTensorSpec's placements"},
    {"PlacementsNone", kDTensor, set("DTensorSpec", "placements", tuple({})), kBad, "0 placements on a mesh of 1 axis",
     FindingKind::kShapeMismatch},
    {"PlacementNumber", kDTensor, set("DTensorSpec", "placements", tuple({0})), kBad, "it is not one of torch's"},
    {"PlacementOther", kDTensor,
     both(set("DTensorSpec", "shard_order", none()), set_class("Shard", kPlacements, "Replicate")), kBad,
     "rank 1 has a different sharding", FindingKind::kMixedSave},
    {"PlacementPartial", kDTensor, set_class("Shard", kPlacements, "Partial"), kNo, "the placement Partial",
     std::nullopt},
    {"PlacementUnknown", kDTensor, set_class("Shard", kPlacements, "Placement"), kBad, "it is not one of torch's"},
    {"Dim", kDTensor, set("Shard", "dim", number(2)), kBad, "its dim is not a dimension of the tensor",
     FindingKind::kShapeMismatch},
    {"DimNegative", kDTensor, set("Shard", "dim", number(-3)), kBad, "its dim is not a dimension",
     FindingKind::kShapeMismatch},
    {"DimHuge", kDTensor, set("Shard", "dim", number(kHuge)), kBad, "its dim is not a dimension",
     FindingKind::kShapeMismatch},
    {"DimOther", kDTensor, both(set("DTensorSpec", "shard_order", none()), set("Shard", "dim", number(1))), kBad,
     "rank 1 has a different sharding", FindingKind::kMixedSave},
    {"DimAgainstTheOrder", kDTensor, set("Shard", "dim", number(1)), kBad, "axis 0 does not shard dimension 0"},
    {"NoDim", kDTensor, rename("Shard", "dim"), kBad, "it has no attribute 'dim'"},
    {"SplitFactorZero", kStrided, set("_StridedShard", "split_factor", number(0)), kBad, "its split factor is 0"},
    {"SplitFactor", kStrided, set("_StridedShard", "split_factor", number(3)), kBad, "a different sharding",
     FindingKind::kMixedSave},
    {"SplitFactorText", kStrided, set("_StridedShard", "split_factor", text("2")), kBad, "the pickled split factor:"},
    {"Meta", kDTensor, set("DTensorSpec", "tensor_meta", number(1)), kBad, "the pickled TensorMeta:"},
    {"MetaDtype", kDTensor, set_item("TensorMeta", 2, global("torch", "bool")), kBad, "the dtype in its",
     FindingKind::kDtypeMismatch},
    {"ShardOrderAxis", kDTensor, set_item("ShardOrderEntry", 1, tuple({1})), kBad, "axis 1 does not shard dimension 0"},
    {"ShardOrderDim", kDTensor, set_item("ShardOrderEntry", 0, number(1)), kBad, "axis 0 does not shard dimension 1"},
    {"ShardOrderAxes", kDTensor, set_item("ShardOrderEntry", 1, none()), kBad, "ShardOrderEntry's axes"},
    {"ShardOrder", kDTensor, set("DTensorSpec", "shard_order", tuple({0})), kBad, "it is not a pair"},

    {"RankMap", kDTensor, set("DeviceMesh", "_rank_map", none()), kBad, "its ranks are not a tensor"},
    {"NoRankMap", kDTensor, rename("DeviceMesh", "_rank_map"), kBad, "it has no attribute '_rank_map'"},
    {"RankMapHuge", kDTensor, claim_ranks("_rank_map", std::int64_t{1} << 40), kBad, "it has 1099511627776 ranks",
     FindingKind::kWorldSizeMismatch},
    {"RankMapEmpty", kDTensor, claim_ranks("_rank_map", 0), kBad, "it has 0 ranks", FindingKind::kWorldSizeMismatch},
    {"NoLayout", kDTensor, rename("DeviceMesh", "_layout"), kBad, "it has no attribute '_layout'"},
    {"LayoutShape", kDTensor, set("_MeshLayout", "shape", tuple({3})), kBad,
     "its layout refers to more than its 2 ranks", FindingKind::kOutOfBounds},
    {"LayoutShapeZero", kDTensor, set("_MeshLayout", "shape", tuple({0})), kBad, "a size is 0"},
    {"LayoutShapeHuge", kDTensor, set("_MeshLayout", "shape", tuple({kHuge})), kBad, "it has more than 1048576 ranks",
     FindingKind::kWorldSizeMismatch},
    {"LayoutShapeMany", kDTensor, set("_MeshLayout", "shape", tuple({1, 1})), kBad,
     "its shape and stride do not match"},
    {"LayoutStride", kDTensor, set("_MeshLayout", "stride", tuple({kHuge})), kBad,
     "its layout refers to more than its 2 ranks", FindingKind::kOutOfBounds},
    {"LayoutStrideZero", kDTensor, set("_MeshLayout", "stride", tuple({0})), kBad, "is on it twice",
     FindingKind::kRankMismatch},
    {"LayoutBeforeTheFirst", kDTensor,
     both(set("_MeshLayout", "shape", tuple({2, 2})), set("_MeshLayout", "stride", tuple({1, 1}))), kBad,
     "its layout refers to more than its 2 ranks", FindingKind::kOutOfBounds},
    {"LayoutStrideNegative", kDTensor, set("_MeshLayout", "stride", tuple({-1})), kBad, "mesh layout's stride"},
    {"Names", kDTensor, set("DeviceMesh", "_mesh_dim_names", tuple({0, 1})), kBad, "it has 1 axis and 2 names",
     FindingKind::kShapeMismatch},
    {"Name", kDTensor, set("DeviceMesh", "_mesh_dim_names", tuple({0})), kBad, "DeviceMesh's name"},
    {"Coordinate", kDTensor, set("DeviceMesh", "_coordinate_on_dim", tuple({0})), kBad,
     "its rank is not the one at its coordinate", FindingKind::kRankMismatch},
    {"CoordinatePastTheEnd", kDTensor, set("DeviceMesh", "_coordinate_on_dim", tuple({2})), kBad,
     "coordinate 2 is not in it", FindingKind::kRankMismatch},
    {"CoordinateOfTwo", kDTensor, set("DeviceMesh", "_coordinate_on_dim", tuple({1, 0})), kBad,
     "coordinate 1, 0 is not in it", FindingKind::kRankMismatch},
    {"CoordinateText", kDTensor, set("DeviceMesh", "_coordinate_on_dim", text("1")), kBad, "DeviceMesh's coordinate"},
    {"DeviceType", kDTensor, set("DeviceMesh", "_device_type", number(0)), kBad, "DeviceMesh's device type"},

    {"OldMesh", kOldMesh, set("DeviceMesh", "mesh", none()), kBad, "its ranks are not a tensor"},
    {"OldMeshHuge", kOldMesh, claim_ranks("mesh", std::int64_t{1} << 40), kBad, "it has 1099511627776 ranks",
     FindingKind::kWorldSizeMismatch},
    {"OldMeshOverflow", kOldMesh,
     [](Arena& arena, Value& root) {
       Value& tensor = *attribute_of(object_of(root, "DeviceMesh"), "mesh");
       tensor.items()[2] = tuple({kHuge, kHuge})(arena);
       tensor.items()[3] = tuple({1, 1})(arena);
     },
     kBad, "63 bits", std::nullopt},
    {"OldMeshNames", kOldMesh, set("DeviceMesh", "mesh_dim_names", tuple({})), kBad, "it has 1 axis and 0 names",
     FindingKind::kShapeMismatch},
    {"OldMeshRank", kOldMesh, set("DeviceMesh", "_coordinate_on_dim", list({0})), kBad, "are both of rank 0",
     FindingKind::kRankMismatch},

    {"NewLayoutAxes", kNewMesh, set("_MeshLayout", "axes", none()), kBad, "mesh layout's axes"},
    {"NewLayoutNone", kNewMesh, set("_MeshLayout", "axes", tuple({})), kBad, "it has 0 axes and 1 name",
     FindingKind::kShapeMismatch},
    {"NewLayoutShape", kNewMesh, set("_FlatLayout", "shape", tuple({4})), kBad,
     "its layout refers to more than its 2 ranks", FindingKind::kOutOfBounds},
    {"NewLayoutNoStride", kNewMesh, rename("_FlatLayout", "stride"), kBad, "it has no attribute 'stride'"},
};

class RankFileDamage : public ::testing::TestWithParam<Damage> {};

TEST_P(RankFileDamage, IsRefusedByName) {
  const Damage& damage = GetParam();
  const std::string path = damage.file;
  const std::size_t slash = path.rfind('/');
  const std::string file = path.substr(slash + 1);
  RankFolder folder(path.substr(0, slash));
  folder.edit(file, damage.change);
  const Error error = test::error_of([&] { folder.open(); });
  EXPECT_EQ(code_name(error.code()), code_name(damage.code));
  EXPECT_THAT(std::string(error.what()) + "\n" + error.why(), HasSubstr(damage.words));
  EXPECT_TRUE(!damage.kind || error.kind() == damage.kind);
  EXPECT_FALSE(error.file().empty());
}

const auto kName = [](const auto& info) { return info.param.name; };
INSTANTIATE_TEST_SUITE_P(ShardedTensor, RankFileDamage, ::testing::ValuesIn(kShardedTensors), kName);
INSTANTIATE_TEST_SUITE_P(DTensor, RankFileDamage, ::testing::ValuesIn(kDTensors), kName);

TEST(RankFilePlacements, AShardThatIsPlacedOnAnotherRankIsRefused) {
  RankFolder folder("2.11.0/ranks_sharded_r2");
  folder.edit("rank_0.pt", set("_remote_device", "_rank", number(0), 1));
  folder.edit("rank_1.pt", set("_remote_device", "_rank", number(0), 0));
  const Error error = test::error_of([&] { folder.open(); });
  EXPECT_EQ(error.kind(), FindingKind::kRankMismatch);
  EXPECT_THAT(error.what(), HasSubstr("the shard of [3, 3] at [4, 0] is on a different rank"));
  EXPECT_EQ(error.expected(), "1");
  EXPECT_EQ(error.found(), "0");
}

// --- Fields that a reader does not need may have any value ---

TEST(RankFileTolerance, FieldsThatSayNothingOfPlacesAreNotLookedAt) {
  RankFolder folder("2.11.0/ranks_sharded_r2");
  folder.edit("rank_1.pt", both(set_item("TensorProperties", 3, none()), set_item("TensorProperties", 4, number(7))));
  folder.edit("rank_1.pt", set_item("ShardedTensor", 4, text("init_rrefs")));
  EXPECT_EQ(folder.open()->catalog().tensors.size(), 3U);
}

TEST(RankFileTolerance, AttributesThatCameAndWentAreNotLookedAt) {
  RankFolder folder("2.11.0/ranks_dtensor_r2");
  for (const char* name : {"_thread_id", "_dim_group_names", "_flatten_mapping", "_root_mesh", "_rank"}) {
    folder.edit("model_world_size_2_rank_1.pt", rename("DeviceMesh", name));
  }
  EXPECT_EQ(folder.open()->catalog().tensors.size(), 3U);
}

TEST(RankFileTolerance, EnumsByNameAreAsGoodAsByNumber) {
  RankFolder folder("2.11.0/ranks_sharded_r2");
  folder.edit("rank_0.pt", [](Arena& arena, Value& root) {
    Value* type = make_global(arena, "torch.distributed._shard.sharded_tensor.metadata", "MEM_FORMAT_ENCODING");
    Value* name = make_string(arena, "TORCH_CONTIGUOUS_FORMAT");
    object_of(root, "TensorProperties").state()->items()[3] =
        make_call(arena, make_global(arena, "builtins", "getattr"), std::vector{type, name});
  });
  EXPECT_EQ(folder.open()->catalog().tensors.size(), 3U);
}

TEST(RankFileTolerance, PlacementsMayBeText) {
  RankFolder folder("2.11.0/ranks_sharded_r2");
  folder.edit("rank_1.pt", set("ShardMetadata", "placement", text("rank:1/cpu")));
  EXPECT_EQ(folder.open()->catalog().tensors.size(), 3U);
}

// --- Meshes with false claims ---

RankFolder meshes(const std::vector<std::int64_t>& ranks) {
  RankFolder folder;
  for (int rank = 0; rank < 2; ++rank) {
    RankFileMaker maker;
    const Sharding words{{{"", 2}}, ranks, {{Placement::kShard, 0, 1}}};
    maker.put_dtensor("w", {2}, words, rank, maker.floats({1}, {0}));
    folder.put(std::to_string(rank) + ".pt", maker);
  }
  return folder;
}

TEST(RankFileMeshes, StridedShardsOfCountlessBoxesAreRefused) {
  RankFolder folder;
  const std::int64_t side = std::int64_t{1} << 20;
  for (int rank = 0; rank < 4; ++rank) {
    RankFileMaker maker;
    const Sharding words{
        {{"a", 2}, {"b", 2}}, {}, {{Placement::kStridedShard, 0, side}, {Placement::kStridedShard, 1, side}}};
    maker.put_dtensor("w", {2 * side, 2 * side}, words, rank, maker.floats({1}, {0}));
    folder.put(std::to_string(rank) + ".pt", maker);
  }
  test::expect_error(ErrorCode::kCorruption, "boxes of shards are far too many", [&] { folder.open(); });
}

TEST(RankFileMeshes, ARankTwiceIsRefused) {
  RankFolder folder = meshes({1, 1});
  test::expect_error(kBad, "rank 1 is on it twice", [&] { folder.open(); });
}

TEST(RankFileMeshes, ANegativeRankIsRefused) {
  RankFolder folder = meshes({-1, 0});
  test::expect_error(kBad, "rank -1 is on it", [&] { folder.open(); });
}

TEST(RankFileMeshes, ARankPastEveryWorldIsRefused) {
  RankFolder folder = meshes({0, kHuge});
  test::expect_error(kBad, "rank 1000000000000000000 is on it", [&] { folder.open(); });
}

TEST(RankFileMeshes, AHighRankMeansThatOthersAreMissing) {
  RankFolder folder = meshes({0, 1'000'000});
  test::expect_error(ErrorCode::kNotFound, "ranks 1, 2, 3, 4, 5, 6, 7, 8 and 999991 more are missing",
                     [&] { folder.open(); });
}

}  // namespace
}  // namespace shard::testing
