/// \file
/// The states of an optimizer of torch, which numbers parameters, by their names.
///
/// Source: megatron/core/optimizer/{__init__,optimizer}.py of core 0.16.1.
#pragma once

#include "formats/megatron/wholes.h"

namespace shard::megatron {

/// Adds the states of all parameters, and the masters of those of 16 bits, to `wholes` as optimizer.state.STATE.NAME.
///
/// Parameters are numbered group by group: first those with weight decay, then vectors and biases; experts on ranks of
/// their own are groups of their own. All groups must have the number of parameters, and all states the shapes, that
/// the model's names make of that.
/// \returns false, and adds nothing, where some do not have them.
bool add_indexed_states(Wholes& wholes, Arena& arena, const Save& save);

/// True where the file of a rank holds such states.
bool has_indexed_states(const RankStates& rank);

/// The optimizer of a rank's file without such states, but with what they hold besides tensors of their parameters'
/// shapes. \pre has_indexed_states(rank)
Value* without_indexed_states(Arena& arena, const RankStates& rank);

}  // namespace shard::megatron
