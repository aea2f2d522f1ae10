/// \file
/// Makes the metadata of a dcp checkpoint anew from its `.distcp` files and the metadata of another save of the job.
///
/// An item says its dtype, its box's sizes and its bytes, and no name: so names, whole shapes and offsets come from the
/// other save. A writer puts items into a file in the order of its plan, which is the same for every save of a job:
/// so the first item found is the first item of the other save's file, and so on, as long as nothing lies between
/// them and each has the dtype and sizes that are expected. Where bytes between two items are damaged, the order goes
/// on only where the missing items of the other save have exactly as many bytes. Nothing else is taken for known.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "formats/dcp/metadata.h"
#include "formats/format.h"
#include "libshard/core/error.h"
#include "libshard/core/findings.h"

namespace shard::dcp {

// One metadata from those that ranks wrote for themselves (torch's use_collectives=False).
//
// `__R.metadata` lists rank R's shards with their offsets in the whole tensor, and every plain tensor and object of its
// state dict, because replicas were not divided between ranks. Source: state_dict_saver.py, filesystem.py of
// torch 2.11.

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

struct RebuildFrom {
  const SourceStore& store;
  const std::string& folder;
  const Source* like;  ///< A dcp folder; null: there is none.
  bool opaque_globals;
};

/// The metadata; items of it that were not found are in `lost_items`, and what was found and cannot be named is lost.
/// \param why  what is wrong with the metadata that there is; empty where there is none.
/// \throws Error kCorruption  there is no other save, or it is not one of the same job: no file of it has the items'
///   dtypes and sizes. Others: as parse_metadata.
/// Cost: every byte of the files is read twice.
Metadata rebuild_metadata(const RebuildFrom& from, const std::string& why, Arena& arena, Findings& findings,
                          std::vector<std::uint32_t>& lost_items);

/// For repair: items end where their files end, and those of which nothing is there are lost, as `lost_items` are.
/// \pre the files of `catalog` are those of the folder
void clip_items(Metadata& metadata, const std::vector<std::uint32_t>& lost_items, const Catalog& catalog,
                Findings& findings);

}  // namespace shard::dcp
