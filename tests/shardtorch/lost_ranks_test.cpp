// Ranks that do not come to an operation, and connections that end.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "libshard/core/error.h"
#include "shardtorch/c10d/attendance.h"
#include "shardtorch/c10d/c10d_group.h"
#include "shardtorch/c10d/gloo.h"
#include "shardtorch/c10d/without_sigpipe.h"
#include "tests/shardtorch/rank_threads.h"
#include "tests/support/expect_error.h"

namespace shard::test {
namespace {

using namespace std::chrono_literals;

TEST(MissingAfterFailure, IsTheSameOnAllRanksThatReport) {
  const auto store = c10::make_intrusive<c10d::HashStore>(), full = c10::make_intrusive<c10d::HashStore>();
  on_threads(5, [&](int rank) {
    EXPECT_EQ(missing_after_failure(full, rank, 5, 5s), "");
    if (rank == 1 || rank == 3) return;
    EXPECT_EQ(missing_after_failure(store, rank, 5, 200ms), "ranks 1, 3");
  });
  EXPECT_EQ(missing_after_failure(store, 1, 5, 200ms), "ranks 1, 3") << "a rank that is late learns of it";
}

/// A store whose host died.
class DeadStore final : public c10d::HashStore {
 public:
  void set(const std::string&, const std::vector<std::uint8_t>&) override { TORCH_CHECK(false, "connection reset"); }
};

/// A store whose host is stopped.
class StoppedStore final : public c10d::HashStore {
 public:
  std::int64_t add(const std::string& key, std::int64_t value) override {
    std::this_thread::sleep_for(1s);
    return HashStore::add(key, value);
  }
  bool check(const std::vector<std::string>& keys) override {
    std::this_thread::sleep_for(1s);
    return HashStore::check(keys);
  }
};

TEST(MissingAfterFailure, IsUnknownIfTheStoreDoesNotAnswer) {
  EXPECT_EQ(missing_after_failure(c10::make_intrusive<DeadStore>(), 0, 2, 100ms), "");
  EXPECT_EQ(missing_after_failure(c10::make_intrusive<StoppedStore>(), 0, 2, 100ms), "");
}

/// An operation that ends by its timeout only.
class EndlessWork final : public c10d::Work {
 public:
  bool isCompleted() override { return false; }
  bool wait(std::chrono::milliseconds timeout) override {
    std::this_thread::sleep_until(begin_ + timeout);
    TORCH_CHECK(false, "Operation timed out!");
  }

 private:
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

/// A backend whose ranks learn nothing of one another, as those of NCCL do if one does not come to an all-gather.
class QuietBackend final : public c10d::Backend {
 public:
  using Backend::Backend;
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor&, at::Tensor&, const c10d::AllgatherOptions&) override {
    return c10::make_intrusive<EndlessWork>();
  }
};

TEST(QuietBackends, NameTheRankThatDoesNotCome) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  on_threads(4, [&](int rank) {
    if (rank == 2) return;
    C10dGroup group(c10::make_intrusive<QuietBackend>(rank, 4), "quiet", at::kCPU, 400ms, store,
                    FailureNews::kByTimeout);
    if (rank == 1) group.set_timeout(1700ms);  // It still waits when the others ask who has come.
    std::this_thread::sleep_for(rank * 200ms);
    Bytes all(12);
    expect_error(ErrorCode::kPeer, "rank 2 died or does not respond, in an all-gather",
                 [&] { group.all_gather(Bytes(3), all); });
  });
}

TEST(QuietBackends, DoNotNameARankThatEndedTheOperation) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  on_threads(2, [&](int rank) {
    auto options = c10d::ProcessGroupGloo::Options::create(20s);
    options->devices.push_back(gloo_device(/*is_one_host=*/true));
    C10dGroup group(c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, 2, options), "gloo", at::kCPU, 20s, store,
                    FailureNews::kByTimeout);
    Bytes data(4);
    group.broadcast(data, 0);
    group.barrier();
    if (rank == 1) {  // The view of a rank whose own broadcast fails.
      Attendance attendance(store, rank, 2);
      attendance.begin_next();
      EXPECT_EQ(attendance.absent(50ms), "");
    }
    group.barrier();
  });
}

