/// \file
/// Saving in the background, while the program trains on.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "shardtorch/checkpoint/checkpoint.h"

namespace shard::checkpoint {

/// A save that goes on: a handle like a future. Every rank has one. Movable.
/// Threads: all members at any time from any thread, but for move and destruction.
class AsyncSave {
 public:
  AsyncSave(AsyncSave&&) noexcept;
  AsyncSave& operator=(AsyncSave&&) noexcept;
  /// Waits for the end, as std::async's future does; it neither cancels nor throws: what went wrong is lost with it.
  /// A program that leaves early calls `cancel` first.
  ~AsyncSave();

  bool is_done() const { return wait_for(std::chrono::milliseconds(0)); }
  /// Whether it ended in that time, well or not.
  bool wait_for(std::chrono::milliseconds time) const;
  /// Returns when the checkpoint is there. May be called again. \throws Error  save()'s, the same on all ranks.
  void wait() const;
  /// Asks for the end: all ranks' `wait` then throw kInterrupted and nothing is at the path, unless the commit had
  /// begun before. Returns at once. One rank's call is enough.
  void cancel() noexcept;

 private:
  friend AsyncSave async_save(const StateDict& state, const std::string& path, ProcessGroupPtr group,
                              const SaveOptions& options);
  class Task;
  explicit AsyncSave(std::unique_ptr<Task> task);
  std::unique_ptr<Task> task_;
};

/// Saves as `save` does, but returns once what this rank writes is copied into host memory (pinned where it comes from
/// GPUs); the state may change from then on. The rest is done by a thread of its own, over a new group of the ranks of
/// `group` (new_group), so that `group` is free meanwhile. A collective.
/// \pre `group` is the default group or made by new_group; `options.disk` outlives the save
/// \throws Error  as save(), the same on all ranks: an error in the request or the state; kExists  the destination
///   exists and not `force`; kResource  the folder above it does not exist, or no memory. `wait` throws later errors.
///   c10::ValueError  there is no default group.
/// Memory: a copy of what this rank writes, until the handle is destroyed.
[[nodiscard]] AsyncSave async_save(const StateDict& state, const std::string& path, ProcessGroupPtr group = nullptr,
                                   const SaveOptions& options = {});

}  // namespace shard::checkpoint
