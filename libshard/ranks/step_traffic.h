/// \file StepTraffic: the data that the ranks of a collective step send one another while its work continues.
///
/// The work's threads and the thread that calls the group never wait for each other inside the group. The work stores
/// the data that it sends or requests in the traffic, and the ranks transfer it at their exchanges (collective_step.h).
/// At each exchange, every rank sends one word and sees all words, so all ranks decide identically what to transfer.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <span>

#include "libshard/core/error.h"
#include "libshard/ranks/group.h"

namespace shard {

/// The functions of a step that its traffic may call. Threads: any.
class StepHandle {
 public:
  virtual ~StepHandle() = default;
  virtual void wake() = 0;  ///< Ends this rank's wait for the next exchange.
  /// Fails the step with this cause, once the work has stopped.
  virtual void fail(std::exception_ptr cause) = 0;
};

/// A traffic belongs to one step at a time. Every rank of the step has one, of the same kind.
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

}  // namespace shard
