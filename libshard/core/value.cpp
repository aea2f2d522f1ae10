#include "libshard/core/value.h"

#include <algorithm>
#include <array>
#include <cassert>

#include "libshard/core/dtype.h"

namespace shard {

namespace {

std::span<Value*> copy_items(Arena& arena, std::span<Value* const> items) {
  const std::span<Value*> copied = arena.array<Value*>(items.size());
  std::ranges::copy(items, copied.begin());
  return copied;
}

bool is_mapping_class(const Value& callee) {
  if (callee.kind != ValueKind::kGlobal || callee.module() != "collections") return false;
  return callee.text() == "OrderedDict" || callee.text() == "defaultdict" || callee.text() == "Counter";
}

/// The name "module.name"; without the module for builtins and collections.
std::string_view qualified_name(const Value& global) {
  const std::string_view module = global.module();
  const bool bare = module.empty() || module == "builtins" || module == "__builtin__" || module == "collections";
  if (bare) return global.text();
  return {module.data(), module.size() + 1 + global.text().size()};
}

std::string_view global_type_name(const Value& global) {
  if (global.is_global("builtins", "Ellipsis")) return "ellipsis";
  return global.module() == "torch" && dtype_of_name(global.text()) ? "torch.dtype" : "type";
}

/// The class of which a call creates an object, or whose member getattr names. Null if the callee is not a global.
const Value* class_of_call(const Value& call) {
  const bool names_class = call.is_call_of("copyreg", "_reconstructor") ||
                           call.is_call_of("copy_reg", "_reconstructor") || call.is_call_of("builtins", "getattr");
  const Value* made = names_class && !call.items().empty() ? call.items()[0] : call.callee();
  const bool is_class = made != nullptr && (made->kind == ValueKind::kGlobal || made->kind == ValueKind::kOpaque);
  return is_class ? made : nullptr;
}

std::string_view call_type_name(const Value& call) {
  const Value* made = class_of_call(call);
  if (made == nullptr) return "object";
  if (made->module().starts_with("numpy.")) {
    if (made->text() == "scalar") return "numpy.generic";
    if (made->text() == "_reconstruct") return "numpy.ndarray";
  }
  return qualified_name(*made);
}

Value* make_number(Arena& arena, ValueKind kind, std::int64_t number) {
  Value* value = make_value(arena, kind);
  value->number = number;
  return value;
}

}  // namespace

void Value::set_text(std::string_view text) {
  assert(has_text());
  characters = text.data();
  set_size(text.size());
}

void Value::set_items(std::span<Value*> items) {
  assert(has_elements() || kind == ValueKind::kCall);
  (kind == ValueKind::kCall ? call->arguments : elements) = items.data();
  set_size(items.size());
}

void Value::set_size(std::size_t count) {
  constexpr std::uint64_t kMost = (std::uint64_t{1} << 39) - 1;
  assert(count <= kMost);
  size = count & kMost;
}

Value* make_value(Arena& arena, ValueKind kind) {
  Value* value = arena.array<Value>(1).data();
  value->kind = kind;
  return value;
}

Value* copy_of(Arena& arena, const Value& value) {
  Value* made = make_value(arena, value.kind);
  *made = value;
  return made;
}

Value* make_int(Arena& arena, std::int64_t number) { return make_number(arena, ValueKind::kInt, number); }

Value* make_bool(Arena& arena, bool truth) { return make_number(arena, ValueKind::kBool, truth ? 1 : 0); }

Value* make_float(Arena& arena, double number) {
  Value* value = make_value(arena, ValueKind::kFloat);
  value->real = number;
  return value;
}

Value* make_string(Arena& arena, std::string_view text) {
  Value* value = make_value(arena, ValueKind::kString);
  value->set_text(arena.copy(text));
  return value;
}

Value* make_tensor(Arena& arena, std::int64_t index) { return make_number(arena, ValueKind::kTensor, index); }

void become_tensor(Value& value, std::int64_t index) {
  value = Value();
  value.kind = ValueKind::kTensor;
  value.number = index;
}

Value* make_list(Arena& arena, ValueKind kind, std::span<Value* const> items) {
  Value* value = make_value(arena, kind);
  value->set_items(copy_items(arena, items));
  return value;
}

Value* make_global(Arena& arena, std::string_view module, std::string_view name) {
  Value* value = make_value(arena, ValueKind::kGlobal);
  const std::span<char> joined = arena.array<char>(module.size() + 1 + name.size());
  std::ranges::copy(module, joined.begin());
  joined[module.size()] = '.';
  std::ranges::copy(name, joined.begin() + static_cast<std::ptrdiff_t>(module.size()) + 1);
  assert(module.size() < 1 << 16);
  value->module_bytes = module.size() & 0xFFFF;
  value->set_text({joined.data() + module.size() + 1, name.size()});
  return value;
}

Value* make_call(Arena& arena, Value* callee, std::span<Value* const> arguments) {
  Value* value = make_value(arena, ValueKind::kCall);
  value->call = arena.array<CallParts>(1).data();
  value->call->callee = callee;
  value->set_items(copy_items(arena, arguments));
  return value;
}

CallExtra& extra_of(Arena& arena, Value& call) {
  assert(call.kind == ValueKind::kCall);
  if (call.call->extra == nullptr) call.call->extra = arena.array<CallExtra>(1).data();
  return *call.call->extra;
}

Value* copy_of_call(Arena& arena, const Value& call) {
  Value* const copy = make_call(arena, call.callee(), call.items());
  copy->is_new = call.is_new;
  copy->call->state = call.state();
  if (call.extra() != nullptr) extra_of(arena, *copy) = *call.extra();
  return copy;
}

bool is_mapping(const Value& value) {
  if (value.kind == ValueKind::kDict) return true;
  return value.kind == ValueKind::kCall && value.callee() != nullptr && is_mapping_class(*value.callee());
}

std::span<Value*> mapping_items(const Value& value) {
  if (value.kind == ValueKind::kDict) return value.items();
  if (!is_mapping(value)) return {};
  if (value.extra() != nullptr && !value.extra()->dict_items.empty()) return value.extra()->dict_items;
  // Counter is called with its dict. So is an OrderedDict in a pickle that was written by hand.
  const bool has_dict = !value.items().empty() && value.items()[0]->kind == ValueKind::kDict;
  return has_dict ? value.items()[0]->items() : std::span<Value*>();
}

Value* with_items(Arena& arena, const Value& mapping, std::span<Value* const> items) {
  if (mapping.kind != ValueKind::kCall) return make_list(arena, ValueKind::kDict, items);
  Value* const copy = copy_of_call(arena, mapping);
  const bool has_dict = !copy->items().empty() && copy->items()[0]->kind == ValueKind::kDict;
  if (has_dict) copy->set_items(copy->items().subspan(1));
  extra_of(arena, *copy).dict_items = make_list(arena, ValueKind::kDict, items)->items();
  return copy;
}

Value* find_key(const Value& mapping, std::string_view key) {
  const std::span<Value*> items = mapping_items(mapping);
  for (std::size_t i = items.size() / 2; i-- > 0;) {  // Python keeps the last value of equal keys.
    const Value& candidate = *items[2 * i];
    if (candidate.is_string() && candidate.text() == key) return items[2 * i + 1];
  }
  return nullptr;
}

Value* find_value(const Value& mapping, std::string_view key) {
  Value* const value = find_key(mapping, key);
  return value == nullptr || value->kind == ValueKind::kNone ? nullptr : value;
}

std::string_view type_name(const Value& value) {
  constexpr std::array<std::string_view, 13> kPlain{"NoneType",  "bool", "int",   "int",  "float", "str",      "bytes",
                                                    "bytearray", "list", "tuple", "dict", "set",   "frozenset"};
  static_assert(kPlain.size() == static_cast<std::size_t>(ValueKind::kGlobal));
  if (value.kind < ValueKind::kGlobal) return kPlain[static_cast<std::size_t>(value.kind)];
  if (value.kind == ValueKind::kGlobal) return global_type_name(value);
  if (value.kind == ValueKind::kCall) return call_type_name(value);
  if (value.kind == ValueKind::kPersid) return "persistent_id";
  return value.kind == ValueKind::kTensor ? "torch.Tensor" : qualified_name(value);
}

}  // namespace shard
