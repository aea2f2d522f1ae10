/// \file
/// What the dumper remembers of the nodes it wrote. Private to this folder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "libshard/core/value.h"

namespace shard::pickle {

/// Memo indices by node: open addressing, because a large pickle asks for millions of nodes, most of them unknown.
class NodeTable {
 public:
  std::optional<std::uint32_t> find(const Value& value) const {
    const Slot& slot = slots_[place_of(&value)];
    return slot.node != nullptr ? std::optional(slot.index) : std::nullopt;
  }
  void add(const Value& value, std::uint32_t index) {
    if (2 * ++count_ > slots_.size()) grow();
    slots_[place_of(&value)] = {&value, index};
  }

 private:
  struct Slot {
    const Value* node = nullptr;
    std::uint32_t index = 0;
  };
  /// Where the node is, or would be.
  std::size_t place_of(const Value* node) const {
    const std::size_t mask = slots_.size() - 1;
    std::size_t place = (reinterpret_cast<std::uintptr_t>(node) * 0x9E3779B97F4A7C15 >> 20) & mask;
    while (slots_[place].node != nullptr && slots_[place].node != node) place = (place + 1) & mask;
    return place;
  }
  void grow() {
    std::vector<Slot> old(2 * slots_.size());
    old.swap(slots_);
    for (const Slot& slot : old) {
      if (slot.node != nullptr) slots_[place_of(slot.node)] = slot;
    }
  }

  std::vector<Slot> slots_ = std::vector<Slot>(64);
  std::size_t count_ = 0;
};

}  // namespace shard::pickle
