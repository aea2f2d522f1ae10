// Converts objects to attributes.
#include <fmt/format.h>

#include <bit>
#include <limits>
#include <vector>

#include "formats/hdf5/datatype.h"
#include "formats/hdf5/values.h"
#include "formats/parts/pickle/nodes.h"
#include "formats/parts/pickle/pickle.h"
#include "libshard/core/error.h"
#include "libshard/core/visited.h"

namespace shard::hdf5 {

namespace {

template <class Number>
std::string bytes_of(Number number) {
  static_assert(std::endian::native == std::endian::little);
  return {reinterpret_cast<const char*>(&number), sizeof(number)};
}

OutgoingContent scalar(DType dtype, std::string bytes) { return {type_of(dtype), {}, std::move(bytes), {}}; }

OutgoingContent none_content() { return {type_of(DType::kInt8), {SpaceKind::kNull, {}}, {}, {}}; }

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
        .because(fmt::format("it holds {}", what))
        .suggest(Remedy::kDropObjects);
  }
  pickle::Dumper dumper({.protocol = 4, .sink = {}, .tensor = {}});
  dumper.value(value);
  return pickle_content(dumper.finish());
}

/// An array without elements, which is read as an empty list.
OutgoingContent empty_list_content() { return {type_of(DType::kFloat64), {SpaceKind::kSimple, {0}}, {}, {}}; }

}  // namespace

/// False for a lone surrogate, which other programs do not accept as UTF-8: a byte 0xED, then a byte of at least 0xA0.
bool is_plain_text(std::string_view text) {
  if (text.find('\0') != std::string_view::npos || !pickle::is_python_utf8(text)) return false;
  for (std::size_t i = 0; i + 1 < text.size(); ++i) {
    if (text[i] == '\xED' && static_cast<unsigned char>(text[i + 1]) >= 0xA0) return false;
  }
  return text.size() <= std::numeric_limits<std::uint32_t>::max();
}

OutgoingContent content_of(const Value& value) {
  switch (value.kind) {
    case ValueKind::kNone:
      return none_content();
    case ValueKind::kBool:
      return scalar(DType::kBool, bytes_of(static_cast<std::int8_t>(value.boolean())));
    case ValueKind::kInt:
      return scalar(DType::kInt64, bytes_of(value.number));
    case ValueKind::kFloat:
      return scalar(DType::kFloat64, bytes_of(value.real));
    case ValueKind::kString:
      return is_plain_text(value.text()) ? string_content(value.text()) : pickled(value);
    case ValueKind::kList:
      return value.items().empty() ? empty_list_content() : pickled(value);
    default:
      return pickled(value);
  }
}

OutgoingContent pickle_content(std::string_view pickle) {
  constexpr std::size_t kMax = std::numeric_limits<std::uint32_t>::max() - kPickleMark.size();
  if (pickle.size() > kMax) {
    throw Error(ErrorCode::kUnsupported, "cannot write an object as an attribute")
        .because(fmt::format("its pickle takes {} bytes, an attribute holds {}", pickle.size(), kMax))
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
