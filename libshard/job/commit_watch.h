/// \file
/// CommitWatch: who has committed so far, while each rank commits an output of its own. Inside libshard/job only.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "libshard/core/error.h"
#include "libshard/ranks/step_traffic.h"

namespace shard {

class CommitWatch final : public StepTraffic {
 public:
  explicit CommitWatch(int ranks) : has_committed_(static_cast<std::size_t>(ranks)) {}
  /// This rank has. Threads: any.
  void set_committed() { is_own_ = true; }
  /// What to say when a rank was lost: where the output stands, as far as `rank` knows.
  Error lost(int rank) const;

  void begin(StepHandle&) override {}
  void end() override {}
  void stop() override {}
  std::int64_t word() override { return is_own_ ? kCommitted : 0; }
  bool move(Group& group, std::span<const std::int64_t> words) override;

 private:
  static constexpr std::int64_t kCommitted = -1;  ///< Not above 0: nothing is to be moved.

  std::atomic<bool> is_own_{false};
  std::vector<bool> has_committed_;  ///< By rank, as of the last meeting.
};

}  // namespace shard
