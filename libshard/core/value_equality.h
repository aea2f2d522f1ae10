/// \file
/// ValueEquality: whether two values have the same content.
#pragma once

#include <functional>
#include <utility>

#include "libshard/core/budget.h"
#include "libshard/core/hash_table.h"
#include "libshard/core/value.h"

namespace shard {

/// Compares the values of one checkpoint, or of two. Cost: linear in the nodes of both, however often nodes are shared,
/// while values are equal; what is found to be equal is kept for later calls. Steps are charged to a budget, so that
/// many objects that differ and share one large value end. Threads: one.
class ValueEquality {
 public:
  struct Options {
    /// Whether two kTensor values mean the same, an equivalence; without it, those of one number do.
    std::function<bool(const Value&, const Value&)> same_tensor = {};
    /// The content of an opaque value is unknown: such values are equal if their classes are, or never.
    bool opaque_by_class = true;
    Budget* budget = nullptr;  ///< The source's; null: nothing is charged.
  };
  ValueEquality() = default;
  explicit ValueEquality(Options options) : options_(std::move(options)) {}

  /// True when both say the same in every node: kinds, numbers, texts, the order of items, what calls received. Floats
  /// by their bits. What is shared, and how the two are spelled, does not matter. Values may hold themselves.
  /// \throws Error kCorruption  the budget is spent.
  bool is_equal(const Value& a, const Value& b);

 private:
  class Comparison;

  Options options_;
  HashMap<const Value*, const Value*> classes_;  ///< Values known to be equal, as a forest (union-find).
  HashSet<const Value*> selves_;                 ///< Values that were compared with themselves.
};

}  // namespace shard
