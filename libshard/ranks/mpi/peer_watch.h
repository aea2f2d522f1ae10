/// \file
/// Sees the processes of this host end. MPI itself waits for the dead until the launcher ends those that wait.
/// Inside libshard/ranks/mpi only.
#pragma once

#include <poll.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace shard {

/// A process, for those who can see it: `host` is the same for processes that share a kernel and its process ids.
struct ProcessIdentity {
  std::uint64_t host = 0;
  std::int64_t pid = 0;
};
ProcessIdentity own_identity();

/// Threads: one.
class PeerWatch {
 public:
  PeerWatch() = default;
  ~PeerWatch();
  PeerWatch(const PeerWatch&) = delete;
  PeerWatch& operator=(const PeerWatch&) = delete;

  /// From now on the others on this host are watched; `ranks` are all of the job, by rank. What the system does not let
  /// us watch is not.
  void watch(std::span<const ProcessIdentity> ranks, int own_rank);
  /// Waits for `pause`, or until a watched process has ended. \returns its rank
  std::optional<int> wait(std::chrono::nanoseconds pause);

 private:
  std::vector<pollfd> processes_;
  std::vector<int> ranks_;  ///< The ranks of `processes_`.
};

}  // namespace shard
