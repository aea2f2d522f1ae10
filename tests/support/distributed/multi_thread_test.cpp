#include "tests/support/distributed/multi_thread_test.h"

#include <c10/util/StringUtil.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <exception>
#include <iostream>
#include <mutex>
#include <thread>
#include <vector>

#include "libshard/core/error.h"
#include "shardtorch/sharded_tensor/process_group.h"
#include "tests/support/distributed/environment.h"
#include "tests/support/distributed/skips.h"
#include "tests/support/distributed/stack_traces.h"

namespace shard::test {
namespace {

thread_local int rank_of_this_thread = kMainThreadRank;

std::string thread(int rank) { return c10::str("Thread ", rank); }

struct ThreadBody {
  std::function<void(int)> run;
  std::function<void()> tear_down;  ///< Runs even after a failure; the group no longer exists.
};

/// Messages of the threads to the waiting thread.
class ThreadRanks {
 public:
  ThreadRanks(int world_size, const ThreadBody& body) : body_(body), ended_(static_cast<std::size_t>(world_size)) {
    const std::vector<std::shared_ptr<World>> worlds = make_thread_worlds(world_size);
    for (int rank = 0; rank < world_size; ++rank) {
      threads_.emplace_back([this, rank, world = worlds[static_cast<std::size_t>(rank)]] { run(rank, world); });
    }
  }
  ThreadRanks(const ThreadRanks&) = delete;
  ThreadRanks& operator=(const ThreadRanks&) = delete;

  /// A rank that still runs after `timeout`, which each rank has separately; nothing if all have ended.
  std::optional<int> wait(std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    for (std::size_t rank = 0; rank < ended_.size(); ++rank) {
      if (!rank_ended_.wait_for(lock, timeout, [&] { return ended_[rank]; })) return static_cast<int>(rank);
    }
    return std::nullopt;
  }

  struct Exception {
    int rank;
    std::exception_ptr what;
  };
  /// In the order in which they were thrown.
  std::vector<Exception> exceptions() {
    const std::lock_guard lock(mutex_);
    return exceptions_;
  }

 private:
  void run(int rank, std::shared_ptr<World> world) {
    rank_of_this_thread = rank;
    guarded(rank, [&] { run_with_group(rank, std::move(world)); });
    guarded(rank, body_.tear_down);
    const std::lock_guard lock(mutex_);
    ended_[static_cast<std::size_t>(rank)] = true;
    rank_ended_.notify_all();
  }

  void run_with_group(int rank, std::shared_ptr<World> world) {
    const ProcessGroupPtr group = init_thread_process_group(std::move(world));
    if (!guarded(rank, [&] { body_.run(rank); })) group->group().abort();  // Wakes those that wait for this rank.
    destroy_process_group();
  }

  /// Whether `step` succeeded.
  bool guarded(int rank, const std::function<void()>& step) {
    try {
      step();
      return true;
    } catch (const Error& error) {
      // Ranks that were woken fail because a different rank has failed.
      if (!(is_broken_ && error.code() == ErrorCode::kPeer)) remember(rank);
    } catch (...) {
      remember(rank);
    }
    return false;
  }

  void remember(int rank) {
    is_broken_ = true;
    const std::lock_guard lock(mutex_);
    exceptions_.push_back({rank, std::current_exception()});
  }

  const ThreadBody& body_;
  std::atomic<bool> is_broken_ = false;
  std::mutex mutex_;
  std::condition_variable rank_ended_;
  std::vector<bool> ended_;
  std::vector<Exception> exceptions_;
  std::vector<std::jthread>
      threads_;  // Declared last, because the threads use all members above until they are joined.
};

struct ThreadFailures {
  std::string text;
  int exit_code = 0;  ///< The first requested skip.
  std::string skip_reason;
};

void add(ThreadFailures& failures, const ThreadRanks::Exception& exception) {
  const auto fail = [&](const std::string& what) {
    failures.text += thread(exception.rank) + " exited with exception:\n" + what + '\n';
  };
  try {
    std::rethrow_exception(exception.what);
  } catch (const Skip& skip) {
    std::cerr << thread(exception.rank) << " skipping for following reason: " << skip.what() << '\n';
    if (failures.exit_code == 0) failures.exit_code = skip.exit_code();
    if (failures.skip_reason.empty()) failures.skip_reason = skip.what();
  } catch (const ExitRequest& request) {
    if (failures.exit_code == 0) failures.exit_code = request.exit_code;
  } catch (const std::exception& error) {
    fail(error.what());
  } catch (...) {
    fail("an exception not derived from std::exception");
  }
}

ThreadFailures failures_of(const std::vector<ThreadRanks::Exception>& exceptions) {
  ThreadFailures failures;
  for (const ThreadRanks::Exception& exception : exceptions) add(failures, exception);
  return failures;
}

/// Kept, because a thread cannot be stopped and may still use its data.
[[noreturn]] void end_process(int stuck_rank, std::chrono::milliseconds timeout, const ThreadFailures& failures) {
  ADD_FAILURE() << failures.text << thread(stuck_rank) << " terminated or timed out after "
                << std::chrono::duration<double>(timeout).count() << " seconds\n\n"
                << stacks_of_other_threads();
  std::cout.flush();
  std::cerr.flush();
  std::fflush(nullptr);
  ::_exit(kTestErrorExitCode);
}

void skip_with_code(const ThreadFailures& failures) {
  const TestSkip* const skip = find_test_skip(failures.exit_code);
  if (skip == nullptr) return;
  const std::string message = failures.skip_reason.empty() ? std::string(skip->message) : failures.skip_reason;
  if (!in_sandcastle()) GTEST_SKIP() << message;
  std::cerr << "Skipping " << MultiProcessTestCase::current_test_name()
            << " on sandcastle for the following reason: " << message << '\n';
}

void run_as_threads(int world_size, const ThreadBody& body, std::chrono::milliseconds timeout) {
  const EnvironmentGuard stacks("TORCH_SHOW_CPP_STACKTRACES", "1");
  ThreadRanks ranks(world_size, body);
  const std::optional<int> stuck = ranks.wait(timeout);
  const ThreadFailures failures = failures_of(ranks.exceptions());
  if (stuck) end_process(*stuck, timeout, failures);
  if (!failures.text.empty()) {
    ADD_FAILURE() << failures.text;
  } else {
    skip_with_code(failures);
  }
}

}  // namespace

void spawn_threads_and_init_comms(int world_size, const std::function<void(int)>& body,
                                  std::chrono::milliseconds timeout) {
  run_as_threads(world_size, {body, [] {}}, timeout);
}

void spawn_threads_and_init_comms(int world_size, const std::function<void(int)>& body) {
  spawn_threads_and_init_comms(world_size, body, default_timeout());
}

int MultiThreadedTestCase::rank() const { return rank_of_this_thread; }

std::chrono::milliseconds MultiThreadedTestCase::timeout() const { return get_timeout(current_test_name()); }

void MultiThreadedTestCase::TestBody() {
  const auto run = [this](int) {
    per_thread_set_up();
    run_rank();
  };
  run_as_threads(world_size(), {run, [this] { per_thread_tear_down(); }}, timeout());
}

}  // namespace shard::test
