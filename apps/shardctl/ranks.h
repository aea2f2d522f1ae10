/// \file
/// The ranks of this job as the verbs see them: how they meet, and what only one of them does.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>

#include "apps/shardctl/log.h"
#include "apps/shardctl/session.h"
#include "libshard/ranks/group.h"
#include "libshard/ranks/launch.h"
#include "libshard/ranks/collective_step.h"

namespace shard::app {

/// Who started this process, by the options and the environment. \throws Error kInvalidArgument
Launch launch_of(const Session& session, const Options& options);

/// The group of the job's processes, or null where this process is alone.
/// \throws Error kPeer, kUnsupported, kInvalidArgument
std::unique_ptr<Group> join_group(const Options& options, const Launch& launch);

/// Makes sure that all ranks run the same version with the same command line.
/// \throws Error kPeer  another version; kInvalidArgument  another command line; naming the rank.
void check_same_job(Group& group, const Options& options);

/// Runs `work`, a job's step of that name, on all ranks of the session's group; see collective_step().
void on_all_ranks(const Session& session, std::string_view step, const std::function<void()>& work);
/// The same for work that takes its time: is given the token to stop by, and `own` bytes are told to rank 0, whose
/// `others` becomes what all others did.
void on_all_ranks(const Session& session, const std::atomic<std::int64_t>& own, std::atomic<std::int64_t>& others,
                  const std::function<void(const std::stop_token&)>& work);
/// Runs `work` on rank 0, while the others wait. \returns rank 0's result, on all ranks.
int on_rank_zero(const Session& session, const std::function<int()>& work);

/// This rank's log, once all ranks have theirs. \throws Error kResource
std::unique_ptr<Log> open_log(const Session& session, const Options& options);

bool is_rank_zero(const Session& session);
/// "rank 1 of 4", for people; empty where this process is alone.
std::string rank_label(const Session& session);

/// The indices [first, second) that this rank handles of tensors of `bytes` each: contiguous, equal by bytes. All ranks
/// call it. \throws Error kInvalidArgument  they see other tensors
std::pair<std::size_t, std::size_t> own_share(const Session& session, std::span<const std::int64_t> bytes);

/// Tells torchrun what went wrong (its error file); failing to do so harms nobody.
void write_error_file(const std::string& path, const std::string& message);

}  // namespace shard::app
