/// \file
/// LateRanks: the ranks that the others wait for, as progress shows them.
#pragma once

#include <chrono>
#include <mutex>
#include <optional>
#include <vector>

namespace shard {

/// Threads: any.
class LateRanks {
 public:
  /// What a meeting of all ranks saw: `waits[i]`, rank i can do nothing until others have done something. The others
  /// are awaited where at least half of all ranks wait.
  void see(const std::vector<bool>& waits);
  /// Nobody waits any more.
  void clear();
  /// The ranks that were awaited at every meeting for at least this time; rising.
  std::vector<int> for_at_least(std::chrono::milliseconds time) const;

 private:
  using Clock = std::chrono::steady_clock;
  mutable std::mutex mutex_;
  std::vector<std::optional<Clock::time_point>> since_;  ///< By rank; nothing: it is not awaited.
};

}  // namespace shard
