/// \file Value: the tree of a checkpoint's content other than tensors' bytes, in the symbolic form of a pickle.
///
/// A Value is inert. Names of Python functions and classes are text (kGlobal). "Calling" one is a node (kCall) that
/// records the callee and its arguments. Nothing is ever resolved or executed. A pickle that is read into a Value and
/// written again has the same meaning.
///
/// Ownership: nodes are in an Arena, and are shared if the pickle shared them, so the "tree" may be a DAG and, in a
/// hostile file, a cycle. Every walk therefore limits its depth (kMaxValueDepth), and either visits each node once
/// (VisitedSet) or charges its steps to the source's Budget.
#pragma once

#include <concepts>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include "libshard/core/arena.h"

namespace shard {

inline constexpr int kMaxValueDepth = 256;

enum class ValueKind : std::uint8_t {
  kNone,
  kBool,
  kInt,
  kLong,  ///< An integer past 64 bits: its text is its two's complement, little-endian.
  kFloat,
  kString,
  kBytes,
  kByteArray,  ///< Protocol 5's bytearray.
  kList,
  kTuple,
  kDict,  ///< Its items are key, value, key, value, ...
  kSet,
  kFrozenSet,
  kGlobal,  ///< module() and text() (the qualified name).
  kCall,    ///< REDUCE, NEWOBJ or NEWOBJ_EX: callee(), items() (arguments), is_new, state(), extra().
  kPersid,  ///< A persistent id: its only item.
  kTensor,  ///< Set by readers in the place of a rebuilt tensor: `number` is its index in the catalog.
  kOpaque,  ///< A class outside the list, under --unknown-globals opaque: module(), text().
};

struct Value;

/// Parts that few calls have.
struct CallExtra {
  std::span<Value*> list_items;  ///< APPEND(S) onto the object.
  std::span<Value*> dict_items;  ///< SETITEM(S) onto the object: key, value, ...
  Value* kwargs = nullptr;       ///< NEWOBJ_EX's dict, otherwise null.
};

/// The parts of a kCall. They are stored outside of the value, because few values are calls.
struct CallParts {
  Value* callee = nullptr;      ///< Usually a kGlobal; for nested classes, a call of getattr.
  Value** arguments = nullptr;  ///< Value::size of them.
  Value* state = nullptr;       ///< BUILD's argument, otherwise null.
  CallExtra* extra = nullptr;   ///< Null if the call has none of its parts.
};

/// A value has 16 bytes, because a list of a million small objects consists of a million of these and of pointers to
/// them. `kind` determines the union's member. text(), items(), callee(), state() and extra() check it, and are empty
/// for kinds that lack the member.
struct Value {
  ValueKind kind = ValueKind::kNone;
  /// kGlobal, kOpaque: the module precedes the text, with a dot between them.
  std::uint64_t module_bytes : 16 = 0;
  std::uint64_t is_new : 1 = 0;  ///< kCall: NEWOBJ (cls.__new__) rather than REDUCE (cls()).
  std::uint64_t size : 39 = 0;   ///< The size of `characters` or `elements`, or the number of arguments.
  union {
    std::int64_t number = 0;  ///< kInt; kBool: 0 or 1; index of kTensor.
    double real;              ///< kFloat.
    const char* characters;
    Value** elements;
    CallParts* call;  ///< kCall: never null.
  };

  /// kString (UTF-8, may hold surrogates as written), kBytes, kByteArray, kLong; the name of kGlobal, kOpaque.
  std::string_view text() const { return has_text() ? std::string_view(characters, size) : std::string_view(); }
  /// Elements, key-value pairs, or a call's arguments.
  std::span<Value*> items() const {
    if (has_elements()) return {elements, size};
    return kind == ValueKind::kCall ? std::span(call->arguments, size) : std::span<Value*>();
  }
  Value* callee() const { return kind == ValueKind::kCall ? call->callee : nullptr; }
  Value* state() const { return kind == ValueKind::kCall ? call->state : nullptr; }
  CallExtra* extra() const { return kind == ValueKind::kCall ? call->extra : nullptr; }
  bool boolean() const { return kind == ValueKind::kBool && number != 0; }

  /// Not copied. \pre a kind that has a text; less than 2^39 bytes
  void set_text(std::string_view text);
  /// Not copied. A kCall's are its arguments. \pre a kind that has items
  void set_items(std::span<Value*> items);
  void set_size(std::size_t count);

