#include "formats/parts/pickle/attributes.h"

#include <fmt/format.h>

#include <array>
#include <optional>

#include "libshard/core/box.h"
#include "libshard/core/contains.h"

namespace shard::pickle {

namespace {

constexpr std::size_t kMaxAttributes = 256;  // Known classes have up to 20 attributes, subclasses a few more.

std::string shown(const Value& value) {
  return value.kind == ValueKind::kInt ? std::to_string(value.number) : std::string(type_name(value));
}

}  // namespace

Error malformed(std::string_view what, const std::string& why) {
  return Error(ErrorCode::kCorruption, fmt::format("cannot read the pickled {}: {}", what, why))
      .of_kind(FindingKind::kBadPickle);
}

Error named(const Error& error, std::string_view name) {
  if (!error.tensor().empty()) return error;
  return error.with_message(fmt::format("tensor '{}': {}", name, error.what())).of_tensor(name);
}

std::string_view class_name(const Value& value) {
  if (value.kind != ValueKind::kCall || value.callee() == nullptr) return {};
  const Value& callee = *value.callee();
  if (callee.kind == ValueKind::kGlobal) return last_part(callee.text());
  const bool is_nested = callee.is_call_of("builtins", "getattr") && callee.items().size() == 2;
  return is_nested && callee.items()[1]->is_string() ? callee.items()[1]->text() : std::string_view();
}

Value* entry(const Value& mapping, std::string_view key) {
  const std::size_t entries = mapping_items(mapping).size() / 2;
  if (entries > kMaxAttributes) throw malformed("object", fmt::format("it has {} attributes", entries));
  return find_key(mapping, key);
}

Value* state_attribute(const Value& state, std::string_view name) {
  if (state.kind != ValueKind::kTuple) return entry(state, name);
  for (std::size_t i = 0; i < state.items().size() && i < 2; ++i) {  // (dict or None, slots).
    if (Value* found = entry(*state.items()[i], name)) return found;
  }
  return nullptr;
}

Value* attribute(const Value& object, std::string_view name) {
  return object.state() != nullptr ? state_attribute(*object.state(), name) : nullptr;
}

void need_class(const Value& object, std::string_view name) {
  if (class_name(object) == name) return;
  throw malformed(name, fmt::format("found a value of type {} instead", type_name(object)));
}

Value& need(const Value& object, std::string_view name) {
  Value* found = attribute(object, name);
  if (found == nullptr) throw malformed(class_name(object), fmt::format("it has no attribute '{}'", name));
  return *found;
}

std::int64_t natural(const Value& value, std::string_view what) {
  if (value.kind == ValueKind::kInt && value.number >= 0) return value.number;
  throw malformed(what, "it is not a natural number").found(shown(value));
}

std::string_view string(const Value& value, std::string_view what) {
  if (!value.is_string()) throw malformed(what, "it is not a string").found(type_name(value));
  return value.text();
}

bool boolean(const Value& value, std::string_view what) {
  if (value.kind != ValueKind::kBool) throw malformed(what, "it is not a bool").found(type_name(value));
  return value.boolean();
}

std::span<Value*> mapping(const Value& value, std::string_view what) {
  if (!is_mapping(value)) throw malformed(what, "it is not a dict").found(type_name(value));
  return mapping_items(value);
}

std::span<Value* const> sequence(const Value& value, std::string_view what) {
  if (value.is_call_of("torch", "Size") && value.items().empty()) return {};
  const bool is_size = value.is_call_of("torch", "Size") && value.items().size() == 1;
  const Value& list = is_size ? *value.items()[0] : value;
  if (list.kind == ValueKind::kList || list.kind == ValueKind::kTuple) return list.items();
  throw malformed(what, "it is not a list or a tuple").found(type_name(list));
}

std::vector<std::int64_t> naturals(const Value& value, std::string_view what) {
  std::vector<std::int64_t> numbers;
  for (const Value* item : sequence(value, what)) numbers.push_back(natural(*item, what));
  return numbers;
}

Dims dims(Arena& arena, const Value& value, std::string_view what) {
  const std::span<Value* const> items = sequence(value, what);
  if (items.size() > kMaxDims) throw malformed(what, fmt::format("it has {} dimensions", items.size()));
  std::array<std::int64_t, kMaxDims> numbers;
  for (std::size_t i = 0; i < items.size(); ++i) numbers[i] = natural(*items[i], what);
  return arena.dims(std::span(numbers).first(items.size()));
}

DType dtype(const Value& value, std::string_view what) {
  if (value.kind != ValueKind::kGlobal || value.module() != "torch") {
    throw malformed(what, "its dtype is not one of torch's").found(type_name(value));
  }
  const std::optional<DType> known = dtype_of_name(value.text());
  if (known && dtype_name(*known) == value.text()) return *known;
  throw Error(ErrorCode::kUnsupported, fmt::format("tensors of dtype torch.{} are not supported", value.text()));
}

}  // namespace shard::pickle
