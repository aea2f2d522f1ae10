/// \file Walks over values, and their limits: the nodes visited so far, and their depth.
#pragma once

#include <vector>

#include "libshard/core/hash_table.h"
#include "libshard/core/value.h"

namespace shard {

/// \throws Error kCorruption  deeper than kMaxValueDepth.
void check_depth(int depth);

/// The nodes that a walk has visited. It visits each once, regardless of how often it is shared.
class VisitedSet {
 public:
  /// \returns true if `value` was not in it.
  bool insert(const Value* value) { return nodes_.insert(value); }

 private:
  HashSet<const Value*> nodes_;
};

/// A walk over a value and all below it, in no promised order:
///
///     ValueWalk walk(root);
///     while (const Value* value = walk.next()) ...
///
/// The walk returns a value for each reference to it, but descends into it only once. A caller that may walk the same
/// values many times must charge its steps to the source's Budget.
class ValueWalk {
 public:
  /// The walk skips the children of values in `met`, and adds each value whose children it visits. Null: a set of its
  /// own. Ownership: root and met must outlive the walk.
  explicit ValueWalk(const Value& root, VisitedSet* met = nullptr) : met_(met == nullptr ? own_ : *met) { add(root); }
  ValueWalk(const ValueWalk&) = delete;
  ValueWalk& operator=(const ValueWalk&) = delete;

  /// Null at the end.
  const Value* next();
  /// Skips the children of the value that was returned last.
  void skip_children() { last_ = nullptr; }
  /// Also visits a further value and all values below it.
  void add(const Value& value) { open_.push_back(&value); }

 private:
  VisitedSet own_;
  VisitedSet& met_;
  std::vector<const Value*> open_;
  const Value* last_ = nullptr;
};

/// The first value at or below `root` for which `is_wanted` is true, or null. Cost: linear in the references.
template <class Predicate>
const Value* find_below(const Value& root, Predicate&& is_wanted) {
  ValueWalk walk(root);
  const Value* value = walk.next();
  while (value != nullptr && !is_wanted(*value)) value = walk.next();
  return value;
}

}  // namespace shard
