#include <algorithm>
#include <array>
#include <span>
#include <string_view>

#include "formats/parts/pickle/pickle.h"
#include "libshard/core/dtype.h"

namespace shard::pickle {

namespace {

using Names = std::string_view;  // Names with a space before and after each.

struct Module {
  std::string_view name;
  Names names;
};

bool has_name(Names names, std::string_view name) {
  for (std::size_t at = names.find(name); at != Names::npos; at = names.find(name, at + 1)) {
    if (names[at - 1] == ' ' && names[at + name.size()] == ' ') return true;
  }
  return false;
}

constexpr Names kStorages =
    " BFloat16Storage BoolStorage ByteStorage CharStorage ComplexDoubleStorage ComplexFloatStorage DoubleStorage"
    " FloatStorage HalfStorage IntStorage LongStorage QInt32Storage QInt8Storage QUInt2x4Storage QUInt4x2Storage"
    " QUInt8Storage ShortStorage UntypedStorage ";
constexpr Names kTensorClasses =
    " BFloat16Tensor BoolTensor ByteTensor CharTensor DoubleTensor FloatTensor HalfTensor IntTensor LongTensor"
    " ShortTensor ";
constexpr Names kPaths = " Path PosixPath PurePath PurePosixPath PureWindowsPath WindowsPath ";
constexpr Names kShardedTensor =
    " ShardedTensor ShardedTensorBase ShardedTensor.ProcessGroupState ProcessGroupState Shard ShardedTensorMetadata"
    " TensorProperties MEM_FORMAT_ENCODING TensorInitParams CreateOp ";
constexpr Names kShardingSpecs =
    " ChunkShardingSpec EnumerableShardingSpec DevicePlacementSpec PlacementSpec ShardingSpec ShardMetadata ";
constexpr Names kPlacements = " Placement Shard Replicate Partial _Partial _StridedShard _MaskPartial ";
constexpr Names kOldPlacements =  // The module of the specs up to torch 2.3.
    " Placement Shard Replicate Partial _Partial _StridedShard _MaskPartial DTensorSpec TensorMeta ";
constexpr Names kDTensorClasses = " DTensor DTensorSpec TensorMeta ShardOrderEntry ";
constexpr Names kMetadataClasses =
    " Metadata MetadataIndex TensorStorageMetadata BytesStorageMetadata ChunkStorageMetadata TensorProperties"
    " StorageMeta _MEM_FORMAT_ENCODING MEM_FORMAT_ENCODING ";

constexpr Names kRerunEnums = " RerunDiagnostic RerunMode RerunState ";
constexpr Names kTransformerEnums = " AttnBackend CudaGraphModule CudaGraphScope InferenceCudaGraphScope ";

// The allowed globals by module name. Sources: torch/_weights_only_unpickler.py, and the other classes in files that
// torch writes. deepspeed: the classes in the states of a model and of a ZeRO optimizer, module by module. megatron,
// _io, numpy.dtypes, signal, torch._C and types: megatron/core/safe_globals.py. Values of all these classes are data;
// no code of them runs.
constexpr auto kModules = std::to_array<Module>({
    {"_codecs", " encode "},
    {"_io", " BytesIO "},
    {"argparse", " Namespace "},
    {"builtins",
     " Ellipsis bool bytearray bytes complex dict float frozenset getattr int list object range set slice str tuple "},
    {"collections", " Counter OrderedDict defaultdict deque "},
    {"copyreg", " _reconstructor "},
    {"datetime", " date datetime time timedelta timezone "},
    {"deepspeed.checkpoint.universal_checkpoint", " SubparamShape "},
    {"deepspeed.runtime.fp16.loss_scaler", " DynamicLossScaler LossScaler "},
    {"deepspeed.runtime.zero.config", " ZeroStageEnum "},
    {"deepspeed.utils.tensor_fragment", " fragment_address "},
    {"megatron.core.enums", " ModelType "},
    {"megatron.core.optimizer", " OptimizerConfig "},
    {"megatron.core.optimizer.optimizer_config", " OptimizerConfig "},
    {"megatron.core.rerun_state_machine", kRerunEnums},
    {"megatron.core.transformer.enums", kTransformerEnums},
    {"numpy",
     " dtype ndarray bool_ int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64"
     " complex128 "},
    {"numpy._core.multiarray", " _reconstruct scalar "},
    {"numpy._core.numeric", " _frombuffer "},
    {"numpy.core.multiarray", " _reconstruct scalar "},
    {"numpy.core.numeric", " _frombuffer "},
    {"numpy.dtypes", " UInt32DType "},
    {"pathlib", kPaths},
    {"pathlib._local", kPaths},
    {"signal", " Signals "},
    {"torch._C", " Generator "},
    {"torch._dynamo.decorators", " _DimRange "},
    {"torch._tensor", " _rebuild_from_type _rebuild_from_type_v2 "},
    {"torch._utils",
     " _rebuild_device_tensor_from_cpu_tensor _rebuild_device_tensor_from_numpy _rebuild_meta_tensor_no_storage"
     " _rebuild_nested_tensor _rebuild_parameter _rebuild_parameter_with_state _rebuild_qtensor _rebuild_sparse_tensor"
     " _rebuild_sparse_csr_tensor _rebuild_tensor _rebuild_tensor_v2 _rebuild_tensor_v3 _rebuild_wrapper_subclass"
     " _rebuild_xla_tensor "},
    {"torch.autograd.variable", " Variable "},
    {"torch.cuda.sparse", kTensorClasses},
    {"torch.distributed._functional_collectives", " AsyncCollectiveTensor "},
    {"torch.distributed._mesh_layout", " _FlatLayout _MeshLayout "},
    {"torch.distributed._shard.checkpoint.filesystem", " _StorageInfo _StoragePrefix "},
    {"torch.distributed._shard.checkpoint.metadata", kMetadataClasses},
    {"torch.distributed._shard.metadata", kShardingSpecs},
    {"torch.distributed._shard.sharded_tensor.api", kShardedTensor},
    {"torch.distributed._shard.sharded_tensor.metadata", kShardedTensor},
    {"torch.distributed._shard.sharded_tensor.shard", kShardedTensor},
    {"torch.distributed._shard.sharding_spec", kShardingSpecs},
    {"torch.distributed._shard.sharding_spec.api", kShardingSpecs},
    {"torch.distributed._shard.sharding_spec.chunk_sharding_spec", kShardingSpecs},
    {"torch.distributed._sharded_tensor.api", kShardedTensor},
    {"torch.distributed._sharded_tensor.metadata", kShardedTensor},
    {"torch.distributed._sharded_tensor.shard", kShardedTensor},
    {"torch.distributed._sharding_spec.api", kShardingSpecs},
    {"torch.distributed._tensor", kDTensorClasses},
    {"torch.distributed._tensor._dtensor_spec", kDTensorClasses},
    {"torch.distributed._tensor.api", kDTensorClasses},
    {"torch.distributed._tensor.device_mesh", " DeviceMesh "},
    {"torch.distributed._tensor.placement_types", kOldPlacements},
    {"torch.distributed.checkpoint._fsspec_filesystem", " _StorageInfo "},
    {"torch.distributed.checkpoint._hf_utils", " _HFStorageInfo "},
    {"torch.distributed.checkpoint.filesystem", " _StorageInfo _StoragePrefix "},
    {"torch.distributed.checkpoint.metadata", kMetadataClasses},
    {"torch.distributed.device_mesh", " DeviceMesh "},
    {"torch.distributed.distributed_c10d", " ReduceOp ReduceOp.RedOpType RedOpType "},
    {"torch.distributed.remote_device", " _remote_device "},
    {"torch.distributed.tensor", kDTensorClasses},
    {"torch.distributed.tensor._api", kDTensorClasses},
    {"torch.distributed.tensor._dtensor_spec", kDTensorClasses},
    {"torch.distributed.tensor.placement_types", kPlacements},
    {"torch.distributed.tensor.types", kPlacements},
    {"torch.nested._internal.nested_tensor", " NestedTensor _rebuild_njt "},
    {"torch.nn.parameter", " Buffer Parameter UninitializedBuffer UninitializedParameter "},
    {"torch.serialization", " _get_layout "},
    {"torch.sparse", kTensorClasses},
    {"torch.storage", " TypedStorage UntypedStorage _TypedStorage _UntypedStorage "},
    {"torch.tensor", " _rebuild_from_type_v2 "},
    {"types", " SimpleNamespace "},
    {"uuid", " SafeUUID UUID "},
});
static_assert(std::ranges::is_sorted(kModules, {}, &Module::name));

// The enums among them. Some Python versions pickle a member as getattr(Class, 'member').
constexpr auto kEnums = std::to_array<Module>({
    {"deepspeed.runtime.zero.config", " ZeroStageEnum "},
    {"megatron.core.enums", " ModelType "},
    {"megatron.core.rerun_state_machine", kRerunEnums},
    {"megatron.core.transformer.enums", kTransformerEnums},
    {"signal", " Signals "},
});
static_assert(std::ranges::is_sorted(kEnums, {}, &Module::name));

bool lists(std::span<const Module> modules, std::string_view module, std::string_view name) {
  const auto entry = std::ranges::lower_bound(modules, module, {}, &Module::name);
  return entry != modules.end() && entry->name == module && has_name(entry->names, name);
}

constexpr Names kTorchNames =
    " Size Tensor device per_channel_affine per_channel_affine_float_qparams per_channel_symmetric per_tensor_affine"
    " per_tensor_symmetric contiguous_format channels_last channels_last_3d preserve_format strided sparse_coo"
    " int1 int2 int3 int4 int5 int6 int7 uint1 uint2 uint3 uint4 uint5 uint6 uint7 ";

bool is_torch_name(std::string_view name) {
  const std::optional<DType> dtype = dtype_of_name(name);
  if (dtype && dtype_name(*dtype) == name) return true;
  return has_name(kTorchNames, name) || has_name(kStorages, name) || has_name(kTensorClasses, name);
}

}  // namespace

bool is_known_global(std::string_view module, std::string_view name) {
  if (name.empty() || name.find(' ') != std::string_view::npos) return false;
  if (module == "torch") return is_torch_name(name);
  if (module == "torch.cuda") return has_name(kStorages, name) || has_name(kTensorClasses, name);
  return lists(kModules, module, name);
}

bool is_known_enum(std::string_view module, std::string_view name) { return lists(kEnums, module, name); }

}  // namespace shard::pickle
