/// \file
/// StepTraffic: what the ranks of a collective step send one another while its work goes on.
///
/// The work's threads and the thread that calls the group never wait for each other inside the group: the work leaves
/// what it has to send, or to ask for, in the traffic, and the ranks move it when they meet (collective_step.h). At
/// each exchange, every rank sends one word and sees all words, so all ranks decide identically what to transfer.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <span>

#include "libshard/core/error.h"
#include "libshard/ranks/group.h"

namespace shard {

/// What a traffic may ask of the step that it belongs to. Threads: any.
class StepHandle {
 public:
  virtual ~StepHandle() = default;
  virtual void wake() = 0;  ///< Ends this rank's wait for the next meeting.
  /// Fails the step with this cause, once the work has stopped.
  virtual void fail(std::exception_ptr cause) = 0;
};

/// One of a step at a time. Every rank of the step has one, of the same kind.
class StepTraffic {
 public:
  virtual ~StepTraffic() = default;
  /// The step begins. `step` lives until `end`.
  virtual void begin(StepHandle& step) = 0;
  virtual void end() = 0;
  /// Stops the work: threads waiting on the traffic fail with Error kInterrupted. Threads: any.
  virtual void stop() = 0;

  /// This rank's word for the next meeting; above 0: the meeting should follow at once. Called by the group's thread.
  virtual std::int64_t word() = 0;
  /// Moves what the words of all ranks say, if anything. Called on all ranks with the same words, by the group's
  /// thread. \returns whether something was moved. \throws Error kPeer  what the group throws
  virtual bool move(Group& group, std::span<const std::int64_t> words) = 0;
  /// Whether this rank's work is blocked on other ranks. Threads: any.
  virtual bool waits() const { return false; }
  /// Names the rank that a failure of this rank's work belongs to, where that is another one.
  virtual void attribute(Error& /*failure*/) const {}
};

/// A traffic that the work's threads wait for, under its mutex: what it knows of its step.
class AwaitedTraffic : public StepTraffic {
 public:
  void begin(StepHandle& step) final;
  void end() override;
  void stop() final;

 protected:
  mutable std::mutex mutex_;  ///< Guards all below.
  mutable std::condition_variable changed_;
  StepHandle* step_ = nullptr;  ///< Null: no step goes on.
  bool is_stopped_ = false;
};

}  // namespace shard
