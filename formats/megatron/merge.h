/// \file
/// Merges the states of all ranks into tensors and objects of one catalog.
#pragma once

#include "formats/megatron/save.h"

namespace shard::megatron {

/// Fills `catalog`. Whole tensors have Megatron-Core's names, with layers numbered through the model. The distributed
/// optimizer's states of a parameter are named optimizer.state.STATE.NAME, if their positions are certain. The rest of
/// rank 0's file becomes objects. Warns of skipped values. \pre the save was checked
/// \throws Error kCorruption   parts contradict one another, or a file of the optimizer is another rank's. kUnsupported
/// tensor-parallel ranks share a tensor in a
///   way that its name does not define.
void merge(Catalog& catalog, torch_save::SavedFiles& files, const Save& save);

}  // namespace shard::megatron
