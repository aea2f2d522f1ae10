/// \file
/// From the tensors of each model-parallel rank to those of the model. Inside formats/deepspeed only.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "formats/deepspeed/states.h"
#include "libshard/catalog/catalog.h"

namespace shard::deepspeed {

/// What one model-parallel rank has added to a catalog.
struct RankEntries {
  std::vector<Tensor> tensors;   ///< Taken out of the catalog; their chunks are still there.
  std::size_t first_stored = 0;  ///< Its stored tensors begin here, and end where those of the next rank begin.
};

/// True where the states hold universal_checkpoint_info.
bool holds_rules(const ModelStates& model);

/// Adds to `catalog` the tensors that all ranks' make, by the rules of rank 0's universal_checkpoint_info: a
/// parameter's states follow its rule, an alias that of its parameter. Buffers count as equal on all ranks (a warning
/// names them). The chunks of `catalog` are made anew; data-parallel rank D of model-parallel rank M is rank
/// D * ranks + M from then on.
/// \pre `catalog` has no other tensors but those of the objects' trees, in one chunk each
/// \throws Error kUnsupported  there are no such rules, or those that JoinRules refuses; ranks with other names.
/// \throws Error kCorruption   shapes that do not fit together (kind shape_mismatch).
void join_model_ranks(Catalog& catalog, const ModelStates& model, const std::vector<RankEntries>& ranks);

}  // namespace shard::deepspeed
