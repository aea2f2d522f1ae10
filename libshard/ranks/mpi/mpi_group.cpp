// libshard_mpi.so: a Group over MPI. Everything is nonblocking and polled. A silent rank is therefore noticed within
// the timeout, and a rank that ended on this host at once. A waiting rank leaves its core to the ranks that copy.
#include <fmt/format.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#define OMPI_SKIP_MPICXX 1
#include <mpi.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <functional>
#include <future>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "libshard/core/error.h"
#include "libshard/ranks/current_wait.h"
#include "libshard/ranks/plugin.h"

namespace shard {

namespace {

// Detects the end of processes on this host. MPI itself waits for a dead process until the launcher ends the others.

/// Identifies a process to those that can see it: `host` is equal if they share a kernel and its process ids.
struct ProcessIdentity {
  std::uint64_t host = 0;
  std::int64_t pid = 0;
};

/// Threads: one.
class PeerWatch {
 public:
  PeerWatch() = default;
  ~PeerWatch();
  PeerWatch(const PeerWatch&) = delete;
  PeerWatch& operator=(const PeerWatch&) = delete;

  /// Starts watching the other processes on this host. `ranks` are all processes of the job, by rank. Processes that
  /// the system does not allow us to watch are skipped.
  void watch(std::span<const ProcessIdentity> ranks, int own_rank);
  /// Waits for `pause`, or until a watched process has ended. \returns its rank
  std::optional<int> wait(std::chrono::nanoseconds pause);

 private:
  std::vector<pollfd> processes_;
  std::vector<int> ranks_;  ///< The ranks of `processes_`.
};

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

using Clock = std::chrono::steady_clock;
constexpr std::size_t kMessage = std::size_t{1} << 30;  // MPI's counts are ints.
constexpr std::chrono::milliseconds kLook{100};         // How often a long wait finds the awaited rank.

void check(int result, const char* doing) {
  if (result == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(result, text, &length);
  throw Error(ErrorCode::kPeer, fmt::format("MPI failed in {}", doing)).because(text);
}

MPI_Comm init_and_dup() {
  int provided = 0;
  check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), "MPI_Init_thread");
  MPI_Comm own = MPI_COMM_NULL;
  check(MPI_Comm_dup(MPI_COMM_WORLD, &own), "MPI_Comm_dup");
  return own;
}

/// Initializes MPI within a timeout. MPI waits forever for absent ranks. This function does not, and abandons the
/// thread that does.
MPI_Comm begin_mpi(std::chrono::milliseconds timeout) {
  std::packaged_task<MPI_Comm()> task(init_and_dup);
  std::future<MPI_Comm> comm = task.get_future();
  std::thread(std::move(task)).detach();
  if (comm.wait_for(timeout) == std::future_status::ready) return comm.get();
  throw Error(ErrorCode::kPeer, fmt::format("cannot form the group: not all ranks connected within {:.1f} s",
                                            std::chrono::duration<double>(timeout).count()));
}

class MpiGroup final : public Group {
 public:
  explicit MpiGroup(const GroupRequest& request) : timeout_(request.timeout) {
    comm_ = begin_mpi(request.timeout);
    MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
    MPI_Comm_rank(comm_, &rank_);
    MPI_Comm_size(comm_, &size_);
    if (rank_ != request.launch.rank || size_ != request.launch.size) {
      throw Error(ErrorCode::kUnsupported, fmt::format("MPI reports rank {} of {}, the launcher rank {} of {}", rank_,
                                                       size_, request.launch.rank, request.launch.size))
          .because("the launcher belongs to a different MPI than the one in this build")
          .suggest(Remedy::kUseBackend, "gloo");
    }
    watch_peers();
  }
  ~MpiGroup() override {
    try {
      barrier();  // Needed because MPI_Finalize waits forever.
    } catch (const Error&) {
      return;  // Requests are pending. Only the end of the process ends them, with its own exit code.
    }
    MPI_Comm_free(&comm_);
    MPI_Finalize();
  }
  MpiGroup(const MpiGroup&) = delete;
  MpiGroup& operator=(const MpiGroup&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string_view backend() const override { return "mpi"; }

  void barrier() override {
    MPI_Request request;
    check(MPI_Ibarrier(comm(), &request), "a barrier");
    wait({&request, 1}, "a barrier");
  }

  void broadcast(std::span<std::byte> data, int root) override {
    for (std::size_t done = 0; done < data.size(); done += kMessage) {
      const std::size_t count = std::min(kMessage, data.size() - done);
      MPI_Request request;
      check(MPI_Ibcast(data.data() + done, static_cast<int>(count), MPI_BYTE, root, comm(), &request), "a broadcast");
      wait({&request, 1}, "a broadcast");
    }
  }

  void all_gather(std::span<const std::byte> own, std::span<std::byte> all) override {
    if (all.size() > kMessage) return all_gather_large(own, all);
    const int count = static_cast<int>(own.size());
    MPI_Request request;
    check(MPI_Iallgather(own.data(), count, MPI_BYTE, all.data(), count, MPI_BYTE, comm(), &request), "an all-gather");
    wait({&request, 1}, "an all-gather");
  }

  void exchange(std::span<const std::span<const std::byte>> to, std::span<const std::span<std::byte>> from) override {
    std::vector<MPI_Request> requests;
    std::vector<int> senders;  // The senders of the first requests.
    for (int i = 0; i < size_; ++i) {
      const int sender = (rank_ + size_ - i) % size_;
      const std::span<std::byte> piece = from[static_cast<std::size_t>(sender)];
      for_each_message(piece, [&](std::span<std::byte> message, int tag) {
        check(MPI_Irecv(message.data(), static_cast<int>(message.size()), MPI_BYTE, sender, tag, comm(),
                        &requests.emplace_back()),
              "an exchange");
        senders.push_back(sender);
      });
    }
    for (int i = 0; i < size_; ++i) {
      const int receiver = (rank_ + i) % size_;
      const std::span<const std::byte> piece = to[static_cast<std::size_t>(receiver)];
      for_each_message(piece, [&](std::span<const std::byte> message, int tag) {
        check(MPI_Isend(message.data(), static_cast<int>(message.size()), MPI_BYTE, receiver, tag, comm(),
                        &requests.emplace_back()),
              "an exchange");
      });
    }
    wait(requests, "an exchange", senders);
  }

  std::optional<Wait> waits_for() const override { return present_wait_.get(); }
  void set_timeout(std::chrono::milliseconds timeout) override {
    timeout_since_ = Clock::now();
    timeout_ = timeout;
  }
  /// The others notice it when this process ends.
  void abort() noexcept override { broken_ = true; }

 private:
  template <class Span, class Each>
  static void for_each_message(Span piece, const Each& each) {
    int tag = 0;
    for (std::size_t done = 0; done < piece.size(); done += kMessage) {
      each(piece.subspan(done, std::min(kMessage, piece.size() - done)), tag++);
    }
  }

  void all_gather_large(std::span<const std::byte> own, std::span<std::byte> all) {
    const auto ranks = static_cast<std::size_t>(size_);
    const std::vector<std::span<const std::byte>> to(ranks, own);
    std::vector<std::span<std::byte>> from(ranks);
    for (std::size_t i = 0; i < ranks; ++i) from[i] = all.subspan(i * own.size(), own.size());
    exchange(to, from);
  }

  /// \throws Error kPeer  requests of a failed operation may be pending, in buffers that no longer exist, so MPI must
  ///   not be called any more.
  MPI_Comm comm() const {
    if (broken_) throw Error(ErrorCode::kPeer, "cannot communicate: a rank died or stopped responding earlier");
    return comm_;
  }

  void watch_peers() { peers_.watch(all_gather_values(*this, own_identity()), rank_); }

  bool is_done(std::span<MPI_Request> requests, const char* doing) {
    int done = 0;
    const int result = MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE);
    check_pending(result, doing);
    return done != 0;
  }

