/// \file ValueCopier: copies values into a different arena, so that the original arena can be freed.
#pragma once

#include <span>
#include <vector>

#include "libshard/core/arena.h"
#include "libshard/core/hash_table.h"
#include "libshard/core/value.h"

namespace shard {

/// Values that share a part also share it in their copies, if one copier creates them. Threads: one.
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