  bool has_text() const {
    return (kind >= ValueKind::kString && kind <= ValueKind::kByteArray) || kind == ValueKind::kLong ||
           kind == ValueKind::kGlobal || kind == ValueKind::kOpaque;
  }
  bool has_elements() const {
    return (kind >= ValueKind::kList && kind <= ValueKind::kFrozenSet) || kind == ValueKind::kPersid;
  }
  bool is_string() const { return kind == ValueKind::kString; }
  /// kGlobal, kOpaque; empty for all others.
  std::string_view module() const {
    return module_bytes == 0 ? std::string_view() : std::string_view(characters - 1 - module_bytes, module_bytes);
  }
  bool is_global(std::string_view in_module, std::string_view name) const {
    return kind == ValueKind::kGlobal && text() == name && module() == in_module;
  }
  /// True for a call of the global `in_module`.`name`.
  bool is_call_of(std::string_view in_module, std::string_view name) const {
    return kind == ValueKind::kCall && call->callee->is_global(in_module, name);
  }
};
static_assert(sizeof(Value) == 16);

/// Calls `visit` with each value to which `value` refers directly: its elements or arguments, its callee, and the data
/// that a call received later. All walks use this function, so that none of them misses a part. The order is not
/// defined. Loops that need no recursion use ValueWalk (value_walk.h).
template <class AnyValue, class Visit>
requires std::same_as<std::remove_const_t<AnyValue>, Value>
void for_each_child(AnyValue& value, Visit&& visit) {
  const auto visit_all = [&visit](std::span<Value* const> children) {
    for (AnyValue* child : children) visit(*child);
  };
  const auto visit_one = [&visit](AnyValue* child) {
    if (child != nullptr) visit(*child);
  };
  visit_all(value.items());
  visit_one(value.callee());
  visit_one(value.state());
  if (value.extra() == nullptr) return;
  visit_all(value.extra()->list_items);
  visit_all(value.extra()->dict_items);
  visit_one(value.extra()->kwargs);
}

/// Makers, for readers and for writers that build containers.
Value* make_value(Arena& arena, ValueKind kind);
Value* copy_of(Arena& arena, const Value& value);  ///< With the same parts, which are not copied.
Value* make_int(Arena& arena, std::int64_t number);
Value* make_bool(Arena& arena, bool value);
Value* make_float(Arena& arena, double number);
Value* make_string(Arena& arena, std::string_view text);  ///< Copies the text.
Value* make_tensor(Arena& arena, std::int64_t index);
/// Converts a value, for all that refer to it, into the kTensor with that index.
void become_tensor(Value& value, std::int64_t index);
Value* make_list(Arena& arena, ValueKind kind, std::span<Value* const> items);
/// A kGlobal; `module` and `name` become parts of one text "module.name". \pre a module below 64 KiB
Value* make_global(Arena& arena, std::string_view module, std::string_view name);
Value* make_call(Arena& arena, Value* callee, std::span<Value* const> arguments);
/// The rare parts of a call; created if there are none. \pre a kCall
CallExtra& extra_of(Arena& arena, Value& call);
/// A copy of a call that shares no CallParts with it. Its values are not copied. \pre a kCall
Value* copy_of_call(Arena& arena, const Value& call);

/// The key-value pairs of a mapping (dict, OrderedDict, Counter, defaultdict). Empty for other values.
std::span<Value*> mapping_items(const Value& value);
bool is_mapping(const Value& value);
/// A copy of a mapping with these alternating keys and values. Its class, state and other arguments are unchanged.
Value* with_items(Arena& arena, const Value& mapping, std::span<Value* const> items);

/// The pairs of keys and values that follow one another in `items`: for (const auto [key, value] : ItemPairs(items)).
class ItemPairs {
 public:
  struct Pair {
    Value* key;
    Value*& value;
  };
  struct Iterator {
    Value** at;
    Pair operator*() const { return {at[0], at[1]}; }
    Iterator& operator++() { return at += 2, *this; }
    friend bool operator==(const Iterator&, const Iterator&) = default;
  };
  explicit ItemPairs(std::span<Value*> items) : items_(items) {}
  explicit ItemPairs(const Value& mapping) : items_(mapping_items(mapping)) {}
  Iterator begin() const { return {items_.data()}; }
  Iterator end() const { return {items_.data() + items_.size() / 2 * 2}; }

 private:
  std::span<Value*> items_;
};

/// The text of a string, or an empty one for other values.
inline std::string_view text_or_empty(const Value& value) {
  return value.is_string() ? value.text() : std::string_view();
}

/// A dict with the items of a mapping. Each has the value that `change(key, value)` returns. Items with null are
/// dropped.
template <class Change>
Value* change_items(Arena& arena, const Value& mapping, const Change& change) {
  std::vector<Value*> items;
  for (const auto [key, value] : ItemPairs(mapping)) {
    if (Value* const changed = change(*key, value)) items.insert(items.end(), {key, changed});
  }
  return make_list(arena, ValueKind::kDict, items);
}

/// The value of a string key in a mapping, or null. The last of equal keys, as in Python. Cost: linear.
Value* find_key(const Value& mapping, std::string_view key);
/// The same; also null for None.
Value* find_value(const Value& mapping, std::string_view key);

/// Python's type name for JSON's `type`: "int", "str", "OrderedDict", "torch.Size", "module.Class", ...
/// Classes of builtins and collections come without module.
std::string_view type_name(const Value& value);

}  // namespace shard
