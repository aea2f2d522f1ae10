#include "python/native/values.h"

#include <optional>
#include <string>
#include <utility>

#include "libshard/core/error.h"
#include "libshard/core/numpy_values.h"
#include "libshard/core/value_walk.h"

namespace nb = nanobind;

namespace shard::python {
namespace {

nb::object checked(nb::object object) {
  if (!object.is_valid()) throw nb::python_error();
  return object;
}

/// \throws Error kCorruption  no dict or set can contain it
nb::object hashable(nb::object object) {
  if (PyObject_Hash(object.ptr()) != -1) return object;
  PyErr_Clear();
  throw Error(ErrorCode::kCorruption, "cannot convert an object: Python cannot hash a key of a dict or set");
}

/// An integer of any size from its two's complement.
nb::object long_of(std::string_view bytes) {
  const nb::object type = nb::borrow(reinterpret_cast<PyObject*>(&PyLong_Type));
  return type.attr("from_bytes")(nb::bytes(bytes.data(), bytes.size()), "little", nb::arg("signed") = true);
}

nb::object byte_array(std::string_view bytes) {
  return checked(nb::steal(PyByteArray_FromStringAndSize(bytes.data(), static_cast<Py_ssize_t>(bytes.size()))));
}

/// The attributes of a namespace; null for any other value, and for one with tensors.
const Value* attributes_of(const Value& value) {
  const bool is_namespace = value.is_call_of("argparse", "Namespace") || value.is_call_of("types", "SimpleNamespace");
  if (!is_namespace) return nullptr;
  static const Value kEmpty = [] {
    Value dict;
    dict.kind = ValueKind::kDict;
    return dict;
  }();
  if (value.state() == nullptr) return &kEmpty;
  const Value* const state = value.state();
  const auto is_tensor = [](const Value& each) { return each.kind == ValueKind::kTensor; };
  return state->kind == ValueKind::kDict && find_below(*state, is_tensor) == nullptr ? state : nullptr;
}

/// Whether the value is a Parameter around a tensor of the catalog.
bool is_parameter(const Value& value) {
  const bool is_call = value.is_call_of("torch._utils", "_rebuild_parameter") ||
                       value.is_call_of("torch._utils", "_rebuild_parameter_with_state");
  return is_call && !value.items().empty() && value.items()[0]->kind == ValueKind::kTensor;
}

nb::object numpy_parts(const Value& value) {
  const std::optional<NumpyValue> found = as_numpy(value);
  const bool is_dtype = found && found->kind == NumpyValue::Kind::kDType;
  if (!found || (!is_dtype && !found->bytes)) return nb::none();
  nb::object shape = nb::none();
  if (found->kind == NumpyValue::Kind::kArray) {
    nb::list sizes;
    for (const std::int64_t size : found->shape) sizes.append(size);
    shape = nb::tuple(sizes);
  }
  return nb::make_tuple(is_dtype, str((found->big_endian ? ">" : "<") + std::string(found->code)), shape,
                        found->column_major, byte_array(found->bytes.value_or("")));
}

}  // namespace

nb::object str(std::string_view text) {
  PyObject* found = PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "surrogatepass");
  if (found == nullptr) {
    PyErr_Clear();
    found = PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "surrogateescape");
  }
  if (found == nullptr) throw nb::python_error();
  return nb::steal(found);
}

nb::object PythonValues::convert(const Value& value, int depth) {
  switch (value.kind) {
    case ValueKind::kNone:
      return nb::none();
    case ValueKind::kBool:
      return nb::bool_(value.boolean());
    case ValueKind::kInt:
      return nb::int_(value.number);
    case ValueKind::kLong:
      return long_of(value.text());
    case ValueKind::kFloat:
      return nb::float_(value.real);
    case ValueKind::kString:
      return str(value.text());
    case ValueKind::kBytes:
      return nb::bytes(value.text().data(), value.text().size());
    case ValueKind::kByteArray:
      return byte_array(value.text());
    case ValueKind::kTensor:
      return tensor_(value.number);
    default:
      break;
  }
  if (const auto known = known_.find(&value); known != known_.end()) {
    if (known->second.is_valid()) return known->second;
    if (attributes_of(value) != nullptr) return of_class_(type_name(value), nb::none());
    throw Error(ErrorCode::kCorruption, "cannot convert an object: it contains itself");
  }
  if (depth >= kMaxValueDepth) {
    throw Error(ErrorCode::kCorruption, "cannot convert an object: its containers are nested too deeply")
        .expected(kMaxValueDepth);
  }
  known_[&value] = nb::object();
  nb::object converted = container(value, depth + 1);
  known_[&value] = converted;
  return converted;
}

nb::object PythonValues::container(const Value& value, int depth) {
  if (is_mapping(value)) return mapping(value, depth);
  if (is_parameter(value)) return convert(*value.items()[0], depth);
  const bool is_size = value.is_call_of("torch", "Size") && value.items().size() == 1;
  if (is_size) {
    nb::object sizes = convert(*value.items()[0], depth);
    return of_size_ ? of_size_(std::move(sizes)) : sizes;
  }
  const bool is_sequence = value.kind == ValueKind::kList || value.kind == ValueKind::kTuple ||
                           value.kind == ValueKind::kSet || value.kind == ValueKind::kFrozenSet;
  if (!is_sequence) return of_class_(type_name(value), parts(value, depth));
  const bool is_set = value.kind == ValueKind::kSet || value.kind == ValueKind::kFrozenSet;
  nb::list items;
  for (const Value* const item : value.items()) {
    nb::object converted = convert(*item, depth);
    items.append(is_set ? hashable(std::move(converted)) : converted);
  }
  if (value.kind == ValueKind::kList) return items;
  if (value.kind == ValueKind::kTuple) return nb::tuple(items);
  return checked(nb::steal(value.kind == ValueKind::kSet ? PySet_New(items.ptr()) : PyFrozenSet_New(items.ptr())));
}

nb::object PythonValues::mapping(const Value& value, int depth) {
  nb::dict dict;
  const std::span<Value*> items = mapping_items(value);
  for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
    dict[hashable(convert(*items[i], depth))] = convert(*items[i + 1], depth);
  }
  return dict;
}

/// See ClassObject.
nb::object PythonValues::parts(const Value& value, int depth) {
  if (value.kind == ValueKind::kGlobal) return value.module() == "torch" ? str(value.text()) : nb::none();
  if (value.is_call_of("builtins", "complex") || value.is_call_of("torch", "device")) {
    nb::list arguments;
    for (const Value* const each : value.items()) arguments.append(convert(*each, depth));
    return nb::tuple(arguments);
  }
  if (const Value* const attributes = attributes_of(value)) return mapping(*attributes, depth);
  return numpy_parts(value);
}

}  // namespace shard::python
