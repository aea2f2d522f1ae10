#include "formats/torch/tensor_pickle.h"

#include <fmt/format.h>

#include <algorithm>

#include "formats/parts/pickle/attributes.h"
#include "formats/torch/tensor_subclass.h"
#include "formats/torch/wrapped_tensor.h"
#include "libshard/core/box.h"
#include "libshard/core/checked.h"
#include "libshard/core/error.h"

namespace shard::torch_save {

namespace {

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
  // Legacy files: the storage is itself a view, (key, offset, size), of the one that the file holds.
  const Value& part = *id[5];
  if (part.kind != ValueKind::kTuple || part.items().size() != 3) malformed("its storage's view is not a triple");
  view.first = natural(*part.items()[1], "storage view's offset");
  if (checked_add(view.first, natural(*part.items()[2], "storage view's size")) > storage.count) {
    malformed("its storage's view leaves the storage");
  }
}

void read_flags(const Value& metadata, TensorView& view) {
  if (metadata.kind == ValueKind::kNone) return;
  const std::span<Value*> pairs = mapping(metadata, "tensor's metadata");
  for (std::size_t i = 0; i < pairs.size(); i += 2) {
    const std::string_view flag = string(*pairs[i], "key of a tensor's metadata");
    if (flag != "conj" && flag != "neg") {
      throw Error(ErrorCode::kUnsupported, fmt::format("a tensor with the metadata '{}' is not supported", flag));
    }
    (flag == "conj" ? view.conj : view.neg) = boolean(*pairs[i + 1], flag == "conj" ? "tensor's conj" : "tensor's neg");
  }
}

/// \throws Error kCorruption  an element of the view lies past the storage's end.
void check_bounds(const TensorView& view) {
  if (checked_numel(view.shape) == 0) return;
  std::int64_t last = view.first;
  for (int d = 0; d < view.shape.size(); ++d) last = checked_add(last, checked_mul(view.shape[d] - 1, view.strides[d]));
  const std::int64_t end_bytes = checked_bytes(checked_add(last, 1), view.dtype);
  if (end_bytes <= view.storage_bytes) return;
  throw Error(ErrorCode::kCorruption,
              fmt::format("a tensor of shape {} leaves its storage '{}'", to_string(view.shape), view.key))
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

/// The tensor inside a call of _rebuild_parameter, or `value` if it is none. One call only: torch makes no more.
const Value& without_parameter(const Value& value) {
  const bool is_parameter = value.is_call_of(kUtils, "_rebuild_parameter") && !value.items().empty();
  return is_parameter ? *value.items()[0] : value;
}

struct ArgumentCounts {
  std::size_t least, most;
};
constexpr ArgumentCounts kArguments[] = {{0, 0}, {4, 4}, {6, 7}, {7, 8}};  // By version.

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

std::optional<TensorView> as_plain_tensor(Arena& arena, const Value& value) {
  const int version = rebuild_version(value);
  if (version == 0) return std::nullopt;
  const std::span<Value* const> arguments = value.items();
  const ArgumentCounts counts = kArguments[version];
  if (arguments.size() < counts.least || arguments.size() > counts.most || value.extra() != nullptr) {
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
  const bool is_class = module == "torch" || module == "torch.cuda";
  return is_class && name.ends_with("Tensor") ? "legacy" : std::string_view();
}

}  // namespace shard::torch_save
