/// \file
/// Merges the states of all ranks into tensors and objects of one catalog. Inside formats/deepspeed only.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/deepspeed/states.h"
#include "libshard/core/hash_table.h"

namespace shard::deepspeed {

/// Fills `catalog`. Parameters have their names. Buffers and frozen parameters are those of the module; shared ones
/// occur under each name. States are named optimizer.state.NAME.STATE. Objects are the rest of the model states and,
/// under "optimizer", the rest of rank 0's optimizer states. Numbers that a state has for a whole group (its step) are
/// objects there. With `from_module`, parameters are the module's copies instead of the master weights. `saves` are
/// those of the model-parallel ranks, in order. If there are several, tensors are joined (see join.h) and objects are
/// rank 0's, except optimizers without ZeRO: those of further ranks are under "optimizer.mp_rank_M", those of experts
/// under "optimizer.expp_rank_R". Each stage of a pipeline has `tensor_ranks` consecutive ranks.
/// \throws Error kCorruption   contradictions: names in two places, lengths (see lay_out), elements in no file, files
///   of different saves; kUnsupported  copies that the module of stage 3 lacks.
void merge(Catalog& catalog, torch_save::SavedFiles& files, std::span<const Save> saves, std::size_t tensor_ranks,
           bool from_module);

/// The catalog's name for a state of a parameter; for the parameter itself if `state` is empty.
std::string name_of_state(std::string_view param, std::string_view state);

/// Parameters, states and frozen parts by their names in the catalog: kTensor values under the catalog's root. Their
/// numbers are valid once the catalog is validated.
using FlatTensors = HashMap<std::string_view, const Value*>;

/// Fills `catalog` with the entire content of the files of model-parallel ranks, for rewriting them. Tensors with parts
/// on several data-parallel ranks get the names that `merge` uses, with the prefix "mp_rank_M." from rank 1 on. The
/// trees of the model's states and of data-parallel rank 0's optimizer are complete, with kTensor values.
/// \returns the tensors with parts on several ranks, one map per model-parallel rank. If `is_joined`, one map of the
///   joined tensors of all ranks (see join.h). \throws Error  as merge.
std::vector<FlatTensors> merge_whole(Catalog& catalog, torch_save::SavedFiles& files, std::span<const Save> saves,
                                     bool is_joined);

}  // namespace shard::deepspeed
