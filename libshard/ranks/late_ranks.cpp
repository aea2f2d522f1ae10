#include "libshard/ranks/late_ranks.h"

#include <algorithm>

namespace shard {

void LateRanks::see(const std::vector<bool>& waits) {
  const Clock::time_point now = Clock::now();
  const bool most_wait = 2 * std::ranges::count(waits, true) >= std::ssize(waits);
  const std::scoped_lock lock(mutex_);
  since_.resize(waits.size());
  for (std::size_t rank = 0; rank < waits.size(); ++rank) {
    if (!most_wait || waits[rank]) {
      since_[rank].reset();
    } else if (!since_[rank]) {
      since_[rank] = now;
    }
  }
}

void LateRanks::clear() {
  const std::scoped_lock lock(mutex_);
  since_.clear();
}

std::vector<int> LateRanks::for_at_least(std::chrono::milliseconds time) const {
  const Clock::time_point latest = Clock::now() - time;
  const std::scoped_lock lock(mutex_);
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < since_.size(); ++rank) {
    if (since_[rank] && *since_[rank] <= latest) ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

}  // namespace shard
