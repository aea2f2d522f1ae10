/// \file
/// The ranks of this job for the verbs: how they connect, and work that only one of them does.
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

/// The launcher of this process, from the options and the environment. \throws Error kInvalidArgument
Launch launch_of(const Session& session, const RunRequest& run);
/// How long a rank may take to respond.
std::chrono::milliseconds timeout_of(const RunRequest& run);

/// The group of the job's processes, or null if this process is alone.
/// \throws Error kPeer, kUnsupported, kInvalidArgument
std::unique_ptr<Group> join_group(const RunRequest& run, const Launch& launch);

/// Checks that all ranks run the same version with the same command line, and with the same options from the
/// environment and configuration files, except those that concern one process.
/// \throws Error kPeer  a version differs; kInvalidArgument  an option differs; both name the rank.
void check_same_job(Group& group, const TypedCommand& command);

/// Informs the session's observer that this rank begins the step.
void begin_step(const Session& session, std::string_view step);
/// Runs `work`, the job's step of that name, on all ranks of the session's group; see collective_step().
void on_all_ranks(const Session& session, std::string_view step, const std::function<void()>& work);
/// Runs long work in the same way. `work` receives the token that stops it. On rank 0, `others` becomes the sum of the
/// other ranks' `own` bytes, and `awaited` (may be null) receives the ranks that the others wait for.
void on_all_ranks(const Session& session, const std::atomic<std::int64_t>& own, std::atomic<std::int64_t>& others,
                  LateRanks* awaited, const std::function<void(const std::stop_token&)>& work);
/// Runs `work` on rank 0 while the others wait. \returns rank 0's result, on all ranks.
int on_rank_zero(const Session& session, const std::function<int()>& work);

/// Opens the logs of all ranks and returns this rank's. Collective. \throws Error kResource
std::unique_ptr<Log> open_log(const Session& session);
/// Checks the source after all of it was read. Collective. \throws Error kCorruption  one of its files changed
/// meanwhile
void expect_unchanged_source(const Session& session);

bool is_rank_zero(const Session& session);

/// Options for a pass over tensors: this rank's threads and memory. \throws Error kInvalidArgument  --max-memory
PassOptions pass_options(const Session& session);

/// Writes torchrun's error file. Ignores a failure to do so.
void write_error_file(LocalDisk& fs, const std::string& path, const std::string& message);

}  // namespace shard::app
