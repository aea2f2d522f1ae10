/// \file
/// ValueCopier: copies values into another arena, so that the one they lie in can end.
#pragma once

#include <span>
#include <vector>

#include "libshard/core/arena.h"
#include "libshard/core/hash_table.h"
#include "libshard/core/value.h"

namespace shard {

/// Values that share a part do so in their copies, as far as one copier made them. Threads: one.
class ValueCopier {
 public:
  /// Ownership: `to` and all that was copied must outlive this.
  explicit ValueCopier(Arena& to) : to_(to) {}
  /// With texts. Cost: linear in the nodes that were not copied yet; no recursion.
  Value* copy(const Value& value);

 private:
  Value* copied(Value* value);
  std::span<Value*> copied(std::span<Value* const> values);
  void fill(Value& made);

  Arena& to_;
  HashMap<const Value*, Value*> copies_;
  std::vector<Value*> open_;  ///< Copies that refer to what was not copied yet.
};

}  // namespace shard
