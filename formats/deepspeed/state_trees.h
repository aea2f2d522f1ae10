/// \file
/// Adapts the trees of a save's files to a different number of ranks. Inside formats/deepspeed only.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "formats/deepspeed/groups.h"
#include "formats/deepspeed/states.h"
#include "libshard/core/arena.h"
#include "libshard/core/hash_table.h"

namespace shard::deepspeed {

/// The part of a parameter in one rank's slice of a group (stages 1 and 2).
struct Fragment {
  std::string_view name;
  std::int64_t count = 0, first = 0;
};

/// The content of one rank's files that differs from the other ranks. Tensors are numbers of kTensor values.
struct RankParts {
  std::int64_t rank = 0;
  std::vector<std::int64_t> masters;                            ///< By group.
  HashMap<std::string_view, std::vector<std::int64_t>> states;  ///< By name, then group; -1 if the rank has none.
  HashMap<std::string_view, std::int64_t> frozen;               ///< Stage 3: by name.
  std::vector<std::int64_t> paddings;                           ///< By group: elements (stages 1 and 2).
  std::vector<std::vector<Fragment>> fragments;                 ///< By group, in order (stages 1 and 2).
};

/// The data that all files share. Ownership: refers to its arguments.
struct NewSpread {
  const Save& save;
  const NewGroups& groups;
  std::int64_t ranks;
};

/// The tree of rank 0's file with this rank's parts. It is stored in `arena`, and shares nodes with the save's arena.
/// \throws Error kCorruption  a replaced value does not have DeepSpeed's form.
const Value* model_tree(Arena& arena, const NewSpread& spread, const RankParts& parts);
const Value* optimizer_tree(Arena& arena, const NewSpread& spread, const RankParts& parts);

/// A copy of a mapping with a different value under `key`; the mapping itself if the key is missing or None.
Value* with_value(Arena& arena, Value& mapping, std::string_view key, Value* value);

}  // namespace shard::deepspeed
