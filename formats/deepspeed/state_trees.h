/// \file
/// The trees of a save's files, as they are for another number of ranks. Inside formats/deepspeed only.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "formats/deepspeed/groups.h"
#include "formats/deepspeed/states.h"
#include "libshard/core/arena.h"
#include "libshard/core/hash_table.h"

namespace shard::deepspeed {

/// A parameter's part in one rank's slice of a group (stages 1 and 2).
struct Fragment {
  std::string_view name;
  std::int64_t count = 0, first = 0;
};

/// What one rank's files hold of its own. Tensors are the numbers of kTensor values.
struct RankParts {
  std::int64_t rank = 0;
  std::vector<std::int64_t> masters;                            ///< By group.
  HashMap<std::string_view, std::vector<std::int64_t>> states;  ///< By name, then group; -1 where it has none.
  HashMap<std::string_view, std::int64_t> frozen;               ///< Stage 3: by name.
  std::vector<std::int64_t> paddings;                           ///< By group: elements (stages 1 and 2).
  std::vector<std::vector<Fragment>> fragments;                 ///< By group, in order (stages 1 and 2).
};

/// What all files have in common. Ownership: refers to what it is made of.
struct NewSpread {
  const Save& save;
  const NewGroups& groups;
  std::int64_t ranks;
};

/// The tree of rank 0's file with this rank's parts. In `arena` and in that of the save.
/// \throws Error kCorruption  what is replaced is not as DeepSpeed writes it.
const Value* model_tree(Arena& arena, const NewSpread& spread, const RankParts& parts);
const Value* optimizer_tree(Arena& arena, const NewSpread& spread, const RankParts& parts);

/// A copy of a mapping with another value under `key`; the mapping itself where the key is not there or None.
Value* with_value(Arena& arena, Value& mapping, std::string_view key, Value* value);

}  // namespace shard::deepspeed
