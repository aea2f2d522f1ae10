/// \file
/// Makes the Values of one pickle within a budget of memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "libshard/core/arena.h"
#include "libshard/core/value.h"

namespace shard::pickle {

/// Thrown by Nodes where the budget is spent; the machine turns it into an Error with the position.
struct BudgetSpent {};

/// None, bools, small and often repeated integers are one node each, for they never change. Lists and dicts grow in
/// amortised constant time: an array's capacity is its size rounded up to a power of two, so it is not stored.
class Nodes {
 public:
  Nodes(Arena& arena, std::size_t max_bytes);

  Value* make(ValueKind kind);
  Value* make_text(ValueKind kind, std::string_view text);  ///< Does not copy the text.
  Value* make_global(ValueKind kind, std::string_view module, std::string_view name);
  Value* none() { return none_; }
  Value* boolean(bool value) { return value ? true_ : false_; }
  Value* empty_tuple() { return empty_tuple_; }
  Value* integer(std::int64_t number);
  CallExtra& extra_of(Value& call);

  /// An array that will not grow.
  std::span<Value*> fixed(std::span<Value* const> items);
  /// Appends to an array that only this function made; an empty span is one.
  void append(std::span<Value*>& array, std::span<Value* const> items);

 private:
  void charge(std::size_t bytes);

  Arena& arena_;
  std::size_t left_;
  std::span<Value> slab_;
  std::size_t slab_size_ = 16;  ///< Grows, so that a small pickle takes little memory.
  Value *none_, *true_, *false_, *empty_tuple_;
  std::array<Value*, 1024> recent_ints_{};  ///< By hash.
};

/// Removes keys that repeat, as assignments to a Python dict do: the first place, the last value. Compares strings,
/// bytes, integers, bools and None; other keys stay. Cost: n log n for n > 8.
void drop_repeated_keys(std::span<Value*>& pairs);

/// True for UTF-8 as Python's "surrogatepass" takes it: also lone surrogates, no other abuse.
bool is_python_utf8(std::string_view text);

}  // namespace shard::pickle
