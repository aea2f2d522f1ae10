/// \file
/// Where every parameter lies in the flat buffers of a save's ranks, checked against the buffers' lengths.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "formats/deepspeed/states.h"
#include "libshard/catalog/flat_buffer.h"

namespace shard::deepspeed {

struct FlatParam {
  std::string_view name;
  Dims shape;
  std::size_t group = 0;
  std::vector<FlatPiece> pieces;  ///< By part: a rank, which is an index of the save's optimizer states.
};

struct FlatParams {
  std::vector<FlatParam> params;         ///< In order.
  std::vector<std::int64_t> alignments;  ///< Of each group, see FlatRule::zero12; none in stage 3.
};

/// The elements of each parameter. \throws Error kCorruption  a number past 63 bits.
std::vector<std::int64_t> numels_of(const ParamGroup& params);

/// The parameters of `groups`, in order.
///
/// Stages 1 and 2 cut each group into equal slices, of which the last ones' padding is saved or left out; slices were
/// aligned to one element until DeepSpeed 0.5.2, since then to two. Stage 3 cuts each parameter. A buffer of a state
/// may have the length with or without padding, whatever the masters have.
///
/// \pre `ranks` are those of one model-parallel rank, 0, 1, ... without gaps, of one stage
/// \throws Error kCorruption   a buffer has another length (kind shape_mismatch), naming file, expected and found;
/// sizes
///   overflow.
/// \throws Error kUnsupported  buffers that are empty since their elements were offloaded.
FlatParams lay_out(Catalog& catalog, const std::vector<ParamGroup>& groups, const std::vector<OptimizerStates>& ranks);

}  // namespace shard::deepspeed
