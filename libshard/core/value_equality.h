/// \file
/// ValueEquality: whether two values have the same content.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>

#include "libshard/core/budget.h"
#include "libshard/core/hash_table.h"
#include "libshard/core/value.h"

namespace shard {

/// Compares the values of one or two checkpoints. Cost: linear in the nodes of both while values are equal, regardless
/// of how often nodes are shared. Equal values are remembered for later calls. Steps are charged to a budget, so that
/// many different objects with one large shared value cannot take forever. Threads: one.
class ValueEquality {
 public:
  struct Options {
    /// Whether two kTensor values are equivalent. Without it, those with equal numbers are.
    std::function<bool(const Value&, const Value&)> same_tensor = {};
    /// The content of an opaque value is unknown. Such values are equal if their classes are, or never.
    bool opaque_by_class = true;
    /// The content behind a persistent id is outside the pickle. Such values are equal if their ids are, or never,
    /// because one id may mean different content in two files.
    bool persistent_by_id = true;
    Budget* budget = nullptr;  ///< The source's budget. Null: nothing is charged.
  };
  ValueEquality() = default;
  explicit ValueEquality(Options options) : options_(std::move(options)) {}

  /// True if both are equal in every node: kinds, numbers, texts, the order of items except in sets, and the data that
  /// calls received. Arrays of numpy are equal by dtype, shape and elements.
  /// Floats are compared by their bits. Sharing, and the encoding of the two, do not matter. Values may contain
  /// themselves.
  /// \throws Error kCorruption  the budget is spent.
  bool is_equal(const Value& a, const Value& b);

 private:
  class Comparison;

  Options options_;
  HashMap<const Value*, const Value*> classes_;  ///< Values known to be equal, as a forest (union-find).
  HashSet<const Value*> selves_;                 ///< Values that were compared with themselves.
  HashMap<const Value*, std::uint64_t> hashes_;  ///< Hashes of the elements of sets.
};

}  // namespace shard
