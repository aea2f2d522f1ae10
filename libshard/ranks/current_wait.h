/// \file
/// CurrentWait: the rank that a group's operation waits for, kept for Group::waits_for.
#pragma once

#include <mutex>
#include <optional>

#include "libshard/ranks/group.h"

namespace shard {

/// Threads: any.
class CurrentWait {
 public:
  /// Records that the operation has waited for `rank` since `since`.
  void set(int rank, std::chrono::steady_clock::time_point since) {
    const std::scoped_lock lock(mutex_);
    rank_ = rank;
    since_ = since;
  }
  /// Records that the operation has ended.
  void clear() { set(-1, {}); }
  /// The rank and the time waited so far; nothing if no operation waits.
  std::optional<Group::Wait> get() const {
    const std::scoped_lock lock(mutex_);
    if (rank_ < 0) return std::nullopt;
    const auto lasts = std::chrono::steady_clock::now() - since_;
    return Group::Wait{rank_, std::chrono::duration_cast<std::chrono::milliseconds>(lasts)};
  }

 private:
  mutable std::mutex mutex_;
  int rank_ = -1;
  std::chrono::steady_clock::time_point since_;
};

}  // namespace shard
