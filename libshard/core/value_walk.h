/// \file Walks over values, copies of them, and the limits of both: the nodes visited so far, and their depth.
#pragma once

#include <span>
#include <vector>

#include "libshard/core/arena.h"
#include "libshard/core/hash_table.h"
#include "libshard/core/value.h"

namespace shard {

/// \throws Error kCorruption  deeper than kMaxValueDepth.
void check_depth(int depth);

/// The nodes that a walk has visited. It visits each once, regardless of how often it is shared.
using VisitedSet = HashSet<const Value*>;

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

/// Copies values into a different arena, so that the original arena can be freed. Values that share a part also share
/// it in their copies, if one copier creates them. Threads: one.
class ValueCopier {
 public:
  /// Ownership: `to` and all copied values must outlive this.
  explicit ValueCopier(Arena& to) : to_(to) {}
  /// Copies a value including its texts. Cost: linear in the nodes that were not copied yet; no recursion.
  Value* copy(const Value& value);

 private:
  Value* copied(Value* value);
  std::span<Value*> copied(std::span<Value* const> values);
  void fill(Value& made);

  Arena& to_;
  HashMap<const Value*, Value*> copies_;
  std::vector<Value*> open_;  ///< Copies that still refer to parts of the original.
};

}  // namespace shard
