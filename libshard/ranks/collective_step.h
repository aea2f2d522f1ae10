/// \file
/// Collective steps: all ranks of a job succeed, or all fail with the same Error.
///
/// A step's work runs on a thread of its own while the ranks exchange short status messages. A failure on one rank
/// therefore stops the work of all at once, a lost or silent rank is noticed within the timeout however long the work
/// takes, and progress can be summed.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <stop_token>
#include <string_view>

#include "libshard/core/error.h"
#include "libshard/ranks/group.h"
#include "libshard/ranks/late_ranks.h"
#include "libshard/ranks/step_traffic.h"

namespace shard {

struct CollectiveStepOptions {
  std::stop_token stop{};  ///< Asks this rank's work to end (a signal); the step then fails for all.
  std::function<std::int64_t()> done_bytes{};  ///< This rank's progress; may be empty. Called by another thread.
  std::function<void(std::int64_t)> on_sum{};  ///< Called on rank 0 with the sum over ranks; may be empty.
  /// How long a rank that received a stop signal waits for the others (launchers send SIGKILL soon after SIGTERM), and
  /// how long all wait for work to stop after a failure. The same on all ranks.
  std::chrono::milliseconds patience{300};
  StepTraffic* traffic = nullptr;  ///< What the work sends and asks for; on all ranks or on none.
  LateRanks* awaited = nullptr;    ///< On rank 0, receives which ranks the others are waiting for; may be null.
};

/// Runs `work` on every rank and returns when all have finished. `work` receives a token that asks it to stop when
/// another rank failed, and must not use the group but by the step's traffic. In a group of one it runs on the caller's
/// thread, without traffic.
/// \throws Error  the cause, with its rank, on all ranks: of several failures the lowest rank's, interruptions last
///   (if several ranks fail alike, the lowest reports it, provided its work stops in time); kPeer when a rank is lost
///   or silent, unless this rank has a failure of its own. kInterrupted without a rank when this rank was told to stop
///   and the others did not answer. After a loss the group is aborted.
/// Cost: one all_gather of 32 bytes after 1 ms, then at intervals that grow with the work (a twentieth of its time, at
/// most 100 ms); a step thus ends at most 5 % late. While a traffic has something to move, ranks meet at once, and
/// those that have nothing themselves after 1 ms to 16 ms. With `awaited` on rank 0 they meet through rank 0, in two
/// operations.
void collective_step(Group& group, const CollectiveStepOptions& options,
                     const std::function<void(std::stop_token)>& work);

/// Checks that `text` is the same on all ranks. \throws Error `code`  with message `what` and the first rank that
/// differs from rank 0.
void expect_same(Group& group, std::string_view text, ErrorCode code, std::string_view what);

}  // namespace shard
