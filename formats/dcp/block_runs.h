/// \file
/// Restores the shapes of optimizer tensors that Megatron-Core up to 0.15 stored reshaped. Inside formats/dcp only.
///
/// If each rank has a block of [x, y] of a tensor [X, Y], the tensor is stored as [X/x, Y/y, x*y]. A chunk is a run of
/// one block's elements in row-major order. The original shape is recorded in `mcore_data`, an attribute of Metadata.
/// torch 2.11 drops this attribute for Megatron-Core up to 0.14; then the shape of the parameter is used, because a
/// state has the same shape as its parameter.
///
/// Source: megatron/core/dist_checkpointing/strategies/{torch,resharding}.py of Megatron-Core 0.14 and 0.15.
#pragma once

#include "formats/dcp/metadata.h"
#include "formats/parts/pickle/pickle.h"

namespace shard::dcp {

/// Restores the original shapes of such tensors, see TensorEntry::stored_size. A tensor whose stored shape or chunks
/// contradict its original shape is set apart, with a warning. All other tensors stay unchanged.
///
/// \param mcore_data      name -> {} or {"nd_reformulated_orig_global_shape": shape}; null if the attribute is missing.
/// \param names_megatron  A state named `optimizer.state.STATE.KEY`, with or without `chained_K.` before it, that
///   `mcore_data` does not name gets the shape of the tensor KEY if both have the same number of elements.
/// \throws Error kCorruption  `mcore_data` has a different type.
/// Cost: linear.
void restore_block_runs(Arena& arena, const Value* mcore_data, bool names_megatron, Metadata& metadata);

}  // namespace shard::dcp
