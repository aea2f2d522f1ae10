/// \file
/// Steps that all ranks of a job do together: all succeed, or all fail with the same Error.
///
/// While a step's work runs on a thread of its own, the ranks tell one another now and then how far they are. So a
/// failure on one rank stops the work of all at once, a rank that is lost or silent is missed within the timeout however
/// long the work takes, and progress can be summed.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <stop_token>
#include <string_view>

#include "libshard/core/error.h"
#include "libshard/ranks/group.h"

namespace shard {

struct CollectiveStepOptions {
  std::stop_token stop{};                    ///< Asks this rank's work to end (a signal); it then fails for all.
  std::function<std::int64_t()> done_bytes{};  ///< How far this rank is; may be empty. Called by another thread.
  std::function<void(std::int64_t)> on_sum{};  ///< Rank 0 only: told the sum over ranks; may be empty.
  /// How long a rank that was told to stop waits for the others, as launchers kill soon after they said so; and all, after
  /// a failure, for work to stop. The same on all ranks.
  std::chrono::milliseconds patience{300};
};

/// Does `work` on every rank and returns when all have done it. `work` is given a token that asks it to stop when
/// another rank failed, and must not use the group. On a group of one it runs on the caller's thread.
/// \throws Error  the cause, with its rank, on all ranks: of several failures the lowest rank's, interruptions last (so
///   what all find the lowest tells, whoever was first, if its work stops in time); kPeer when a rank is lost or silent:
///   then this rank's own failure goes first, if it has one. kInterrupted without a rank when this rank was told to stop
///   and the others did not answer. After a loss the group is aborted.
/// Cost: one all_gather of 16 bytes after 1 ms, then at times that grow with the work's own (a twentieth of it, at most
/// 100 ms); a step thus ends at most 5 % late.
void collective_step(Group& group, const CollectiveStepOptions& options, const std::function<void(std::stop_token)>& work);

/// Makes sure that `text` is the same on all ranks. \throws Error `code`  it is not: `what`, with the first rank that
/// differs from rank 0.
void expect_same(Group& group, std::string_view text, ErrorCode code, std::string_view what);

}  // namespace shard
