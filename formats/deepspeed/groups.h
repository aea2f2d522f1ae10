/// \file
/// In which groups and in which order flat buffers hold parameters, as a save says and as another number of ranks would
/// have it. Pure. Inside formats/deepspeed only.
///
/// Source: deepspeed/runtime/zero/stage_1_and_2.py (_round_robin_reorder), stage3.py (_create_fp16_sub_groups) of
/// 0.18.2.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "formats/deepspeed/states.h"

namespace shard::deepspeed {

/// The groups as the model's states list them, else as those of old or of BF16_Optimizer's saves do.
/// \throws Error kCorruption  the optimizer names a parameter that the module does not hold.
std::vector<ParamGroup> groups_of(const Save& save);

/// A group or sub-group as it shall be written.
struct NewGroup {
  ParamGroup params;
  std::vector<std::size_t> from;  ///< The save's groups of which it has parameters, rising; one at least.
};

struct NewGroups {
  std::vector<NewGroup> groups;
  bool differ = false;  ///< From those of the save, in members or order.
  /// Of stage 3: the numbers of the sub-groups of each group of the user's; none where nothing differs.
  std::vector<std::vector<std::int64_t>> members;
};

/// What the engine would make of `groups` with `ranks` ranks: with round_robin_gradients parameters are dealt out to as
/// many hands, and stage 3 cuts sub-groups by the elements that one rank holds.
/// \throws Error kUnsupported  the save does not say how its groups were made, or they are not what its configuration
///   makes; sub-groups that would be joined were not updated equally often.
NewGroups regroup(const Save& save, const std::vector<ParamGroup>& groups, std::int64_t ranks);

}  // namespace shard::deepspeed
