/// \file
/// Saving in the background while the program continues to train.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "shardtorch/checkpoint/checkpoint.h"

namespace shard::checkpoint {

/// A handle to a running save, like a future. Every rank has one. Movable. Threads: any thread may call any member at
/// any time, except move and destruction.
class AsyncSave {
 public:
  AsyncSave(AsyncSave&&) noexcept;
  AsyncSave& operator=(AsyncSave&&) noexcept;
  /// Waits for the end, as std::async's future does. It neither cancels nor throws, so an error is lost. To end early,
  /// call `cancel` first.
  ~AsyncSave();

  bool is_done() const { return wait_for(std::chrono::milliseconds(0)); }
  /// Whether the save ended within that time, with or without an error.
  bool wait_for(std::chrono::milliseconds time) const;
  /// Returns when the checkpoint is complete. May be called again. \throws Error  as save(), the same on all ranks.
  void wait() const;
  /// Requests the end. `wait` then throws kInterrupted on all ranks, and the path is unchanged, unless the commit had
  /// already started. Returns at once. A call on one rank is enough.
  void cancel() noexcept;

 private:
  friend AsyncSave async_save(const StateDict& state, const std::string& path, ProcessGroupPtr group,
                              const SaveOptions& options);
  class Task;
  explicit AsyncSave(std::unique_ptr<Task> task);
  std::unique_ptr<Task> task_;
};

/// Saves as `save` does, but returns once this rank's part is copied into host memory (pinned if it comes from GPUs).
/// The state may change from then on. A separate thread of low priority (nice +15) does the rest, over a new group of
/// the ranks of `group` (new_group), so that `group` is free meanwhile. A collective.
/// \pre `group` is the default group or one from new_group; `options.disk` outlives the save
/// \throws Error  as save(), the same on all ranks: an error in the request or the state; kExists  the destination
///   exists and not `force`; kResource  its parent folder does not exist, or no memory. `wait` throws later errors.
///   c10::ValueError  there is no default group, or this process is not a member.
/// Memory: a copy of this rank's part, until the handle is destroyed.
[[nodiscard]] AsyncSave async_save(const StateDict& state, const std::string& path, ProcessGroupPtr group = nullptr,
                                   const SaveOptions& options = {});

}  // namespace shard::checkpoint
