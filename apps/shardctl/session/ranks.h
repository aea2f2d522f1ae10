/// \file
/// The ranks of this job as the verbs see them: how they meet, and what only one of them does.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "apps/shardctl/request/request.h"
#include "apps/shardctl/session/log.h"
#include "apps/shardctl/session/session.h"
#include "libshard/compare/pass.h"
#include "libshard/ranks/collective_step.h"
#include "libshard/ranks/group.h"
#include "libshard/ranks/launch.h"

namespace shard::app {

/// Who started this process, by the options and the environment. \throws Error kInvalidArgument
Launch launch_of(const Session& session, const RunRequest& run);
/// How long a rank may be silent.
std::chrono::milliseconds timeout_of(const RunRequest& run);

/// The group of the job's processes, or null where this process is alone.
/// \throws Error kPeer, kUnsupported, kInvalidArgument
std::unique_ptr<Group> join_group(const RunRequest& run, const Launch& launch);

/// Makes sure that all ranks run the same version with the same command line.
/// \throws Error kPeer  another version; kInvalidArgument  another command line; naming the rank.
void check_same_job(Group& group, const std::vector<std::string>& arguments);

/// Tells the session's observer which step this rank begins.
void begin_step(const Session& session, std::string_view step);
/// Runs `work`, a job's step of that name, on all ranks of the session's group; see collective_step().
void on_all_ranks(const Session& session, std::string_view step, const std::function<void()>& work);
/// The same for long work: `work` is given the token to stop by, rank 0's `others` becomes the sum of all other ranks'
/// `own` bytes, and rank 0's `awaited` (may be null) the ranks that the others wait for.
void on_all_ranks(const Session& session, const std::atomic<std::int64_t>& own, std::atomic<std::int64_t>& others,
                  LateRanks* awaited, const std::function<void(const std::stop_token&)>& work);
/// Runs `work` on rank 0, while the others wait. \returns rank 0's result, on all ranks.
int on_rank_zero(const Session& session, const std::function<int()>& work);

/// This rank's log, once all ranks have theirs. \throws Error kResource
std::unique_ptr<Log> open_log(const Session& session);
/// To be called when all of the source was read. Collective. \throws Error kCorruption  a file of it changed meanwhile
void expect_unchanged_source(const Session& session);

bool is_rank_zero(const Session& session);

/// What a pass over tensors may use: this rank's threads and memory. \throws Error kInvalidArgument  --max-memory
PassOptions pass_options(const Session& session);

/// Writes torchrun's error file. A failure to do so is ignored.
void write_error_file(LocalDisk& fs, const std::string& path, const std::string& message);

}  // namespace shard::app
