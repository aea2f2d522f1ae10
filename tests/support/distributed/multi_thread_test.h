/// \file
/// Tests whose body runs in several threads at once, one per rank, each with its own default group: faster than
/// processes, for tests without GPUs or RPC.
///
///     class Groups : public MultiThreadedTestCase {};
///     SHARD_RANKS_TEST(Groups, ANewGroupHasItsMembersOnly) { EXPECT_EQ(default_group()->rank(), rank()); }
///
/// All ranks share the process: its random generator, its variables, GoogleTest's failures. A rank that throws breaks
/// the group, which wakes the others; a rank that does not end within the time limit ends the process, because threads
/// cannot be stopped.
///
/// Source: MultiThreadedTestCase in torch/testing/_internal/common_distributed.py (torch 2.11).
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <string>

#include "tests/support/distributed/multi_process_test.h"

namespace shard::test {

inline constexpr int kMainThreadRank = -1;

/// Runs `body(rank)` on `world_size` threads, each the rank of a thread group that is its default group. Fails the test
/// with "Thread 2 exited with exception: ..." for each rank that threw, in order. If none failed, skips it with the
/// reason of the first rank that skipped. Ends the process if a rank needs longer than `timeout`.
void spawn_threads_and_init_comms(int world_size, const std::function<void(int)>& body,
                                  std::chrono::milliseconds timeout);
void spawn_threads_and_init_comms(int world_size, const std::function<void(int)>& body);

class MultiThreadedTestCase : public ::testing::Test {
 public:
  /// The calling thread's; kMainThreadRank outside of the ranks' threads.
  int rank() const;
  virtual int world_size() const { return kDefaultWorldSize; }
  static std::string current_test_name() { return MultiProcessTestCase::current_test_name(); }

 protected:
  /// Run in every rank's thread, around the body; the group exists.
  virtual void per_thread_set_up() {}
  virtual void per_thread_tear_down() {}
  virtual void run_rank() = 0;
  /// The time limit of one rank: that of the test's name, unless overridden.
  virtual std::chrono::milliseconds timeout() const;

  /// Only one rank compares, because values from the shared random generator have a fixed order only on a chosen rank.
  template <class X, class Y>
  void assert_equal_on_rank(const X& x, const Y& y, int on_rank = 0) const {
    if (rank() == on_rank) {
      EXPECT_EQ(x, y);
    }
  }
  template <class X, class Y>
  void assert_not_equal_on_rank(const X& x, const Y& y, int on_rank = 0) const {
    if (rank() == on_rank) {
      EXPECT_NE(x, y);
    }
  }

 private:
  void TestBody() final;
};

}  // namespace shard::test
