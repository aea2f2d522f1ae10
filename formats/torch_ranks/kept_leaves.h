/// \file
/// What is kept of a rank's file once its tree is read. Inside formats/torch_ranks only.
#pragma once

#include "formats/torch_ranks/rank_file.h"
#include "libshard/core/arena.h"

namespace shard::torch_ranks {

/// Copies all that the file's leaves refer to into `to`, so that the arena of its tree can end: each rank's tree names
/// the shards of all ranks. Lists of shards that are those of the same leaf of `like` are shared with it.
/// \returns false, and leaves the file as it is, where the tree is needed (that of rank 0) or is small (without
///   ShardedTensors). Cost: linear in the leaves and their shards.
bool keep_without_tree(RankFile& file, const RankFile* like, Arena& to);

}  // namespace shard::torch_ranks
