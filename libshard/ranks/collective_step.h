/// \file
/// Collective steps: all ranks of a job succeed, or all fail with the same Error.
///
/// A step's work runs on a separate thread while the ranks exchange short status messages. A failure on one rank
/// therefore stops the work of all at once, a rank that died or does not respond is noticed within the timeout however
/// long the work takes, and progress can be summed.
///
/// The work's threads and the thread that calls the group never wait for each other inside the group. The work stores
/// the data that it sends or requests in the step's traffic, and the ranks transfer it at their exchanges. At each
/// exchange, every rank sends one word and sees all words, so all ranks decide identically what to transfer.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <span>
#include <stop_token>
#include <string_view>

#include "libshard/core/error.h"
#include "libshard/ranks/group.h"
#include "libshard/ranks/late_ranks.h"

namespace shard {

/// The functions of a step that its traffic may call. Threads: any.
class StepHandle {
 public:
  virtual ~StepHandle() = default;
  virtual void wake() = 0;  ///< Ends this rank's wait for the next exchange.
  /// Fails the step with this cause, once the work has stopped.
  virtual void fail(std::exception_ptr cause) = 0;
};

/// The data that the ranks of a step send one another while its work continues. A traffic belongs to one step at a
/// time. Every rank of the step has one, of the same kind.
class StepTraffic {
 public:
  virtual ~StepTraffic() = default;
  /// Called when the step begins. `step` is valid until `end`.
  virtual void begin(StepHandle& step) = 0;
  virtual void end() = 0;
  /// Stops the work: threads waiting on the traffic fail with Error kInterrupted. Threads: any.
  virtual void stop() = 0;

  /// This rank's word for the next exchange. If it is above 0, the exchange should follow at once. Called by the
  /// group's thread.
  virtual std::int64_t word() = 0;
  /// Transfers the data that the words of all ranks announce, if any. Called on all ranks with the same words, by the
  /// group's thread. \returns whether something was transferred. \throws Error kPeer  from the group
  virtual bool move(Group& group, std::span<const std::int64_t> words) = 0;
  /// Whether this rank's work is blocked on other ranks. Threads: any.
  virtual bool waits() const { return false; }
  /// Names the rank that caused a failure of this rank's work, if that is a different one.
  virtual void attribute(Error& /*failure*/) const {}
};

/// A traffic for which the work's threads wait, with its mutex and its current step.
class AwaitedTraffic : public StepTraffic {
 public:
  void begin(StepHandle& step) final;
  void end() override;
  void stop() final;

 protected:
  mutable std::mutex mutex_;  ///< Guards everything below.
  mutable std::condition_variable changed_;
  StepHandle* step_ = nullptr;  ///< Null: no step is running.
  bool is_stopped_ = false;
};

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
/// \throws Error  the cause, with its rank, on all ranks. If several ranks fail, it is the lowest rank's, and
///   interruptions come last (if several ranks fail in the same way, the lowest one reports it, provided its work stops
///   in time). kPeer if a rank died or does not respond, unless this rank has its own failure. kInterrupted without a
///   rank if this rank was stopped and the others did not answer. After a loss, the group is aborted.
/// Cost: one all_gather of 32 bytes after 1 ms, then at intervals that grow with the work (a twentieth of its time, at
/// most 100 ms), so a step ends at most 5 % late. While a traffic has data to transfer, exchanges follow at once; ranks
/// without data join after 1 ms to 16 ms. With `awaited` on rank 0, exchanges go through rank 0, in two operations.
void collective_step(Group& group, const CollectiveStepOptions& options,
                     const std::function<void(std::stop_token)>& work);

/// Checks that `text` is the same on all ranks. \throws Error `code`  with message `what` and the first rank that
/// differs from rank 0.
void expect_same(Group& group, std::string_view text, ErrorCode code, std::string_view what);

}  // namespace shard
