/// \file LateRanks: the ranks for which the others wait, for the progress display.
#pragma once

#include <chrono>
#include <mutex>
#include <optional>
#include <vector>

namespace shard {

/// Threads: any.
class LateRanks {
 public:
  /// Records one exchange of all ranks. `waits[i]`: rank i cannot continue until others have acted. If at least half of
  /// all ranks wait, the others are awaited.
  void see(const std::vector<bool>& waits);
  /// Records that no rank waits any longer.
  void clear();
  /// The ranks that were awaited at every exchange for at least this time, in rising order.
  std::vector<int> for_at_least(std::chrono::milliseconds time) const;

 private:
  using Clock = std::chrono::steady_clock;
  mutable std::mutex mutex_;
  std::vector<std::optional<Clock::time_point>> since_;  ///< By rank. Nothing: the rank is not awaited.
};

}  // namespace shard
