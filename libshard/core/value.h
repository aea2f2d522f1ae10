/// \file
/// Value: the tree of what a checkpoint holds besides tensors' bytes. It is what a pickle says, symbolically.
///
/// A Value is inert. Names of Python functions and classes are text (kGlobal); "calling" one is a node (kCall) that
/// records who was called with what. Nothing is ever resolved or run. A pickle that is read into a Value and written
/// again says the same thing.
///
/// Ownership: nodes lie in an Arena and are shared where the pickle shared them, so the "tree" may be a DAG and, in a
/// hostile file, a cycle. Every walk therefore bounds its depth (kMaxValueDepth) and its number of steps
/// (kMaxValueVisits).
#pragma once

#include <concepts>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>

#include "libshard/core/arena.h"

namespace shard {

inline constexpr int kMaxValueDepth = 256;
inline constexpr std::int64_t kMaxValueVisits = 50'000'000;

enum class ValueKind : std::uint8_t {
  kNone, kBool, kInt,
  kLong,      ///< An integer past 64 bits: `text` is its two's complement, little-endian.
  kFloat, kString, kBytes,
  kByteArray, ///< Protocol 5's bytearray.
  kList, kTuple,
  kDict,      ///< `items` holds key, value, key, value, ...
  kSet, kFrozenSet,
  kGlobal,    ///< `module()` and `text` (the qualified name).
  kCall,      ///< REDUCE, NEWOBJ or NEWOBJ_EX: `callee`, `items` (arguments), `state`, `added`.
  kPersid,    ///< A persistent id: items[0].
  kTensor,    ///< Set by readers in the place of a rebuilt tensor: `number` is its index in the catalog.
  kOpaque,    ///< A class outside the list, under --unknown-globals opaque: `module()`, `text`.
};

struct Value;

/// What a kCall received after it was made: APPENDS / SETITEMS / ADDITEMS (`items`) and BUILD (`state`).
struct CallExtra {
  std::span<Value*> list_items;  ///< APPEND(S) onto the object.
  std::span<Value*> dict_items;  ///< SETITEM(S) onto the object: key, value, ...
  Value* state = nullptr;        ///< BUILD's argument.
  Value* kwargs = nullptr;       ///< NEWOBJ_EX's dict, else null.
  bool is_new = false;           ///< NEWOBJ (cls.__new__) rather than REDUCE (cls()).
};

struct Value {
  ValueKind kind = ValueKind::kNone;
  bool boolean = false;
  std::uint32_t module_bytes = 0;  ///< kGlobal, kOpaque: the module stands before `text`, with a dot between them.
  union {
    std::int64_t number = 0;  ///< kInt; index of kTensor.
    double real;              ///< kFloat.
  };
  std::string_view text;    ///< kString (UTF-8, may hold surrogates as written), kBytes, kLong; name of kGlobal, kOpaque.
  std::span<Value*> items;  ///< Elements, key-value pairs, or a call's arguments.
  Value* callee = nullptr;  ///< kCall: mostly a kGlobal, or for nested classes a call of getattr.
  CallExtra* extra = nullptr;  ///< kCall: null when nothing was added.

  bool is_string() const { return kind == ValueKind::kString; }
  /// kGlobal, kOpaque; empty of all others.
  std::string_view module() const {
    return module_bytes == 0 ? std::string_view() : std::string_view(text.data() - 1 - module_bytes, module_bytes);
  }
  bool is_global(std::string_view in_module, std::string_view name) const {
    return kind == ValueKind::kGlobal && text == name && module() == in_module;
  }
  /// True for a call of the global `in_module`.`name`.
  bool is_call_of(std::string_view in_module, std::string_view name) const {
    return kind == ValueKind::kCall && callee != nullptr && callee->is_global(in_module, name);
  }
};
static_assert(sizeof(Value) == 64);  // A cache line: the metadata of a million chunks is twenty million of these.

/// Calls `visit` with each value that `value` refers to directly: its elements or arguments, its callee, and what a call
/// received later. Walks go through this function, so that none of them misses a part. In no promised order.
template <class AnyValue, class Visit>
  requires std::same_as<std::remove_const_t<AnyValue>, Value>
void for_each_child(AnyValue& value, Visit&& visit) {
  const auto visit_all = [&visit](std::span<Value* const> children) {
    for (AnyValue* child : children) visit(*child);
  };
  const auto visit_one = [&visit](AnyValue* child) {
    if (child != nullptr) visit(*child);
  };
  visit_all(value.items);
  visit_one(value.callee);
  if (value.extra == nullptr) return;
  visit_all(value.extra->list_items);
  visit_all(value.extra->dict_items);
  visit_one(value.extra->state);
  visit_one(value.extra->kwargs);
}

/// Makers, for readers and for writers that build containers.
Value* make_value(Arena& arena, ValueKind kind);
Value* make_int(Arena& arena, std::int64_t number);
Value* make_string(Arena& arena, std::string_view text);  ///< Copies the text.
Value* make_tensor(Arena& arena, std::int64_t index);
/// Turns a value, with all that refers to it, into the kTensor of that index.
void become_tensor(Value& value, std::int64_t index);
Value* make_list(Arena& arena, ValueKind kind, std::span<Value* const> items);
/// A kGlobal; `module` and `name` become parts of one text "module.name". \pre a module below 4 GiB
Value* make_global(Arena& arena, std::string_view module, std::string_view name);
Value* make_call(Arena& arena, Value* callee, std::span<Value* const> arguments);

/// The key-value pairs of a mapping (dict, OrderedDict, Counter, defaultdict), or an empty span of another value.
std::span<Value*> mapping_items(const Value& value);
bool is_mapping(const Value& value);
/// The value under a string key of a mapping, or null; of equal keys the last, as in Python. Cost: linear.
Value* find_key(const Value& mapping, std::string_view key);

/// Python's type name for JSON's `type`: "int", "str", "OrderedDict", "torch.Size", "module.Class", ...
/// Classes of builtins and collections come without module.
std::string_view type_name(const Value& value);

}  // namespace shard
