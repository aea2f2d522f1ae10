/// \file
/// Finds tensors in the flat buffers of Megatron's distributed optimizer, by the names of their parameters.
#pragma once

#include "formats/megatron/wholes.h"

namespace shard::megatron {

/// Adds master weights and moments of all parameters to `wholes` as
/// optimizer.state.{fp32_param,exp_avg,exp_avg_sq}.NAME.
/// \returns false, without changes, if the save has no such buffers, or if the positions of parameters in them are not
///   certain (see begins_in_saved_buffer).
bool add_flat_states(Wholes& wholes, Arena& arena, const Save& save);

}  // namespace shard::megatron
