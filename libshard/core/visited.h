/// \file
/// Bounds of walks over values: the nodes met so far, and how deep they lie.
#pragma once

#include "libshard/core/hash_table.h"
#include "libshard/core/value.h"

namespace shard {

/// \throws Error kCorruption  deeper than kMaxValueDepth.
void check_depth(int depth);

/// The nodes that a walk met: it visits each once, however often it is shared.
class VisitedSet {
 public:
  /// \returns true when `value` was not in it.
  bool insert(const Value* value) { return nodes_.insert(value); }

 private:
  HashSet<const Value*> nodes_;
};

}  // namespace shard
