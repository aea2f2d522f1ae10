#include "formats/hdf5/values.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "formats/hdf5/datatype.h"
#include "formats/parts/pickle/pickle.h"
#include "libshard/core/bytes.h"
#include "libshard/core/error.h"
#include "libshard/core/utf8.h"
#include "libshard/core/value_walk.h"
#include "libshard/exec/cast.h"

namespace shard::hdf5 {

namespace {

template <class Number>
Number number_at(std::span<const std::byte> element) {
  Number number{};
  std::memcpy(&number, element.data(), sizeof(number));
  return number;
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
  Value* const value = make_value(arena, is_python_utf8(text) ? ValueKind::kString : ValueKind::kBytes);
  value->set_text(arena.copy(text));
  return value;
}

/// Makes values from elements of one type, one after the other.
class ElementMaker {
 public:
  ElementMaker(Arena& arena, const ElementType& type, std::span<const std::byte> data)
      : arena_(arena), type_(type), data_(data), bytes_(static_cast<std::size_t>(element_bytes(type.dtype))) {}

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
    if (dtype == DType::kFloat64) return make_float(arena_, number_at<double>(element));
    if (is_float(dtype)) return make_float(arena_, widened<double>(dtype, element, DType::kFloat64));
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
  return pickle::load(arena, std::as_bytes(std::span(arena.copy(as_text(data).substr(kPickleMark.size())))), options);
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
    value->set_text(arena.copy(as_text(data.first(bytes))));
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
         as_text(content.data).starts_with(kPickleMark);
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

namespace {

template <class Number>
std::string bytes_of(Number number) {
  static_assert(std::endian::native == std::endian::little);
  return {reinterpret_cast<const char*>(&number), sizeof(number)};
}

OutgoingContent scalar(DType dtype, std::string bytes) { return {type_of(dtype), {}, std::move(bytes), {}}; }

/// In memory, a string of variable length is a pointer.
constexpr std::uint32_t kVariableStringBytes = sizeof(void*);

OutgoingContent string_content(std::string_view text) {
  Type type;
  type.kind = TypeClass::kString;
  type.bytes = kVariableStringBytes;
  type.is_variable = type.is_utf8 = true;
  return {type, {}, {}, {std::string(text)}};
}

/// The first part of a value that a pickle cannot contain, or null.
const Value* find_unpicklable(const Value& value) {
  return find_below(value, [](const Value& part) {
    return part.kind == ValueKind::kPersid || part.kind == ValueKind::kTensor || part.kind == ValueKind::kOpaque;
  });
}

OutgoingContent pickled(const Value& value) {
  if (const Value* part = find_unpicklable(value); part != nullptr) {
    const std::string_view what = part->kind == ValueKind::kTensor   ? "tensors"
                                  : part->kind == ValueKind::kPersid ? "storages of tensors"
                                                                     : "an opaque object";
    throw Error(ErrorCode::kUnsupported, fmt::format("cannot write an object of type {}", type_name(value)))
        .because(fmt::format("it contains {}", what))
        .suggest(Remedy::kDropObjects);
  }
  pickle::Dumper dumper({.protocol = 4, .sink = {}, .tensor = {}});
  dumper.value(value);
  return pickle_content(dumper.finish());
}

}  // namespace

/// False for a lone surrogate, which other programs do not accept as UTF-8: a byte 0xED, then a byte of at least 0xA0.
bool is_plain_text(std::string_view text) {
  if (text.find('\0') != std::string_view::npos || !is_python_utf8(text)) return false;
  for (std::size_t i = 0; i + 1 < text.size(); ++i) {
    if (text[i] == '\xED' && static_cast<unsigned char>(text[i + 1]) >= 0xA0) return false;
  }
  return text.size() <= std::numeric_limits<std::uint32_t>::max();
}

OutgoingContent content_of(const Value& value) {
  switch (value.kind) {
    case ValueKind::kNone:
      return {type_of(DType::kInt8), {SpaceKind::kNull, {}}, {}, {}};
    case ValueKind::kBool:
      return scalar(DType::kBool, bytes_of(static_cast<std::int8_t>(value.boolean())));
    case ValueKind::kInt:
      return scalar(DType::kInt64, bytes_of(value.number));
    case ValueKind::kFloat:
      return scalar(DType::kFloat64, bytes_of(value.real));
    case ValueKind::kString:
      return is_plain_text(value.text()) ? string_content(value.text()) : pickled(value);
    case ValueKind::kList:
      if (!value.items().empty()) return pickled(value);
      return {type_of(DType::kFloat64), {SpaceKind::kSimple, {0}}, {}, {}};  // Without elements: an empty list.
    default:
      return pickled(value);
  }
}

OutgoingContent pickle_content(std::string_view pickle) {
  constexpr std::size_t kMax = std::numeric_limits<std::uint32_t>::max() - kPickleMark.size();
  if (pickle.size() > kMax) {
    throw Error(ErrorCode::kUnsupported, "cannot write an object as an attribute")
        .because(fmt::format("its pickle has {} bytes, but an attribute at most {}", pickle.size(), kMax))
        .suggest(Remedy::kDropObjects);
  }
  Type type;
  type.kind = TypeClass::kOpaque;
  type.bytes = static_cast<std::uint32_t>(kPickleMark.size() + pickle.size());
  return {std::move(type), {}, std::string(kPickleMark).append(pickle), {}};
}

OutgoingContent text_content(std::string_view text) {
  Value value;
  value.kind = ValueKind::kString;
  value.set_text(text);
  return content_of(value);
}

OutgoingContent integer_content(std::int64_t number) { return scalar(DType::kInt64, bytes_of(number)); }

OutgoingContent integers_content(std::span<const std::int64_t> numbers) {
  OutgoingContent content{type_of(DType::kInt64), {SpaceKind::kSimple, {std::ssize(numbers)}}, {}, {}};
  for (const std::int64_t number : numbers) content.bytes += bytes_of(number);
  return content;
}

}  // namespace shard::hdf5
