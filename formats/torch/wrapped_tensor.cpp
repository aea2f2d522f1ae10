#include "formats/torch/wrapped_tensor.h"

#include <algorithm>

#include "formats/parts/pickle/attributes.h"
#include "formats/parts/pickle/numpy_values.h"
#include "formats/torch/saved_file.h"
#include "libshard/core/box.h"
#include "libshard/core/checked.h"
#include "libshard/core/error.h"

namespace shard::torch_save {

namespace {

using pickle::NumpyValue;

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

/// The elements of a numpy array as a tensor of `dtype`; torch saved bfloat16 as float32, for numpy has none.
std::optional<TensorView> from_numpy(Arena& arena, const Value& data, DType dtype) {
  const std::optional<NumpyValue> array = pickle::as_numpy(data);
  if (!array || array->kind != NumpyValue::Kind::kArray || !array->bytes) return std::nullopt;
  const std::optional<DType> stored = dtype_of_name(pickle::numpy_dtype_name(array->code));
  const bool is_widened = stored == DType::kFloat32 && dtype == DType::kBfloat16;
  if (!stored || (stored != dtype && !is_widened)) return std::nullopt;
  if (array->shape.size() > static_cast<std::size_t>(kMaxDims) ||
      checked_bytes(checked_numel(array->shape), *stored) != static_cast<std::int64_t>(array->bytes->size())) {
    throw pickle::malformed("tensor", "its numpy array has another size than its shape");
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

/// True where the state of a tensor's object says more than that it is a module's buffer.
bool sets_attributes(const Value& state) {
  if (state.kind == ValueKind::kNone) return false;
  const std::span<Value*> pairs = mapping_items(state);
  for (std::size_t i = 0; i < pairs.size(); i += 2) {
    if (!pairs[i]->is_string() || (pairs[i]->text() != "persistent" && pairs[i]->text() != "_is_buffer")) return true;
  }
  return !is_mapping(state);
}

/// The only tensor among the attributes of a tensor's object; null where there are none or several. The state is a
/// dict, or (dict or None, dict of slots).
const Value* only_tensor(Arena& arena, const Value& state) {
  HiddenTensors hidden(arena);
  const Value* found = nullptr;
  const auto search = [&](const Value& attributes) {
    const std::span<Value*> pairs = mapping_items(attributes);
    for (std::size_t i = 0; i < pairs.size(); i += 2) {
      const Value& each = *pairs[i + 1];
      if (each.kind != ValueKind::kTensor && hidden.kind_in(each).empty()) continue;
      if (found != nullptr) return false;
      found = &each;
    }
    return true;
  };
  if (state.kind != ValueKind::kTuple) return search(state) ? found : nullptr;
  const bool is_read = std::ranges::all_of(state.items(), [&](const Value* part) { return search(*part); });
  return is_read ? found : nullptr;
}

/// (class, dtype, size, stride, offset, layout, device, requires_grad) and the state of a wrapper subclass.
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

}  // namespace

std::optional<TensorView> as_wrapped_tensor(Arena& arena, const Value& value) {
  std::string_view function = function_of(value, "torch._tensor");
  if (function.empty()) function = function_of(value, "torch.tensor");
  if (!function.starts_with("_rebuild_from_type")) return as_device_tensor(arena, value);
  // (function, class, arguments, state)
  if (value.items().size() != 4 || value.items()[2]->kind != ValueKind::kTuple) return std::nullopt;
  if (!is_tensor_class(*value.items()[1])) return as_wrapper_subclass(arena, value);
  CallParts parts{value.items()[0], value.items()[2]->items()};
  Value call;
  call.kind = ValueKind::kCall;
  call.call = &parts;
  std::optional<TensorView> view = as_plain_tensor(arena, call);
  if (!view) view = as_device_tensor(arena, call);
  if (view) view->has_attributes = sets_attributes(*value.items()[3]);
  return view;
}

}  // namespace shard::torch_save
