/// \file
/// Decides whether a job can resume an earlier, killed run, and records what later runs need to resume this one. Inside
/// libshard/job only.
#pragma once

#include <memory>
#include <string>

#include "libshard/io/output.h"
#include "libshard/job/copy_run.h"
#include "libshard/job/journal.h"
#include "libshard/job/output_places.h"

namespace shard {

/// What a rank found of the run that it resumes; empty where none is to be resumed or none was left.
struct Left {
  std::unique_ptr<LeftOutput> output;  ///< A root's.
  JournalHeads heads;                  ///< Of all ranks, on all.

  bool is_found() const { return !heads.empty(); }
};
/// Collective. \throws Error kPeer
Left find_left(OutputStore& store, Group& group, const CopyJob& job, const OutputPlaces& places);

/// The grid of tiles of the run that is resumed, else that of this one. Both may differ in threads and memory.
PlanGrid grid_of(const Left& left, const PlanGrid& now);

/// \throws Error kInvalidArgument  a tile of `plan`, made for `grid`, does not fit into `memory_bytes`
void check_memory(const CopyJob& job, const Plan& plan, const PlanGrid& grid, std::int64_t memory_bytes);

bool keeps_journal(const CopyJob& job, const Plan& plan);

/// \param files  what is written, for people; `inputs` is a hash over what all ranks' plans are made from.
/// Cost: linear in pieces, and identify_files'.
JournalHead make_head(const PreparedCopy& prepared, const std::string& files, const std::string& inputs,
                      const CopyJob& job, const Group& group, const PlanGrid& grid);

/// \throws Error kInvalidArgument  this rank's job is not the one that was interrupted
void check_resumed(const Left& left, const PreparedCopy& prepared, const CopyJob& job, int rank);

}  // namespace shard
