#include "libshard/core/numpy_values.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <utility>

#include "libshard/core/parse_number.h"
#include "libshard/core/python_text.h"
#include "libshard/core/utf8.h"

namespace shard {

namespace {

using Kind = NumpyValue::Kind;

bool is_numpy_call(const Value& value, std::string_view module, std::string_view name) {
  if (value.kind != ValueKind::kCall || value.callee() == nullptr || value.callee()->kind != ValueKind::kGlobal)
    return false;
  const Value& callee = *value.callee();
  if (callee.text() != name) return false;
  const auto is_in = [&](std::string_view package) {
    return callee.module().starts_with(package) && callee.module().substr(package.size()) == module;
  };
  return is_in("numpy.core.") || is_in("numpy._core.");
}

/// numpy.dtype('f8', False, True), BUILD (3, '<', ...).
bool read_dtype(const Value& value, NumpyValue& out) {
  if (!value.is_call_of("numpy", "dtype") || value.items().empty() || !value.items()[0]->is_string()) return false;
  out.code = value.items()[0]->text();
  const Value* state = value.state();
  if (state == nullptr) return true;
  const bool has_order =
      state->kind == ValueKind::kTuple && state->items().size() >= 2 && state->items()[1]->is_string();
  if (has_order) out.big_endian = state->items()[1]->text() == ">";
  return has_order;
}

bool read_shape(const Value& value, NumpyValue& out) {
  if (value.kind != ValueKind::kTuple) return false;
  for (const Value* side : value.items()) {
    if (side->kind != ValueKind::kInt || side->number < 0) return false;
    out.shape.push_back(side->number);
  }
  return true;
}

bool read_bytes(const Value& value, NumpyValue& out) {
  if (value.kind == ValueKind::kBytes || value.kind == ValueKind::kByteArray) out.bytes = value.text();
  return out.bytes.has_value() || value.kind == ValueKind::kList;
}

/// scalar(dtype, bytes)
bool read_scalar(const Value& call, NumpyValue& out) {
  if (call.items().size() != 2 || !read_dtype(*call.items()[0], out)) return false;
  read_bytes(*call.items()[1], out);
  return true;
}

/// _reconstruct(ndarray, (0,), b'b'), BUILD (1, shape, dtype, is column-major, bytes or list)
bool read_array(const Value& call, NumpyValue& out) {
  const Value* state = call.state();
  if (state == nullptr || state->kind != ValueKind::kTuple || state->items().size() != 5) return false;
  const std::span<Value* const> parts = state->items();
  out.column_major = parts[3]->kind == ValueKind::kBool && parts[3]->boolean();
  return read_shape(*parts[1], out) && read_dtype(*parts[2], out) && read_bytes(*parts[4], out);
}

/// _frombuffer(bytes, dtype, shape, 'C' or 'F'), as protocol 5 writes arrays
bool read_buffer(const Value& call, NumpyValue& out) {
  if (call.items().size() != 4 || !call.items()[3]->is_string()) return false;
  out.column_major = call.items()[3]->text() == "F";
  return read_bytes(*call.items()[0], out) && read_dtype(*call.items()[1], out) && read_shape(*call.items()[2], out);
}

std::string in_little_endian(std::string_view bytes, std::size_t unit) {
  std::string result(bytes);
  for (std::size_t i = 0; i + unit <= result.size(); i += unit)
    std::reverse(result.begin() + std::ptrdiff_t(i), result.begin() + std::ptrdiff_t(i + unit));
  return result;
}

template <class Number>
Number number_in(std::string_view bytes) {
  Number number{};
  std::memcpy(&number, bytes.data(), sizeof number);
  return number;
}

/// The bytes of an element, and of each number in it: 4 and 4 for "f4", 8 and 4 for "c8", 20 and 4 for "U5".
struct ElementBytes {
  std::int64_t element = 0;
  std::int64_t number = 0;
};

/// Nothing for objects, records and times, whose codes do not define all of them.
std::optional<ElementBytes> element_bytes(std::string_view code) {
  if (code.empty()) return std::nullopt;
  const std::optional<std::int32_t> count = parse_natural<std::int32_t>(code.substr(1));
  if (!count || *count == 0) return std::nullopt;
  const auto bytes = std::int64_t{*count};
  if (std::string_view("biuf").find(code[0]) != std::string_view::npos) return ElementBytes{bytes, bytes};
  if (code[0] == 'c' && bytes % 2 == 0) return ElementBytes{bytes, bytes / 2};
  if (code[0] == 'S') return ElementBytes{bytes, 1};
  return code[0] == 'U' ? std::optional(ElementBytes{4 * bytes, 4}) : std::nullopt;
}

/// Elements in column-major order, in row-major order. \pre the bytes are those of the shape
std::string row_major(std::string_view bytes, std::int64_t element, std::span<const std::int64_t> shape) {
  std::vector<std::int64_t> at(shape.size()), strides(shape.size(), element);
  for (std::size_t i = 1; i < shape.size(); ++i) strides[i] = strides[i - 1] * shape[i - 1];
  std::string rows;
  rows.reserve(bytes.size());
  for (std::int64_t from = 0; rows.size() < bytes.size();) {
    rows += bytes.substr(static_cast<std::size_t>(from), static_cast<std::size_t>(element));
    for (std::size_t i = shape.size(); i-- > 0;) {
      from += strides[i];
      if (++at[i] < shape[i]) break;
      from -= strides[i] * std::exchange(at[i], 0);
    }
  }
  return rows;
}

/// The text of a numpy.str_, which has 4 bytes per character.
std::optional<std::string> utf32_text(std::string_view bytes) {
  std::string text;
  if (bytes.size() % 4 != 0) return std::nullopt;
  for (; !bytes.empty(); bytes.remove_prefix(4)) {
    const CodePoint point{number_in<std::uint32_t>(bytes), 4};
    if (point.value > 0x10FFFF || point.is_surrogate()) return std::nullopt;
    append_utf8(point.value, text);
  }
  return text;
}

}  // namespace

std::optional<NumpyValue> as_numpy(const Value& value) {
  NumpyValue found;
  bool is_read = false;
  if (is_numpy_call(value, "multiarray", "scalar")) {
    is_read = read_scalar(value, found);
  } else if (is_numpy_call(value, "multiarray", "_reconstruct")) {
    found.kind = Kind::kArray;
    is_read = read_array(value, found);
  } else if (is_numpy_call(value, "numeric", "_frombuffer")) {
    found.kind = Kind::kArray;
    is_read = read_buffer(value, found);
  } else {
    found.kind = Kind::kDType;
    is_read = read_dtype(value, found);
  }
  return is_read ? std::optional(std::move(found)) : std::nullopt;
}

std::string numpy_dtype_name(std::string_view code) {
  static constexpr auto kNames = std::to_array<std::pair<std::string_view, std::string_view>>({
      {"b1", "bool"},    {"i1", "int8"},    {"i2", "int16"},       {"i4", "int32"},       {"i8", "int64"},
      {"u1", "uint8"},   {"u2", "uint16"},  {"u4", "uint32"},      {"u8", "uint64"},      {"f2", "float16"},
      {"f4", "float32"}, {"f8", "float64"}, {"f16", "longdouble"}, {"c8", "complex64"},   {"c16", "complex128"},
      {"O", "object"},   {"O8", "object"},  {"M8", "datetime64"},  {"m8", "timedelta64"},
  });
  const auto* known = std::ranges::find(kNames, code, &std::pair<std::string_view, std::string_view>::first);
  return std::string(known != kNames.end() ? known->second : code);
}

std::string numpy_type_name(const NumpyValue& value) {
  if (value.kind == Kind::kArray) return "numpy.ndarray";
  if (value.kind == Kind::kDType) return "numpy.dtype";
  if (value.code.starts_with("U")) return "numpy.str_";
  if (value.code.starts_with("S")) return "numpy.bytes_";
  if (value.code.starts_with("V")) return "numpy.void";
  return "numpy." + numpy_dtype_name(value.code);
}

std::optional<std::string> numpy_text(const NumpyValue& value) {
  if (value.kind != Kind::kScalar || !value.bytes || value.bytes->empty() || value.code.empty()) return std::nullopt;
  const char kind = value.code[0];
  const std::string bytes = value.big_endian ? in_little_endian(*value.bytes, kind == 'U' ? 4 : value.bytes->size())
                                             : std::string(*value.bytes);
  if (kind == 'b') return bytes[0] != 0 ? "True" : "False";
  if (kind == 'i') return integer_text(bytes);
  if (kind == 'u') return integer_text(bytes + '\0');
  if (value.code == "f4" && bytes.size() == 4) return real_text(number_in<float>(bytes));
  if (value.code == "f8" && bytes.size() == 8) return real_text(number_in<double>(bytes));
  if (kind == 'U') return utf32_text(bytes);
  if (kind == 'S') return python_repr(*value.bytes, true);
  return std::nullopt;
}

std::optional<std::string> numpy_elements(const NumpyValue& value) {
  const std::optional<ElementBytes> size = element_bytes(value.code);
  if (value.kind == Kind::kDType || !size || !value.bytes) return std::nullopt;
  std::int64_t bytes = size->element;
  for (const std::int64_t side : value.shape) {
    if (side > 0 && bytes > std::ssize(*value.bytes) / side) return std::nullopt;
    bytes *= side;
  }
  if (bytes != std::ssize(*value.bytes)) return std::nullopt;
  const std::string numbers = value.big_endian ? in_little_endian(*value.bytes, static_cast<std::size_t>(size->number))
                                               : std::string(*value.bytes);
  return value.column_major ? row_major(numbers, size->element, value.shape) : numbers;
}

std::string numpy_summary(const NumpyValue& value) {
  const std::string name = numpy_dtype_name(value.code);
  return value.kind == Kind::kArray ? fmt::format("{}[{}]", name, fmt::join(value.shape, ", ")) : name;
}

}  // namespace shard
