/// \file
/// From the states of all ranks to the tensors and objects of one catalog. Inside formats/deepspeed only.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/deepspeed/states.h"
#include "libshard/core/hash_table.h"

namespace shard::deepspeed {

/// Fills `catalog` with parameters under their names, buffers and frozen parameters as the module holds them, shared
/// ones under each name, states as optimizer.state.NAME.STATE, and objects: what the model states hold besides, and
/// under "optimizer" what rank 0's optimizer states do. Numbers that a state holds for a whole group (its step) are
/// objects there.
/// `from_module`: parameters are the module's copies instead of the masters.
/// \throws Error kCorruption   contradictions: names in two places, lengths (see lay_out), elements in no file, files
///   of different saves; kUnsupported  copies that the module of stage 3 does not have.
/// `saves` are those of the model-parallel ranks, in order; of several, tensors are joined (see join.h) and objects are
/// rank 0's.
void merge(Catalog& catalog, torch_save::SavedFiles& files, std::span<const Save> saves, bool from_module);

/// What the catalog calls a state of a parameter; without a name of the state the parameter itself.
std::string name_of_state(std::string_view param, std::string_view state);

/// Parameters, states and frozen parts by their names in the catalog: kTensor values under the catalog's root, whose
/// numbers are right once the catalog is validated.
using FlatTensors = HashMap<std::string_view, const Value*>;

/// Fills `catalog` with all that the files of model-parallel ranks hold, for who writes them again: what data-parallel
/// ranks have parts of, under the names that `merge` gives it, led by "mp_rank_M." of rank 1 and on; and all of the
/// trees of the model's states and of data-parallel rank 0's optimizer, of which tensors are kTensor values then.
/// \returns the former of each model-parallel rank; if `is_joined` one, of the tensors that all ranks' make (see
/// join.h). \throws Error  as merge.
std::vector<FlatTensors> merge_whole(Catalog& catalog, torch_save::SavedFiles& files, std::span<const Save> saves,
                                     bool is_joined);

}  // namespace shard::deepspeed
