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
  std::stop_token stop{};  ///< Requests that this rank's work ends (a signal). The step then fails for all ranks.
  std::function<std::int64_t()> done_bytes{};  ///< This rank's progress; may be empty. Called by another thread.
  std::function<void(std::int64_t)> on_sum{};  ///< Called on rank 0 with the sum over ranks; may be empty.
  /// The time that a rank with a stop signal waits for the others (launchers send SIGKILL soon after SIGTERM), and that
  /// all wait for work to stop after a failure. Equal on all ranks.
  std::chrono::milliseconds patience{300};
  StepTraffic* traffic = nullptr;  ///< Data that the work sends and requests. Set on all ranks or on none.
  LateRanks* awaited = nullptr;    ///< On rank 0, receives which ranks the others are waiting for; may be null.
};

/// Runs `work` on every rank and returns when all have finished. `work` receives a token that requests a stop if a
/// different rank failed. It must not use the group except through the step's traffic. In a group of one, it runs on
/// the caller's thread, without traffic.
/// \throws Error  the cause, with its rank, on all ranks. Of several failures, it is the lowest rank's, and
///   interruptions come last (if several ranks fail in the same way, the lowest one reports it, provided its work stops
///   in time). kPeer if a rank is lost or silent, unless this rank has its own failure. kInterrupted without a rank if
///   this rank was stopped and the others did not answer. After a loss, the group is aborted.
/// Cost: one all_gather of 32 bytes after 1 ms, then at intervals that grow with the work (a twentieth of its time, at
/// most 100 ms), so a step ends at most 5 % late. While a traffic has data to transfer, exchanges follow at once; ranks
/// without data join after 1 ms to 16 ms. With `awaited` on rank 0, exchanges go through rank 0, in two operations.
void collective_step(Group& group, const CollectiveStepOptions& options,
                     const std::function<void(std::stop_token)>& work);

/// Checks that `text` is the same on all ranks. \throws Error `code`  with message `what` and the first rank that
/// differs from rank 0.
void expect_same(Group& group, std::string_view text, ErrorCode code, std::string_view what);

}  // namespace shard
