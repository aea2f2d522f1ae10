/// \file
/// Bounds of walks over values: the nodes met so far, and the limits of value.h.
#pragma once

#include <cstdint>

#include "libshard/core/hash_table.h"
#include "libshard/core/value.h"

namespace shard {

/// \throws Error kCorruption  deeper than kMaxValueDepth, or more than kMaxValueVisits steps.
void check_walk(int depth, std::int64_t visits);

/// The nodes that a walk met: it visits each once, however often it is shared.
class VisitedSet {
 public:
  /// \returns true when `value` was not in it.
  bool insert(const Value* value) { return nodes_.insert(value); }
  std::int64_t size() const { return static_cast<std::int64_t>(nodes_.size()); }

 private:
  HashSet<const Value*> nodes_;
};

}  // namespace shard
