/// \file
/// From the states of all ranks to the tensors and objects of one catalog.
#pragma once

#include <vector>

#include "formats/deepspeed/states.h"

namespace shard::deepspeed {

/// What the files of one save say, by data-parallel rank. \pre each rank is there once
struct Save {
  std::vector<ModelStates> models;          ///< One, or with stage 3 one of each rank.
  std::vector<OptimizerStates> optimizers;  ///< None: nothing is spread over ranks.
};

/// Fills `catalog` with parameters under their names, buffers and frozen parameters as the module holds them, shared
/// ones under each name, states as optimizer.state.NAME.STATE, and objects: what the model states hold besides, and
/// under "optimizer" what rank 0's optimizer states do. Numbers that a state holds for a whole group (its step) are
/// objects there.
/// `from_module`: parameters are the module's copies instead of the masters.
/// \throws Error kCorruption   contradictions: names in two places, lengths (see lay_out), elements in no file, files
///   of different saves; kUnsupported  copies that the module of stage 3 does not have.
void merge(Catalog& catalog, torch_save::SavedFiles& files, const Save& save, bool from_module);

}  // namespace shard::deepspeed
