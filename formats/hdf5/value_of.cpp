// Converts attributes to objects.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "formats/hdf5/datatype.h"
#include "formats/hdf5/values.h"
#include "formats/parts/pickle/nodes.h"
#include "formats/parts/pickle/pickle.h"
#include "libshard/core/error.h"
#include "libshard/exec/cast.h"

namespace shard::hdf5 {

namespace {

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

template <class Number>
Number number_at(std::span<const std::byte> element) {
  Number number{};
  std::memcpy(&number, element.data(), sizeof(number));
  return number;
}

Value* make_real(Arena& arena, double number) {
  Value* const value = make_value(arena, ValueKind::kFloat);
  value->real = number;
  return value;
}

/// Above 63 bits, an integer has Python's pickled form, with an additional byte for the sign.
Value* make_unsigned(Arena& arena, std::uint64_t number) {
  if (number <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    return make_int(arena, static_cast<std::int64_t>(number));
  }
  char bytes[9] = {};
  std::memcpy(bytes, &number, sizeof(number));
  Value* const value = make_value(arena, ValueKind::kLong);
  value->set_text(arena.copy({bytes, sizeof(bytes)}));
  return value;
}

/// An element converted to a wider type with the same value.
template <class Number>
Number widened(DType from, std::span<const std::byte> element, DType to) {
  Number number{};
  cast(from, element, to, std::as_writable_bytes(std::span(&number, 1)));
  return number;
}

Value* make_text(Arena& arena, std::string_view text) {
  Value* const value = make_value(arena, pickle::is_python_utf8(text) ? ValueKind::kString : ValueKind::kBytes);
  value->set_text(arena.copy(text));
  return value;
}

/// Makes values from elements of one type, one after the other.
class ElementMaker {
 public:
  ElementMaker(Arena& arena, const ElementType& type, std::span<const std::byte> data)
      : arena_(arena), type_(type), data_(data), bytes_(static_cast<std::size_t>(element_bytes(type.dtype))) {}

  bool has_next() const { return data_.size() >= bytes_; }
  Value* next() {
    element_.assign(data_.begin(), data_.begin() + static_cast<std::ptrdiff_t>(bytes_));
    data_ = data_.subspan(bytes_);
    if (!is_complex(type_.dtype)) return make(type_.dtype, element_);
    const std::span<std::byte> both(element_);
    const DType part = component_of(type_.dtype);
    Value* const parts[] = {make(part, both.first(bytes_ / 2)), make(part, both.last(bytes_ / 2))};
    return make_call(arena_, make_global(arena_, "builtins", "complex"), parts);
  }

 private:
  Value* make(DType dtype, std::span<std::byte> element) {
    if (type_.swap) std::ranges::reverse(element);
    if (dtype == DType::kBool) return make_bool(arena_, element[0] != std::byte{0});
    if (dtype == DType::kFloat64) return make_real(arena_, number_at<double>(element));
    if (is_float(dtype)) return make_real(arena_, widened<double>(dtype, element, DType::kFloat64));
    if (dtype == DType::kUint64) return make_unsigned(arena_, number_at<std::uint64_t>(element));
    return make_int(arena_, widened<std::int64_t>(dtype, element, DType::kInt64));
  }

