/// \file
/// Rebuilds the metadata of a dcp checkpoint from its `.distcp` files and the metadata of another save of the same job.
///
/// An item records its dtype, the sizes of its box and its bytes, but no name. Names, whole shapes and offsets
/// therefore come from the other save. A writer puts items into a file in the order of its plan, which is the same for
/// every save of a job. So the first item found is the first item of the other save's file, and so on, as long as no
/// bytes are between them and each has the expected dtype and sizes. If bytes between two items are damaged, pairing
/// continues only if the missing items of the other save have exactly that many bytes. Nothing else is assumed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "formats/dcp/metadata.h"
#include "formats/format.h"
#include "libshard/core/error.h"
#include "libshard/core/findings.h"

namespace shard::dcp {

// Merges the metadata that ranks wrote for themselves (torch's use_collectives=False) into one.
//
// `__R.metadata` lists rank R's shards with their offsets in the whole tensor. It also lists every plain tensor and
// object of the rank's state dict, because replicas were not divided between ranks. Source: state_dict_saver.py,
// filesystem.py of torch 2.11.

struct RankMetadata {
  int rank = 0;
  std::string file;  ///< `__R.metadata`
  Metadata metadata;
};

/// Merges by name: a tensor has the chunks of all ranks, replicas included; an object becomes one entry per rank.
/// \pre `ranks` is sorted by rank; the data behind its views outlives the result.
/// \throws Error kCorruption  with the names of both files: a name has two dtypes, sizes or kinds; the items of a rank
///   are in the files of a different rank (kind rank_mismatch). Cost: n log n in entries.
Metadata merge_ranks(std::vector<RankMetadata> ranks);

/// Adds to `error` the files of two ranks whose chunks of one tensor overlap, if `error` is about an overlap. Cost:
/// linear in the catalog, and quadratic in that tensor's chunks up to a limit; only after a failed check.
void name_overlapping_ranks(Error& error, const Catalog& catalog);

struct RebuildFrom {
  const SourceStore& store;
  const std::string& folder;
  const Source* like;  ///< The other save's dcp folder; null if there is none.
  MetadataOptions options;
};

/// Rebuilds the metadata. Its items that were not found are listed in `lost_items`. Items that were found but cannot be
/// named are losses.
/// \param why  the problem of the existing metadata; empty if there is none.
/// \throws Error kCorruption  there is no other save, or it is not a save of the same job: none of its files has the
///   items' dtypes and sizes. Other errors: as parse_metadata.
/// Cost: every byte of the files is read twice.
Metadata rebuild_metadata(const RebuildFrom& from, const std::string& why, Arena& arena, Findings& findings,
                          std::vector<std::uint32_t>& lost_items);

/// For repair: shortens items that extend past the end of their files. Items without any bytes are losses, like
/// `lost_items`.
/// \pre the files of `catalog` are those of the folder
void clip_items(Metadata& metadata, const std::vector<std::uint32_t>& lost_items, const Catalog& catalog,
                Findings& findings);

}  // namespace shard::dcp
