/// \file
/// Computes the position of every parameter in the flat buffers of a save's ranks, and checks the buffers' lengths.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "formats/deepspeed/states.h"
#include "libshard/catalog/layouts/flat_buffer.h"

namespace shard::deepspeed {

struct FlatParam {
  std::string_view name;
  Dims shape;
  std::size_t group = 0;
  std::vector<FlatPiece> pieces;  ///< By part. A part is a rank, as an index of the save's optimizer states.
};

struct FlatParams {
  std::vector<FlatParam> params;  ///< In order.
  std::vector<FlatRule> rules;    ///< By group; empty in stage 3.
};

/// The number of elements of each parameter. \throws Error kCorruption  a number exceeds 63 bits.
std::vector<std::int64_t> numels_of(const ParamGroup& params);

/// The layout of the parameters of `groups`, in order.
///
/// Stages 1 and 2 divide each group into equal slices. The padding of the last slices may be saved or omitted. Slices
/// are aligned to two elements, or to one element until DeepSpeed 0.5.2. With parameter_alignment (since 0.19) each
/// parameter also begins at a multiple of 16 bytes. Stage 3 divides each parameter. The buffer of a state may include
/// the padding or not, independently of the master weights.
///
/// With experts in stages 1 and 2, ranks form teams for a group of experts. Each team has different experts, and its
/// ranks share the group. The ranks' names count the experts of their team; those of the result count all.
///
/// \pre the optimizers of `save` are those of one model-parallel rank, 0, 1, ... without gaps, of one stage
/// \throws Error kCorruption   a buffer has a different length (kind shape_mismatch), with file, expected and found;
///   sizes overflow; the files of experts are not those that the ranks would have; param_alignment_paddings are not
///   those of the parameters.
/// \throws Error kUnsupported  buffers are empty because their elements were offloaded; a parameter of a team is not in
///   an expert of DeepSpeed's MoE.
FlatParams lay_out(Catalog& catalog, const std::vector<ParamGroup>& groups, const Save& save);

}  // namespace shard::deepspeed
