/// \file
/// Bounds of walks over values: the nodes met so far, and the limits of value.h.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "libshard/core/value.h"

namespace shard {

/// \throws Error kCorruption  deeper than kMaxValueDepth, or more than kMaxValueVisits steps.
void check_walk(int depth, std::int64_t visits);

/// A set of nodes as an open hash table: a walk of a million nodes inserts each once.
class VisitedSet {
 public:
  /// \returns true when `value` was not in it.
  bool insert(const Value* value) {
    if (2 * (count_ + 1) > slots_.size()) grow();
    const std::size_t slot = find(slots_, value);
    if (slots_[slot] == value) return false;
    slots_[slot] = value;
    ++count_;
    return true;
  }
  std::int64_t size() const { return static_cast<std::int64_t>(count_); }

 private:
  static std::size_t find(const std::vector<const Value*>& slots, const Value* value) {
    const std::size_t mask = slots.size() - 1;
    const std::uint64_t hash = std::bit_cast<std::uintptr_t>(value) * 0x9E3779B97F4A7C15;
    std::size_t slot = static_cast<std::size_t>(hash >> 20) & mask;
    while (slots[slot] != nullptr && slots[slot] != value) slot = (slot + 1) & mask;
    return slot;
  }
  void grow() {
    std::vector<const Value*> larger(slots_.empty() ? 64 : 2 * slots_.size());
    for (const Value* value : slots_) {
      if (value != nullptr) larger[find(larger, value)] = value;
    }
    slots_ = std::move(larger);
  }

  std::vector<const Value*> slots_;
  std::size_t count_ = 0;
};

}  // namespace shard
