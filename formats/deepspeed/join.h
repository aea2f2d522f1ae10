/// \file
/// Joins the tensors of all model-parallel ranks to those of the model. Inside formats/deepspeed only.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "formats/deepspeed/states.h"
#include "libshard/catalog/catalog.h"

namespace shard::deepspeed {

/// The entries that one model-parallel rank has added to a catalog.
struct RankEntries {
  std::vector<Tensor> tensors;   ///< Removed from the catalog; their chunks are still in it.
  std::size_t first_stored = 0;  ///< The index of its first stored tensor. They end at those of the next rank.
};

/// True if the states contain universal_checkpoint_info.
bool holds_rules(const ModelStates& model);

/// Adds the joined tensors of all ranks to `catalog`, by the rules of rank 0's universal_checkpoint_info. A parameter's
/// states follow its rule, and an alias that of its parameter. Buffers count as equal on all ranks (a warning names
/// them). The chunks of `catalog` are rebuilt; data-parallel rank D of model-parallel rank M becomes rank D * ranks +
/// M.
/// \pre the only other tensors in `catalog` are those of the objects' trees, in one chunk each
/// \throws Error kUnsupported  there are no such rules, or JoinRules refuses them; ranks have different names.
/// \throws Error kCorruption   shapes do not fit together (kind shape_mismatch).
void join_model_ranks(Catalog& catalog, const ModelStates& model, const std::vector<RankEntries>& ranks);

}  // namespace shard::deepspeed
