/// \file
/// All that the files of one save say, and the load checks: every rank of one save, once.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "formats/megatron/arguments.h"
#include "formats/megatron/rank_states.h"
#include "formats/megatron/save_folder.h"

namespace shard::megatron {

struct Save {
  Arguments arguments;
  std::vector<RankStates> ranks;            ///< In the order of all_ranks.
  std::vector<OptimizerStates> optimizers;  ///< None, or one of each rank.

  std::size_t first_rank(std::int64_t stage) const;
  /// The ranks of a pipeline stage.
  std::span<const RankStates> ranks_of(std::int64_t stage) const;
};

/// Checks by their names that the folders of all ranks are there, and no others.
/// \throws Error kNotFound    a rank's folder is missing (kind missing_file), by name.
/// \throws Error kCorruption  a folder of no rank (kind extra_file); other ranks than expected (world_size_mismatch).
void check_folders(const SaveFolder& folder, const Arguments& arguments, std::optional<std::int64_t> ranks_expected);

/// Checks that the ranks are of one save, and that those of one stage hold equally large parts of the same tensors, of
/// each layer of the stage. \throws Error kCorruption  kinds mixed_save, index_mismatch, shape_mismatch, gap.
void check_save(const Catalog& catalog, const Save& save);

/// The layers of a chunk of a stage. \throws Error kCorruption  they are not spread evenly.
LayerRange layers_of(const Catalog& catalog, const Save& save, std::int64_t stage, std::int64_t chunk);

}  // namespace shard::megatron
