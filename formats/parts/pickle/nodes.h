/// \file
/// Creates the Values of one pickle within a memory budget.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>

#include "libshard/core/arena.h"
#include "libshard/core/value.h"

namespace shard::pickle {

/// None, bools and repeated integers share a node, because they never change. Lists and dicts grow in amortised
/// constant time. The capacity of an array follows from its size, so it is not stored.
class Nodes {
 public:
  explicit Nodes(Arena& arena);

  Value* make(ValueKind kind);
  Value* make_text(ValueKind kind, std::string_view text);  ///< Refers to the text without copying it.
  Value* make_call(Value* callee, std::span<Value*> arguments);
  Value* make_global(ValueKind kind, std::string_view module, std::string_view name);
  std::span<char> characters(std::size_t count);  ///< Memory for a text.
  Value* none() { return none_; }
  Value* boolean(bool value) { return value ? true_ : false_; }
  Value* empty_tuple() { return empty_tuple_; }
  Value* integer(std::int64_t number);
  CallExtra& extra_of(Value& call);

  /// An array that cannot grow.
  std::span<Value*> fixed(std::span<Value* const> items);
  /// Appends to an array. \pre the array is empty or was grown only by this function
  void append(std::span<Value*>& array, std::span<Value* const> items);
  /// Appends to the items of a list, dict or set.
  void append(Value& container, std::span<Value* const> items) {
    std::span<Value*> array = container.items();
    append(array, items);
    container.set_items(array);
  }

 private:
  /// Memory for `count` objects of a type with a pointer's alignment. It comes from larger blocks, which takes half the
  /// time of a call of the arena per object.
  template <class T>
  T* room_for(std::size_t count) {
    static_assert(alignof(T) == alignof(Value*) && std::is_trivially_destructible_v<T>);
    const std::size_t bytes = count * sizeof(T);
    if (bytes > block_.size()) refill(bytes);
    void* room = block_.data();
    block_ = block_.subspan(bytes);
    return static_cast<T*>(room);
  }
  void refill(std::size_t bytes);

  Arena& arena_;
  std::span<std::byte> block_;
  std::size_t block_bytes_ = 1024;  ///< Doubles from a small start, so that a small pickle takes little memory.
  Value *none_, *true_, *false_, *empty_tuple_;
  std::array<Value*, 1024> recent_ints_{};  ///< By hash.
};

/// Removes repeated keys from `pairs` in place, as assignments to a Python dict do. The first position and the last
/// value remain. Compares strings, bytes, integers, bools and None; other keys stay. Cost: n log n for n > 8.
std::span<Value*> without_repeated_keys(std::span<Value*> pairs);

}  // namespace shard::pickle
