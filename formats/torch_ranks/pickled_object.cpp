#include "formats/torch_ranks/pickled_object.h"

#include <fmt/format.h>

#include <array>

#include "libshard/core/box.h"

namespace shard::torch_ranks {

namespace {

std::string_view last_part(std::string_view name) { return name.substr(name.rfind('.') + 1); }

Value* lookup(const Value* state, std::string_view name) {
  return state != nullptr && is_mapping(*state) ? find_key(*state, name) : nullptr;
}

}  // namespace

Error malformed(std::string_view what, const std::string& why) {
  return Error(ErrorCode::kCorruption, fmt::format("a pickled {} is malformed: {}", what, why)).of_kind(FindingKind::kBadPickle);
}

Error named(const Error& error, std::string_view name) {
  if (!error.tensor().empty()) return error;
  Error longer(error.code(), fmt::format("tensor '{}': {}", name, error.what()));
  longer.in_file(error.file()).of_tensor(name).because(error.why()).hint(error.hint()).of_kind(error.kind());
  return longer.expected(error.expected()).found(error.found());
}

std::string_view class_name(const Value& value) {
  if (value.kind != ValueKind::kCall || value.callee == nullptr) return {};
  const Value& callee = *value.callee;
  if (callee.kind == ValueKind::kGlobal) return last_part(callee.text);
  const bool is_nested = callee.is_call_of("builtins", "getattr") && callee.items.size() == 2;
  return is_nested && callee.items[1]->is_string() ? callee.items[1]->text : std::string_view();
}

Value* attribute(const Value& object, std::string_view name) {
  if (object.kind != ValueKind::kCall || object.extra == nullptr || object.extra->state == nullptr) return nullptr;
  const Value& state = *object.extra->state;
  if (state.kind != ValueKind::kTuple) return lookup(&state, name);
  for (std::size_t i = 0; i < state.items.size() && i < 2; ++i) {  // (dict or None, slots).
    if (Value* found = lookup(state.items[i], name)) return found;
  }
  return nullptr;
}

void need_class(const Value& object, std::string_view name) {
  if (class_name(object) != name) throw malformed(name, fmt::format("a {} is in its place", type_name(object)));
}

Value& need(const Value& object, std::string_view name) {
  Value* found = attribute(object, name);
  if (found == nullptr) throw malformed(class_name(object), fmt::format("it has no attribute '{}'", name));
  return *found;
}

std::int64_t natural(const Value& value, std::string_view what) {
  if (value.kind == ValueKind::kInt && value.number >= 0) return value.number;
  throw malformed(what, "it is no natural number")
      .found(value.kind == ValueKind::kInt ? std::to_string(value.number) : std::string(type_name(value)));
}

std::string_view string(const Value& value, std::string_view what) {
  if (!value.is_string()) throw malformed(what, "it is no string").found(type_name(value));
  return value.text;
}

bool boolean(const Value& value, std::string_view what) {
  if (value.kind != ValueKind::kBool) throw malformed(what, "it is no bool").found(type_name(value));
  return value.boolean;
}

std::span<Value* const> sequence(const Value& value, std::string_view what) {
  const bool is_size = value.is_call_of("torch", "Size") && value.items.size() == 1;
  const Value& list = is_size ? *value.items[0] : value;
  if (list.kind == ValueKind::kList || list.kind == ValueKind::kTuple) return list.items;
  throw malformed(what, "it is no list").found(type_name(list));
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
    throw malformed(what, "its dtype is none of torch's").found(type_name(value));
  }
  const std::optional<DType> known = dtype_of_name(value.text);
  if (known && dtype_name(*known) == value.text) return *known;
  throw Error(ErrorCode::kUnsupported, fmt::format("tensors of dtype torch.{} are not supported", value.text));
}

std::string_view subclass_name(const Value& value) {
  if (value.kind != ValueKind::kCall || value.callee == nullptr || value.callee->kind != ValueKind::kGlobal) return {};
  const bool rebuilds = value.callee->text == "_rebuild_from_type_v2" && value.callee->module().starts_with("torch.");
  if (!rebuilds || value.items.size() < 2 || value.items[1]->kind != ValueKind::kGlobal) return {};
  const Value& type = *value.items[1];
  return type.module().starts_with("torch.distributed.") ? last_part(type.text) : std::string_view();
}

Subclass subclass(const Value& value) {
  const std::string_view name = subclass_name(value);
  if (value.items.size() != 4) throw malformed(name, fmt::format("it is rebuilt of {} values", value.items.size()));
  const Value& function = *value.items[0];
  if (function.kind != ValueKind::kGlobal || function.text != "_rebuild_wrapper_subclass") {
    throw malformed(name, "it is not rebuilt by _rebuild_wrapper_subclass").found(type_name(function));
  }
  return {name, value.items[2], value.items[3]};
}

Wrapper wrapper(Arena& arena, const Subclass& from) {
  const std::span<Value* const> arguments = sequence(*from.arguments, from.name);
  if (arguments.size() < 8) throw malformed(from.name, fmt::format("it has {} arguments", arguments.size()));
  const Value& layout = *arguments[5];
  const bool is_named = layout.kind == ValueKind::kCall && !layout.items.empty() && layout.items[0]->is_string();
  const std::string_view layout_name = is_named ? layout.items[0]->text : layout.text;
  if (layout_name != "torch.strided" && layout_name != "strided") {
    throw Error(ErrorCode::kUnsupported, fmt::format("{}s of layout {} are not supported", from.name, layout_name))
        .because("only strided tensors have rows and columns to cut");
  }
  return {dtype(*arguments[1], from.name), dims(arena, *arguments[2], from.name), boolean(*arguments[7], from.name),
          device(*arguments[6], arena, from.name)};
}

std::string_view device(const Value& value, Arena& arena, std::string_view what) {
  if (value.is_string()) return value.text;
  if (!value.is_call_of("torch", "device") || value.items.empty() || value.items.size() > 2) {
    throw malformed(what, "its device is none of torch's").found(type_name(value));
  }
  const std::string_view type = string(*value.items[0], what);
  if (value.items.size() == 1) return type;
  return arena.copy(fmt::format("{}:{}", type, natural(*value.items[1], what)));
}

}  // namespace shard::torch_ranks
