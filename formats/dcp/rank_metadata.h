/// \file
/// One metadata out of those that ranks wrote for themselves (torch's use_collectives=False).
///
/// `__R.metadata` says what rank R holds: its shards with their places in the whole, and in full every plain tensor and
/// object of its state dict, for nothing was shared out. Source: state_dict_saver.py, filesystem.py of torch 2.11.
#pragma once

#include <string>
#include <vector>

#include "formats/dcp/metadata.h"
#include "libshard/core/error.h"

namespace shard::dcp {

struct RankMetadata {
  int rank = 0;
  std::string file;  ///< `__R.metadata`
  Metadata metadata;
};

/// Joins them by name: a tensor's chunks are those of all ranks, replicas included; an object is one entry per rank.
/// \pre by rank; views in them outlive the result.
/// \throws Error kCorruption  naming both files: a name with two dtypes, sizes or kinds; a rank whose items lie in the
///   files of another (kind rank_mismatch). Cost: n log n in entries.
Metadata merge_ranks(std::vector<RankMetadata> ranks);

/// Names the files of two ranks whose chunks of one tensor overlap, if that is what `error` is about.
/// Cost: linear in the catalog and squared in that tensor's chunks up to a bound; for a check that has failed.
void name_overlapping_ranks(Error& error, const Catalog& catalog);

}  // namespace shard::dcp
