/// \file
/// Finds the parameters' names for the states of a torch optimizer, which numbers parameters.
///
/// Source: megatron/core/optimizer/{__init__,optimizer}.py of Megatron-Core 0.16.1.
#pragma once

#include "formats/megatron/wholes.h"

namespace shard::megatron {

/// Adds the states of all parameters, and the master weights of those with 16 bits, to `wholes` as
/// optimizer.state.STATE.NAME.
///
/// Parameters are numbered group by group: first those with weight decay, then vectors and biases. Experts on separate
/// ranks have separate groups. Every group must have the number of parameters, and every state the shape, that follow
/// from the model's names.
/// \returns false, without changes, if some do not.
bool add_indexed_states(Wholes& wholes, Arena& arena, const Save& save);

/// True if a rank's file contains such states.
bool has_indexed_states(const RankStates& rank);

/// The optimizer in a rank's file without such states. Values that do not have their parameters' shapes are kept. \pre
/// has_indexed_states(rank)
Value* without_indexed_states(Arena& arena, const RankStates& rank);

}  // namespace shard::megatron
