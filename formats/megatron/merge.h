/// \file
/// From the states of all ranks to the tensors and objects of one catalog.
#pragma once

#include "formats/megatron/save.h"

namespace shard::megatron {

/// Fills `catalog` with the whole tensors under Megatron-Core's names, layers numbered through; what the distributed
/// optimizer holds of a parameter as optimizer.state.STATE.NAME, where its place is certain; and objects: what rank 0's
/// file holds besides. Warns of what is left out. \pre the save was checked
/// \throws Error kCorruption   parts contradict one another. kUnsupported  a tensor that tensor-parallel ranks share
///   in a way that its name does not tell.
void merge(Catalog& catalog, torch_save::SavedFiles& files, const Save& save);

}  // namespace shard::megatron