  /// Checks a call while requests are pending. \throws Error kPeer  it failed; the group is then broken
  void check_pending(int result, const char* doing) {
    if (result != MPI_SUCCESS) broken_ = true;
    check(result, doing);
  }

  [[noreturn]] void break_up(const std::string& why, const char* doing) {
    broken_ = true;
    throw Error(ErrorCode::kPeer, fmt::format("{}, in {}", why, doing));
  }

  /// Finds the first of these requests that is still waiting, and records its sender.
  void note_missing(std::span<MPI_Request> requests, std::span<const int> senders, Clock::time_point begin) {
    for (std::size_t i = 0; i < senders.size(); ++i) {
      int done = 0;
      check_pending(MPI_Request_get_status(requests[i], &done, MPI_STATUS_IGNORE), "an exchange");
      if (done == 0) return present_wait_.set(senders[i], begin);
    }
    present_wait_.clear();
  }

  void wait(std::span<MPI_Request> requests, const char* doing, std::span<const int> senders = {}) {
    wait_until_done(requests, doing, senders);
    present_wait_.clear();
  }

  void wait_until_done(std::span<MPI_Request> requests, const char* doing, std::span<const int> senders) {
    const Clock::time_point begin = Clock::now();
    Clock::time_point next_look = begin + kLook;
    for (std::chrono::microseconds pause{0}; !is_done(requests, doing);) {
      const Clock::time_point now = Clock::now();
      const std::chrono::milliseconds timeout = timeout_;
      if (now - std::max(begin, timeout_since_.load()) > timeout) {
        break_up(fmt::format("a rank sent nothing for {:.1f} s", std::chrono::duration<double>(timeout).count()),
                 doing);
      }
      if (now - begin < std::chrono::microseconds(100)) continue;  // Most messages have arrived by then.
      const std::optional<int> ended = peers_.wait(pause);
      if (ended && !is_done(requests, doing)) break_up(fmt::format("rank {} has ended", *ended), doing);
      pause = std::min(pause + std::chrono::microseconds(10), std::chrono::microseconds(500));
      if (now < next_look) continue;
      note_missing(requests, senders, begin);
      next_look = now + kLook;
    }
  }

  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 1;
  PeerWatch peers_;
  CurrentWait present_wait_;
  std::atomic<std::chrono::milliseconds> timeout_;
  std::atomic<Clock::time_point> timeout_since_{Clock::time_point::min()};
  std::atomic<bool> broken_{false};
};

}  // namespace

}  // namespace shard

extern "C" bool shard_make_group_2(shard::ConstBytes request, shard::CGroup* made, const shard::ErrorSink* errors) {
  return shard::make_c_group(request, made, errors,
                             [](const shard::GroupRequest& wish) { return std::make_unique<shard::MpiGroup>(wish); });
}
