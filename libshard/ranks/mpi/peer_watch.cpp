#include "libshard/ranks/mpi/peer_watch.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <functional>
#include <string>

namespace shard {

ProcessIdentity own_identity() {
  std::string host;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), host);
  std::array<char, 64> space{};
  const ssize_t length = readlink("/proc/self/ns/pid", space.data(), space.size());
  if (host.empty() || length <= 0) return {};
  host.append(space.data(), static_cast<std::size_t>(length));
  return {std::hash<std::string>{}(host), getpid()};
}

PeerWatch::~PeerWatch() {
  for (const pollfd& process : processes_) close(process.fd);
}

void PeerWatch::watch(std::span<const ProcessIdentity> ranks, int own_rank) {
  const ProcessIdentity own = ranks[static_cast<std::size_t>(own_rank)];
  for (int rank = 0; rank < static_cast<int>(ranks.size()); ++rank) {
    const ProcessIdentity& peer = ranks[static_cast<std::size_t>(rank)];
    if (rank == own_rank || peer.pid == 0 || peer.host != own.host) continue;
    const int process = static_cast<int>(syscall(SYS_pidfd_open, static_cast<pid_t>(peer.pid), 0U));
    if (process < 0) continue;
    processes_.push_back({process, POLLIN, 0});
    ranks_.push_back(rank);
  }
}

std::optional<int> PeerWatch::wait(std::chrono::nanoseconds pause) {
  const timespec time{pause.count() / 1'000'000'000, pause.count() % 1'000'000'000};
  if (ppoll(processes_.data(), processes_.size(), &time, nullptr) <= 0) return std::nullopt;
  for (std::size_t i = 0; i < processes_.size(); ++i) {
    if (processes_[i].revents != 0) return ranks_[i];
  }
  return std::nullopt;
}

}  // namespace shard
