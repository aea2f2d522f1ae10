/// \file
/// Tensors of the optimizer that Megatron-core up to 0.15 stored in another shape than their own. Inside formats/dcp
/// only.
///
/// A tensor [X, Y] whose ranks have blocks of [x, y] is stored as [X/x, Y/y, x*y], and a chunk is a run of one block's
/// elements in row-major order. The own shape stands in `mcore_data`, an attribute of Metadata; torch 2.11 loses
/// that of core up to 0.14, and then the shape of the parameter, which a state shares, says it.
///
/// Source: megatron/core/dist_checkpointing/strategies/{torch,resharding}.py of core 0.14 and 0.15.
#pragma once

#include "formats/dcp/metadata.h"
#include "formats/parts/pickle/pickle.h"

namespace shard::dcp {

/// Gives such tensors their own shape, see TensorEntry::stored_size. Those whose stored shape or chunks contradict it
/// are set apart, with a warning; all others are as they say.
///
/// \param mcore_data      name -> {} or {"nd_reformulated_orig_global_shape": shape}; null: there is none.
/// \param names_megatron  `optimizer.state.STATE.KEY`, also behind `chained_K.`, that `mcore_data` does not name has
///   the shape of the tensor KEY, where both have as many elements.
/// \throws Error kCorruption  `mcore_data` is something else.
/// Cost: linear.
void restore_block_runs(Arena& arena, const Value* mcore_data, bool names_megatron, Metadata& metadata);

}  // namespace shard::dcp
