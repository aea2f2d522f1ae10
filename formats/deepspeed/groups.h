/// \file
/// The groups and the order of parameters in flat buffers: as a save records them, and as a different number of ranks
/// requires them. Pure. Inside formats/deepspeed only.
///
/// Source: deepspeed/runtime/zero/stage_1_and_2.py (_round_robin_reorder), stage3.py (_create_fp16_sub_groups), 0.18.2.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "formats/deepspeed/states.h"

namespace shard::deepspeed {

/// The groups as the model's states list them. If they do not, as older saves or saves of BF16_Optimizer record them.
/// \throws Error kCorruption  the optimizer names a parameter that the module lacks.
std::vector<ParamGroup> groups_of(const Save& save);

/// A group or sub-group to be written.
struct NewGroup {
  ParamGroup params;
  std::vector<std::size_t> from;  ///< The save's groups from which its parameters come, ascending; at least one.
};

struct NewGroups {
  std::vector<NewGroup> groups;
  bool differ = false;  ///< The groups differ from those of the save in members or order.
  /// For stage 3: the numbers of the sub-groups of each user's group; empty if they do not differ.
  std::vector<std::vector<std::int64_t>> members;
};

/// The groups that the engine would form from `groups` with `ranks` ranks. With round_robin_gradients the parameters
/// are dealt to that many hands. Stage 3 forms sub-groups by the number of elements on one rank.
/// \throws Error kUnsupported  the save does not record how its groups were made, or they do not match its
///   configuration; sub-groups that would be joined had different numbers of updates.
NewGroups regroup(const Save& save, const std::vector<ParamGroup>& groups, std::int64_t ranks);

}  // namespace shard::deepspeed
