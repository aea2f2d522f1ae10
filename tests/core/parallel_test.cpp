#include "libshard/core/parallel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <latch>
#include <mutex>
#include <set>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <tuple>
#include <vector>

#include "libshard/core/error.h"
#include "tests/support/without_threads.h"

namespace shard {
namespace {

TEST(ForEachIndex, HandlesEveryIndexOnce) {
  for (const int threads : {-1, 0, 1, 2, 7}) {
    for (const std::size_t count : {0U, 1U, 2U, 1000U}) {
      std::vector<std::atomic<int>> handled(count);
      for_each_index(count, threads, {}, [&] { return [&](std::size_t i) { ++handled[i]; }; });
      for (std::size_t i = 0; i < count; ++i) EXPECT_EQ(handled[i], 1) << i;
    }
  }
}

TEST(ForEachIndex, MakesAWorkerOnEachThreadAndNoMoreThreadsThanIndices) {
  for (const auto& [count, threads, workers] : {std::tuple{1000U, 4, 4U}, {3U, 8, 3U}, {5U, 1, 1U}, {0U, 4, 1U}}) {
    std::mutex mutex;
    std::set<std::thread::id> made;
    std::size_t calls = 0;
    for_each_index(count, threads, {}, [&]() -> IndexWorker {
      const std::scoped_lock lock(mutex);
      made.insert(std::this_thread::get_id());
      ++calls;
      return [](std::size_t) {};
    });
    EXPECT_EQ(calls, workers);
    EXPECT_EQ(made.size(), workers);
    EXPECT_TRUE(made.contains(std::this_thread::get_id())) << "the caller's thread works too";
  }
}

TEST(ForEachIndex, IsHandledByTheCallersThreadIfTheSystemStartsNoOther) {
  const test::WithoutThreads none;
  ASSERT_THROW(std::thread([] {}).join(), std::system_error);
  int handled = 0;
  for_each_index(100, 8, {}, [&] { return [&](std::size_t) { ++handled; }; });
  EXPECT_EQ(handled, 100);
}

TEST(ForEachIndex, TakesIndicesFromTheFrontInOrder) {
  std::vector<std::size_t> order;
  for_each_index(100, 1, {}, [&] { return [&](std::size_t i) { order.push_back(i); }; });
  for (std::size_t i = 0; i < order.size(); ++i) EXPECT_EQ(order[i], i);
}

/// Both workers have started; the second one fails while the first one is ending.
TEST(ForEachIndex, ThrowsTheFirstOfTwoErrors) {
  struct Leaving {
    std::atomic<bool>& flag;
    ~Leaving() { flag = true; }
  };
  std::latch begun(2);
  std::atomic<bool> failed{false};
  const auto run = [&](std::size_t i) {
    begun.arrive_and_wait();
    if (i == 0) {
      const Leaving leaving{failed};
      throw std::runtime_error("first");
    }
    while (!failed) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    throw std::runtime_error("second");
  };
  try {
    for_each_index(2, 2, {}, [&]() -> IndexWorker { return run; });
    FAIL() << "no error";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "first");
  }
}

TEST(ForEachIndex, ThrowsTheFirstErrorAfterAllThreadsHaveEndedAndTakesNoFurtherIndices) {
  std::atomic<int> begun{0}, ended{0};
  std::atomic<bool> failed{false};
  try {
    for_each_index(100'000, 4, {}, [&]() -> IndexWorker {
      return [&](std::size_t i) {
        ++begun;
        if (i == 10) {
          failed = true;
          ++ended;
          throw std::runtime_error("first");
        }
        while (i > 10 && !failed) std::this_thread::yield();
        std::this_thread::sleep_for(std::chrono::microseconds(200));
        ++ended;
      };
    });
    FAIL() << "no error";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "first");
  }
  EXPECT_EQ(begun, ended);
  EXPECT_LT(begun, 10'000);
}

TEST(ForEachIndex, ThrowsWhatMakingAWorkerThrows) {
  const auto make = []() -> IndexWorker { throw std::runtime_error("cannot be made"); };
  EXPECT_THROW(for_each_index(5, 3, {}, make), std::runtime_error);
}

TEST(ForEachIndex, EndsWithInterruptedWhenAStopIsAskedFor) {
  std::stop_source stop;
  int handled = 0;
  try {
    for_each_index(100, 1, stop.get_token(), [&]() -> IndexWorker {
      return [&](std::size_t i) {
        ++handled;
        if (i == 4) stop.request_stop();
      };
    });
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInterrupted);
  }
  EXPECT_EQ(handled, 5);
}

}  // namespace
}  // namespace shard