/// A write to a socket whose other end is closed. \returns  errno
int write_to_closed_socket() {
  std::array<int, 2> ends{};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()), 0);
  ::close(ends[1]);
  const int failed = ::write(ends[0], "x", 1) < 0 ? errno : 0;
  ::close(ends[0]);
  return failed;
}

TEST(WithoutSigpipe, AWriteToAClosedSocketIsAnErrorAndNoSignalIsLeft) {
  const auto handler = std::signal(SIGPIPE, SIG_DFL);  // The signal would end this process.
  {
    const WithoutSigpipe outer;
    {
      const WithoutSigpipe inner;
      EXPECT_EQ(write_to_closed_socket(), EPIPE);
    }
    EXPECT_EQ(write_to_closed_socket(), EPIPE);
    std::jthread([] { EXPECT_EQ(write_to_closed_socket(), EPIPE) << "in a thread that began meanwhile"; });
  }
  sigset_t pending, blocked;
  sigpending(&pending);
  pthread_sigmask(SIG_BLOCK, nullptr, &blocked);
  EXPECT_EQ(sigismember(&pending, SIGPIPE), 0);
  EXPECT_EQ(sigismember(&blocked, SIGPIPE), 0);
  std::signal(SIGPIPE, handler);
}

/// The threads of this process that block SIGPIPE.
int threads_without_sigpipe() {
  int count = 0;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream status(thread.path() / "status");
    for (std::string line; std::getline(status, line);) {
      if (!line.starts_with("SigBlk:")) continue;
      count += (std::stoull(line.substr(7), nullptr, 16) >> (SIGPIPE - 1) & 1) != 0 ? 1 : 0;
    }
  }
  return count;
}

/// A rank that dies would otherwise end the others without a word.
TEST(C10dGroups, WriteToClosedConnectionsWithoutASignal) {
  const int before = threads_without_sigpipe();
  const auto device = gloo_device(/*is_one_host=*/true);
  EXPECT_GT(threads_without_sigpipe(), before) << "the thread that moves the bytes";
  const auto group = make_gloo_group(c10::make_intrusive<c10d::HashStore>(), 0, 1, device, 20s);
  EXPECT_GT(threads_without_sigpipe(), before + 1) << "the threads that run operations";

  class Writer final : public c10d::Backend {
   public:
    Writer() : Backend(0, 1) {}
    c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions&) override {
      failed = write_to_closed_socket();
      throw std::runtime_error("Broken pipe");
    }
    void abort() override { write_to_closed_socket(); }
    int failed = 0;
  };
  const auto writer = c10::make_intrusive<Writer>();
  C10dGroup writes(writer, "writer", at::kCPU, 20s);
  expect_error(ErrorCode::kPeer, "in a barrier", [&] { writes.barrier(); });
  EXPECT_EQ(writer->failed, EPIPE);
  C10dGroup(c10::make_intrusive<Writer>(), "writer", at::kCPU, 20s).abort();
}

TEST(ProgressOfRanks, NamesThoseBehindThisOne) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  Attendance behind(store, 0, 4), own(store, 1, 4), ahead(store, 2, 4);
  for (Attendance* const each : {&behind, &own, &ahead}) each->begin_next();
  behind.report();
  own.begin_next();
  ahead.begin_next();
  ahead.begin_next();
  ahead.report();
  EXPECT_EQ(own.absent(50ms), "ranks 0, 3");
  behind.begin_next();
  std::jthread late([&] {
    std::this_thread::sleep_for(50ms);
    behind.report();
  });
  EXPECT_EQ(own.absent(500ms), "rank 3") << "a rank that comes late is there";
}

TEST(ProgressOfRanks, IsUnknownIfTheStoreDied) {
  Attendance attendance(c10::make_intrusive<DeadStore>(), 0, 1);
  attendance.begin_next();
  attendance.report();
  EXPECT_EQ(attendance.absent(50ms), "rank 0") << "its report did not arrive";
  Attendance of_stopped(c10::make_intrusive<StoppedStore>(), 0, 1);
  of_stopped.begin_next();
  EXPECT_EQ(of_stopped.absent(50ms), "");
}

}  // namespace
}  // namespace shard::test