  Arena& arena_;
  const ElementType& type_;
  std::span<const std::byte> data_;
  std::size_t bytes_;
  std::vector<std::byte> element_;
};

/// Makes nested lists of the results of `next`, in row-major order. \pre as many elements as the shape has
template <class Next>
Value* nested(Arena& arena, std::span<const std::int64_t> shape, Next&& next) {
  if (shape.empty()) return next();
  std::vector<Value*> items;
  for (std::int64_t i = 0; i < shape[0]; ++i) items.push_back(nested(arena, shape.subspan(1), next));
  return make_list(arena, ValueKind::kList, items);
}

/// Whether the shape has exactly `count` elements. Also limits the dimensions before a 0, which would otherwise make
/// more lists than the file's size justifies.
bool has_elements(std::span<const std::int64_t> shape, std::size_t count) {
  constexpr std::int64_t kMaxEmptyLists = 1 << 16;
  std::int64_t all = 1, lists = 1;
  for (const std::int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(all, size, &all)) return false;
    if (size > 0 && __builtin_mul_overflow(lists, size, &lists)) return false;
  }
  return static_cast<std::size_t>(all) == count && (all > 0 || lists <= kMaxEmptyLists);
}

Error malformed(std::string_view why) {
  return Error(ErrorCode::kCorruption, "cannot read an attribute").of_kind(FindingKind::kBadHeader).because(why);
}

Value* unknown(Arena& arena, const Type& type) {
  Value* const global = make_global(arena, "h5py", to_string(type));
  global->kind = ValueKind::kOpaque;
  return global;
}

Value* pickled(Arena& arena, std::span<const std::byte> data, bool opaque_unknown) {
  const pickle::LoadOptions options{
      .file = {}, .allow = pickle::is_known_global, .opaque_unknown = opaque_unknown, .suggest_opaque = true};
  return pickle::load(arena, std::as_bytes(std::span(arena.copy(text_of(data).substr(kPickleMark.size())))), options);
}

Value* strings_value(Arena& arena, const Content& content) {
  if (!has_elements(content.space.shape, content.strings.size())) throw malformed("it lacks some of its strings");
  auto text = content.strings.begin();
  return nested(arena, content.space.shape, [&] { return make_text(arena, *text++); });
}

/// Elements that are not numbers become bytes.
Value* bytes_value(Arena& arena, const Content& content) {
  const std::size_t bytes = content.type.bytes;
  std::span<const std::byte> data = content.data;
  if (bytes == 0 || !has_elements(content.space.shape, data.size() / bytes)) throw malformed("it lacks some elements");
  return nested(arena, content.space.shape, [&] {
    Value* const value = make_value(arena, ValueKind::kBytes);
    value->set_text(arena.copy(text_of(data.first(bytes))));
    data = data.subspan(bytes);
    return value;
  });
}

Value* numbers_value(Arena& arena, const Content& content, const ElementType& type) {
  std::vector<std::int64_t> shape = content.space.shape;
  shape.insert(shape.end(), type.dims.begin(), type.dims.end());
  const std::size_t bytes = static_cast<std::size_t>(element_bytes(type.dtype));
  if (!has_elements(shape, content.data.size() / bytes)) throw malformed("it lacks some elements");
  ElementMaker maker(arena, type, content.data);
  return nested(arena, shape, [&] { return maker.next(); });
}

/// How elements are read as numbers; nothing for other types.
std::optional<ElementType> number_type(const Type& type) {
  std::optional<ElementType> element = element_type(type, {});
  const bool is_number = element && (element->dtype == DType::kBool || is_castable(element->dtype));
  return is_number ? element : std::nullopt;
}

}  // namespace

bool is_read(const Content& content) {
  return content.type.kind == TypeClass::kString || !content.data.empty() || content.space.kind == SpaceKind::kNull ||
         std::ranges::find(content.space.shape, 0) != content.space.shape.end();
}

std::optional<std::vector<std::int64_t>> integers_of(const Content& content) {
  const bool are_ours = content.type.kind == TypeClass::kInteger && content.type.bytes == sizeof(std::int64_t) &&
                        !content.type.big_endian && content.data.size() % sizeof(std::int64_t) == 0;
  if (!are_ours) return std::nullopt;
  std::vector<std::int64_t> numbers(content.data.size() / sizeof(std::int64_t));
  std::ranges::copy(content.data, std::as_writable_bytes(std::span(numbers)).begin());
  return numbers;
}

bool is_pickle(const Content& content) {
  return content.type.kind == TypeClass::kOpaque && content.space.kind == SpaceKind::kScalar &&
         text_of(content.data).starts_with(kPickleMark);
}

bool becomes_bytes(const Content& content) {
  const TypeClass kind = content.type.kind;
  const bool has_elements = content.space.kind != SpaceKind::kNull && is_read(content);
  return has_elements && kind != TypeClass::kString && kind != TypeClass::kOpaque && !number_type(content.type);
}

Value* value_of(Arena& arena, const Content& content, bool opaque_unknown) {
  if (content.space.kind == SpaceKind::kNull) return make_value(arena, ValueKind::kNone);
  if (content.type.kind == TypeClass::kString) return strings_value(arena, content);
  if (is_pickle(content)) return pickled(arena, content.data, opaque_unknown);
  if (content.type.kind == TypeClass::kOpaque) return bytes_value(arena, content);
  if (const std::optional<ElementType> type = number_type(content.type)) return numbers_value(arena, content, *type);
  return is_read(content) ? bytes_value(arena, content) : unknown(arena, content.type);
}

}  // namespace shard::hdf5
