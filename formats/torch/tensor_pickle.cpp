#include "formats/torch/tensor_pickle.h"

#include <fmt/format.h>

#include <algorithm>

#include "formats/parts/pickle/attributes.h"
#include "formats/torch/saved_file.h"
#include "libshard/core/box.h"
#include "libshard/core/checked.h"
#include "libshard/core/error.h"
#include "libshard/core/numpy_values.h"

namespace shard::torch_save {

namespace {

// Tensors that pickles wrap in further calls: those of devices without storages, and those with Python attributes.

/// A call of _rebuild_tensor, _rebuild_tensor_v2 or _rebuild_tensor_v3.
std::optional<TensorView> as_plain_tensor(Arena& arena, const Value& value);

std::string_view function_of(const Value& call, std::string_view module) {
  const bool has_name = call.kind == ValueKind::kCall && call.callee()->kind == ValueKind::kGlobal;
  return has_name && call.callee()->module() == module ? call.callee()->text() : std::string_view();
}

/// Row-major or column-major strides of a contiguous array.
Dims contiguous_strides(Arena& arena, Dims shape, bool column_major) {
  std::vector<std::int64_t> strides(static_cast<std::size_t>(shape.size()));
  std::int64_t step = 1;
  for (int i = 0; i < shape.size(); ++i) {
    const int d = column_major ? i : shape.size() - 1 - i;
    strides[static_cast<std::size_t>(d)] = step;
    step = checked_mul(step, std::max<std::int64_t>(shape[d], 1));
  }
  return arena.dims(strides);
}

/// The elements of a numpy array as a tensor of `dtype`. torch saved bfloat16 as float32, because numpy lacks it.
std::optional<TensorView> from_numpy(Arena& arena, const Value& data, DType dtype) {
  const std::optional<NumpyValue> array = as_numpy(data);
  if (!array || array->kind != NumpyValue::Kind::kArray || !array->bytes) return std::nullopt;
  const std::optional<DType> stored = dtype_of_name(numpy_dtype_name(array->code));
  const bool is_widened = stored == DType::kFloat32 && dtype == DType::kBfloat16;
  if (!stored || (stored != dtype && !is_widened)) return std::nullopt;
  if (array->shape.size() > static_cast<std::size_t>(kMaxDims) ||
      checked_bytes(checked_numel(array->shape), *stored) != static_cast<std::int64_t>(array->bytes->size())) {
    throw pickle::malformed("tensor", "its numpy array does not have the size of its shape");
  }
  TensorView view;
  view.dtype = view.storage_dtype = dtype;
  view.shape = arena.dims(array->shape);
  view.strides = contiguous_strides(arena, view.shape, array->column_major);
  view.inside = *array->bytes;
  view.inside_swapped = array->big_endian;
  view.inside_widened = is_widened;
  view.storage_bytes = static_cast<std::int64_t>(view.inside->size()) / (is_widened ? 2 : 1);
  view.location = "cpu";
  return view;
}

/// (data, dtype, device, requires_grad)
std::optional<TensorView> as_device_tensor(Arena& arena, const Value& value) {
  const std::string_view function = function_of(value, "torch._utils");
  const bool from_cpu = function == "_rebuild_device_tensor_from_cpu_tensor";
  if (!from_cpu && function != "_rebuild_device_tensor_from_numpy" && function != "_rebuild_xla_tensor") return {};
  const std::span<Value* const> arguments = value.items();
  if (arguments.size() != 4 || !arguments[2]->is_string() || arguments[3]->kind != ValueKind::kBool) return {};
  const DType dtype = pickle::dtype(*arguments[1], "tensor");
  std::optional<TensorView> view =
      from_cpu ? as_plain_tensor(arena, *arguments[0]) : from_numpy(arena, *arguments[0], dtype);
  if (!view || view->dtype != dtype) return std::nullopt;
  view->device = arguments[2]->text();
  view->requires_grad = arguments[3]->boolean();
  return view;
}

bool is_tensor_class(const Value& value) {
  return value.is_global("torch", "Tensor") || value.is_global("torch.nn.parameter", "Buffer");
}

/// True if the state of a tensor's object contains more than the mark of a module's buffer.
bool sets_attributes(const Value& state) {
  if (state.kind == ValueKind::kNone) return false;
  for (const auto [key, value] : ItemPairs(state)) {
    if (!key->is_string() || (key->text() != "persistent" && key->text() != "_is_buffer")) return true;
  }
  return !is_mapping(state);
}

/// The only tensor among the attributes of a tensor's object; null if there are none or several. The state is a dict,
/// or (dict or None, dict of slots).
const Value* only_tensor(Arena& arena, const Value& state) {
  HiddenTensors hidden(arena);
  const Value* found = nullptr;
  const auto search = [&](const Value& attributes) {
    for (const auto [key, value] : ItemPairs(attributes)) {
      if (value->kind != ValueKind::kTensor && hidden.kind_in(*value).empty()) continue;
      if (found != nullptr) return false;
      found = value;
    }
    return true;
  };
  if (state.kind != ValueKind::kTuple) return search(state) ? found : nullptr;
  const bool is_read = std::ranges::all_of(state.items(), [&](const Value* part) { return search(*part); });
  return is_read ? found : nullptr;
}

/// Arguments: (class, dtype, size, stride, offset, layout, device, requires_grad) and the state of a wrapper subclass.
std::optional<TensorView> as_wrapper_subclass(Arena& arena, const Value& value) {
  constexpr std::size_t kWrapperArguments = 8;
  const Value &type = *value.items()[1], &arguments = *value.items()[2];
  const bool is_wrapper = value.items()[0]->is_global("torch._utils", "_rebuild_wrapper_subclass");
  if (!is_wrapper || type.kind != ValueKind::kOpaque || arguments.items().size() < kWrapperArguments)
    return std::nullopt;
  const Value* inner = only_tensor(arena, *value.items()[3]);
  if (inner == nullptr) return std::nullopt;
  const bool is_parameter = inner->is_call_of("torch._utils", "_rebuild_parameter") && !inner->items().empty();
  std::optional<TensorView> view = as_plain_tensor(arena, is_parameter ? *inner->items()[0] : *inner);
  if (!view || !arguments.items()[1]->is_global("torch", dtype_name(view->dtype))) return std::nullopt;
  if (!(pickle::dims(arena, *arguments.items()[2], "tensor's size") == view->shape)) return std::nullopt;
  view->requires_grad = arguments.items()[7]->boolean();
  view->has_attributes = true;
  return view;
}

/// The tensor of a call of _rebuild_device_tensor_from_cpu_tensor or _rebuild_device_tensor_from_numpy
/// (_rebuild_xla_tensor), or of _rebuild_from_type_v2 (_rebuild_from_type) around one of all those with the class
/// torch.Tensor or a Buffer. Also the tensor of a wrapper subclass outside the list whose state contains one plain
/// tensor of the wrapper's own shape and dtype. Nothing if the original value is unknown, because there is a cast in
/// between, or a different subclass.
std::optional<TensorView> as_wrapped_tensor(Arena& arena, const Value& value) {
  std::string_view function = function_of(value, "torch._tensor");
  if (function.empty()) function = function_of(value, "torch.tensor");
  if (!function.starts_with("_rebuild_from_type")) return as_device_tensor(arena, value);
  // (function, class, arguments, state)
  if (value.items().size() != 4 || value.items()[2]->kind != ValueKind::kTuple) return std::nullopt;
  if (!is_tensor_class(*value.items()[1])) return as_wrapper_subclass(arena, value);
  CallParts parts{.callee = value.items()[0]};
  Value call{.kind = ValueKind::kCall, .call = &parts};
  call.set_items(value.items()[2]->items());
  std::optional<TensorView> view = as_plain_tensor(arena, call);
  if (!view) view = as_device_tensor(arena, call);
  if (view) view->has_attributes = sets_attributes(*value.items()[3]);
  return view;
}

using pickle::boolean;
using pickle::dims;
using pickle::mapping;
using pickle::natural;
using pickle::string;

constexpr std::string_view kUtils = "torch._utils";

[[noreturn]] void malformed(const std::string& why) { throw pickle::malformed("tensor", why); }

/// The dtype of a storage class; nothing for an untyped one, which counts bytes.
std::optional<DType> storage_dtype(const Value& storage_class) {
  if (storage_class.kind != ValueKind::kGlobal) malformed("its storage's class is not a class by name");
  const std::string_view name = storage_class.text();
  const std::string_view module = storage_class.module();
  if (name == "UntypedStorage" && (module == "torch.storage" || module == "torch")) return std::nullopt;
  const auto* known = std::ranges::find(kDTypeRows, name, &DTypeRow::torch_class);
  if (name.empty() || known == kDTypeRows.end() || (module != "torch" && module != "torch.cuda")) {
    malformed(fmt::format("its storage's class is {}.{}", module, name));
  }
  return known->dtype;
}

std::span<Value* const> storage_id_items(const Value& value) {
  const bool has_id = value.kind == ValueKind::kPersid && value.items()[0]->kind == ValueKind::kTuple;
  const std::span<Value* const> id = has_id ? value.items()[0]->items() : std::span<Value*>();
  if (id.size() < 5 || id.size() > 6 || !id[0]->is_string() || id[0]->text() != "storage") {
    malformed("its storage is not a persistent id of a storage");
  }
  return id;
}

void read_storage(const StorageId& storage, const Value& persistent, TensorView& view) {
  view.dtype = view.storage_dtype = storage.dtype;
  view.key = storage.key;
  view.location = storage.location;
  view.storage_bytes = storage.bytes;
  const std::span<Value* const> id = storage_id_items(persistent);
  if (id.size() == 5 || id[5]->kind == ValueKind::kNone) return;
  // In legacy files the storage itself is a view, (key, offset, size), of a stored one.
  const Value& part = *id[5];
  if (part.kind != ValueKind::kTuple || part.items().size() != 3) malformed("its storage's view is not a triple");
  view.first = natural(*part.items()[1], "storage view's offset");
  if (checked_add(view.first, natural(*part.items()[2], "storage view's size")) > storage.count) {
    malformed("its storage's view extends past the storage");
  }
}

void read_flags(const Value& metadata, TensorView& view) {
  if (metadata.kind == ValueKind::kNone) return;
  for (const auto [key, value] : ItemPairs(mapping(metadata, "tensor's metadata"))) {
    const std::string_view flag = string(*key, "key of a tensor's metadata");
    if (flag != "conj" && flag != "neg") {
      throw Error(ErrorCode::kUnsupported, fmt::format("a tensor with the metadata '{}' is not supported", flag));
    }
    (flag == "conj" ? view.conj : view.neg) = boolean(*value, flag == "conj" ? "tensor's conj" : "tensor's neg");
  }
}

/// \throws Error kCorruption  an element of the view is past the storage's end.
void check_bounds(const TensorView& view) {
  if (checked_numel(view.shape) == 0) return;
  std::int64_t last = view.first;
  for (int d = 0; d < view.shape.size(); ++d) last = checked_add(last, checked_mul(view.shape[d] - 1, view.strides[d]));
  const std::int64_t end_bytes = checked_bytes(checked_add(last, 1), view.dtype);
  if (end_bytes <= view.storage_bytes) return;
  throw Error(ErrorCode::kCorruption, fmt::format("a tensor of shape {} extends past the end of its storage '{}'",
                                                  to_string(view.shape), view.key))
      .expected(fmt::format("at most {} bytes", view.storage_bytes))
      .found(fmt::format("{} bytes", end_bytes))
      .of_kind(FindingKind::kOutOfBounds);
}

/// The version of a rebuild function: 1, 2, 3, or 0 for another value.
int rebuild_version(const Value& value) {
  if (value.kind != ValueKind::kCall || value.callee()->kind != ValueKind::kGlobal) return 0;
  const Value& function = *value.callee();
  if (function.module() != kUtils || !function.text().starts_with("_rebuild_tensor")) return 0;
  if (function.text() == "_rebuild_tensor") return 1;
  if (function.text() == "_rebuild_tensor_v2") return 2;
  return function.text() == "_rebuild_tensor_v3" ? 3 : 0;
}

/// The tensor inside a call of _rebuild_parameter, or `value` if it is not such a call. Unwraps one call, because torch
/// never nests them.
const Value& without_parameter(const Value& value) {
  const bool is_parameter = value.is_call_of(kUtils, "_rebuild_parameter") && !value.items().empty();
  return is_parameter ? *value.items()[0] : value;
}

struct ArgumentCounts {
  std::size_t least, most;
};
constexpr ArgumentCounts kArguments[] = {{0, 0}, {4, 4}, {6, 7}, {7, 8}};  // By version.

std::optional<TensorView> as_plain_tensor(Arena& arena, const Value& value) {
  const int version = rebuild_version(value);
  if (version == 0) return std::nullopt;
  const std::span<Value* const> arguments = value.items();
  const ArgumentCounts counts = kArguments[version];
  if (arguments.size() < counts.least || arguments.size() > counts.most || value.is_new || value.state() != nullptr ||
      value.extra() != nullptr) {
    malformed(fmt::format("{} with {} arguments", value.callee()->text(), arguments.size()));
  }
  TensorView view;
  const StorageId storage = as_storage_id(*arguments[0]);
  read_storage(storage, *arguments[0], view);
  view.first = checked_add(view.first, natural(*arguments[1], "tensor's offset"));
  view.shape = dims(arena, *arguments[2], "tensor's size");
  view.strides = dims(arena, *arguments[3], "tensor's stride");
  if (view.shape.size() != view.strides.size()) malformed("size and stride differ in length");
  if (version >= 2) view.requires_grad = boolean(*arguments[4], "tensor's requires_grad");
  if (version == 3) {
    view.dtype = pickle::dtype(*arguments[6], "tensor");
    if (storage.is_untyped) view.storage_dtype = view.dtype;
  }
  if (arguments.size() == counts.most && version >= 2) read_flags(*arguments[counts.most - 1], view);
  check_bounds(view);
  return view;
}

}  // namespace

StorageId as_storage_id(const Value& value) {
  const std::span<Value* const> id = storage_id_items(value);
  const std::optional<DType> typed = storage_dtype(*id[1]);
  StorageId storage;
  storage.dtype = typed.value_or(DType::kUint8);
  storage.is_untyped = !typed;
  storage.key = string(*id[2], "storage's key");
  storage.location = string(*id[3], "storage's location");
  storage.count = natural(*id[4], "storage's size");
  storage.bytes = checked_bytes(storage.count, storage.dtype);
  return storage;
}

std::optional<TensorView> as_tensor(Arena& arena, const Value& value) {
  if (rebuild_version(value) != 0) return as_plain_tensor(arena, value);
  return as_wrapped_tensor(arena, value);
}

StoredTensor stored_tensor(const TensorView& view, std::uint32_t storage) {
  StoredTensor stored;
  stored.shape = view.shape;
  stored.strides = view.strides;
  stored.first = view.first;
  stored.storage = storage;
  stored.dtype = view.dtype;
  stored.requires_grad = view.requires_grad;
  return stored;
}

std::string_view tensor_subclass(const Value& value) {
  const Value& tensor = without_parameter(value);
  if (tensor.kind != ValueKind::kCall || tensor.callee()->kind != ValueKind::kGlobal) return {};
  if (!tensor.callee()->text().starts_with("_rebuild_from_type") || tensor.items().size() < 2) return {};
  const Value& type = *tensor.items()[1];
  if (type.kind != ValueKind::kGlobal && type.kind != ValueKind::kOpaque) return "object";
  return {type.module().data(), type.module().size() + 1 + type.text().size()};
}

std::string_view unsupported_tensor_kind(const Value& given) {
  const Value& value = without_parameter(given);
  if (value.kind == ValueKind::kPersid) return "storage without a tensor";
  if (value.kind != ValueKind::kCall || value.callee()->kind != ValueKind::kGlobal) return {};
  const std::string_view module = value.callee()->module();
  const std::string_view name = value.callee()->text();
  if (module == kUtils) {
    if (name == "_rebuild_qtensor") return "quantized";
    if (name.starts_with("_rebuild_sparse")) return "sparse";
    if (name.starts_with("_rebuild_nested")) return "nested";
    if (name == "_rebuild_meta_tensor_no_storage") return "meta";
    if (name == "_rebuild_wrapper_subclass") return "subclass";
    if (name == "_rebuild_parameter_with_state") return "compound";
    if (name.starts_with("_rebuild_device_tensor") || name == "_rebuild_xla_tensor") return "device";
    return {};
  }
  if (name.starts_with("_rebuild_from_type")) return "subclass";
  if (module == "torch.nested._internal.nested_tensor") return "nested";
  if (module == "torch.sparse") return "sparse";
  if (module == "torch.nn.parameter" && name.starts_with("Uninitialized")) return "uninitialized";
  const bool is_class = module == "torch" || module == "torch.cuda";
  return is_class && name.ends_with("Tensor") ? "legacy" : std::string_view();
}

}  // namespace shard::torch_save
