// tests/support/distributed with ranks that are processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "libshard/io/paths.h"
#include "shardtorch/sharded_tensor/collectives.h"
#include "tests/shardtorch/disabled_tests.h"
#include "tests/support/distributed/environment.h"
#include "tests/support/distributed/multi_process_test.h"
#include "tests/support/distributed/rank_processes.h"
#include "tests/support/distributed/skips.h"
#include "tests/support/distributed/tensors.h"

namespace shard::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using namespace std::chrono_literals;

/// Leaves a file per rank and per call of set_up.
class RanksThatLeaveFiles : public MultiProcessTestCase {
 protected:
  void set_up() override {
    ++set_ups_;
    MultiProcessTestCase::set_up();
  }
  void tear_down() override {
    EXPECT_EQ(set_ups_, 1);
    for (int of_rank = 0; of_rank < world_size(); ++of_rank) {
      EXPECT_TRUE(std::filesystem::exists(file_name() + std::to_string(of_rank))) << of_rank;
    }
    MultiProcessTestCase::tear_down();
  }
  void leave_file() const { std::ofstream(file_name() + std::to_string(rank())) << "here"; }
  int set_ups_ = 0;
};

SHARD_RANKS_TEST(RanksThatLeaveFiles, HN044_every_rank_runs_the_body) {
  EXPECT_EQ(number_variable("WORLD_SIZE", 0), 4);
  EXPECT_EQ(is_master(), rank() == 0);
  leave_file();
}

SHARD_RANKS_TEST(RanksThatLeaveFiles, HN041_TR37_ranks_run_no_set_up) {
  EXPECT_EQ(set_ups_, 0);
  leave_file();
}

SHARD_RANKS_TEST(RanksThatLeaveFiles, HN043_ranks_know_the_test) {
  EXPECT_EQ(current_test_name(), "HN043_ranks_know_the_test");
  leave_file();
}

class Ranks : public MultiProcessTestCase {};

SHARD_RANKS_TEST(Ranks, HN071_TR30_all_draw_from_seed_1234) {
  const at::Tensor drawn = at::rand({4});
  at::manual_seed(1234);
  EXPECT_TRUE(tensors_equal(drawn, at::rand({4})));
}

SHARD_RANKS_TEST(Ranks, HN053_subtests_keep_the_ranks_together) {
  run_subtests({{"dim", {"0", "1"}}}, [](const auto& chosen) { EXPECT_EQ(chosen.size(), 1U); });
}

SHARD_RANKS_TEST(Ranks, HN066_a_scope_has_a_group_of_all_ranks_and_leaves_none) {
  const c10::intrusive_ptr<c10d::Store> store =
      c10::make_intrusive<c10d::FileStore>(file_name() + ".port", world_size());
  if (is_master()) {
    const auto found = c10::dynamic_intrusive_pointer_cast<c10d::TCPStore>(create_tcp_store("localhost", 1));
    store->set("port", std::to_string(found->getPort()));
  }
  const std::string port = store->get_to_str("port");  // A free one.
  const EnvironmentGuard address("MASTER_ADDR", "elsewhere");
  {
    const ProcessGroupScope scope(rank(), world_size(), {.backend = "gloo", .port = port});
    EXPECT_EQ(default_group()->rank(), rank());
    EXPECT_EQ(default_group()->size(), world_size());
    EXPECT_STREQ(std::getenv("MASTER_ADDR"), "localhost");
    EXPECT_EQ(std::getenv("MASTER_PORT"), port);
    EXPECT_TRUE(tensors_equal(all_gather(at::tensor({rank()})), at::arange(world_size()).to(at::kInt)));
  }
  EXPECT_FALSE(has_default_group());
  EXPECT_STREQ(std::getenv("MASTER_ADDR"), "elsewhere");
  const ProcessGroupScope without(rank(), world_size(), {.init_pg = false});
  EXPECT_FALSE(has_default_group());
}

/// Its ranks end themselves.
class RanksOfAnyCode : public MultiProcessTestCase {
 protected:
  void set_up() override {
    skip_return_code_checks();
    MultiProcessTestCase::set_up();
  }
};

SHARD_RANKS_TEST(RanksOfAnyCode, HN050_may_end_as_they_like) {
  if (rank() == 1) std::raise(SIGKILL);
  throw ExitRequest{rank() == 2 ? 7 : 0};
}

class DISABLED_Ranks : public Ranks {};

SHARD_RANKS_TEST(DISABLED_Ranks, OneThrows) {
  if (rank() == 1) throw std::runtime_error("what rank 1 says");
  wait_in_vain();
}

TEST(FailingRanks, HN049_one_that_throws_ends_all_and_its_text_arrives) {
  const Outcome result = run_disabled("DISABLED_Ranks.OneThrows");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.output, HasSubstr("Process 1 exited with error code 10 and exception:\n"
                                       "std::runtime_error: what rank 1 says"));
  EXPECT_THAT(result.output, HasSubstr("Process 1 terminated with exit code 10, terminating remaining processes."));
  EXPECT_THAT(result.output, Not(HasSubstr("Process 0")));
  EXPECT_LT(result.time, kSoon);
}

SHARD_RANKS_TEST(DISABLED_Ranks, OneExpectsInVain) { EXPECT_NE(rank(), 2) << "as rank 2 finds"; }

TEST(FailingRanks, HN047_TR36_an_assertion_in_one_rank_fails_the_test) {
  const Outcome result = run_disabled("DISABLED_Ranks.OneExpectsInVain");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.output, AllOf(HasSubstr("Process 2 exited with error code 10"), HasSubstr("as rank 2 finds"),
                                   HasSubstr("harness_test.cpp:"), Not(HasSubstr("Process 0"))));
}

SHARD_RANKS_TEST(DISABLED_Ranks, TwoFailOneAfterTheOther) {
  EXPECT_NE(rank(), 3) << "rank 3's is first";
  if (rank() == 3) std::ofstream(file_name()) << "failed";
  if (rank() != 0) wait_in_vain();
  while (!std::filesystem::exists(file_name())) std::this_thread::sleep_for(10ms);
  throw std::runtime_error("rank 0's is second");
}

TEST(FailingRanks, HN051_the_first_failure_is_told_first) {
  const Outcome result = run_disabled("DISABLED_Ranks.TwoFailOneAfterTheOther");
  const std::size_t first = result.output.find("rank 3's is first"), second = result.output.find("rank 0's is second");
  EXPECT_THAT(result.output, HasSubstr("Process 3 failed before it was terminated:"));
  EXPECT_NE(second, std::string::npos);
  EXPECT_LT(first, second);
}

SHARD_RANKS_TEST(DISABLED_Ranks, AllSkip) { throw Skip("nobody wants to"); }
SHARD_RANKS_TEST(DISABLED_Ranks, AllSkipAsGoogleTestDoes) { GTEST_SKIP() << "nobody likes to"; }
SHARD_RANKS_TEST(DISABLED_Ranks, AllSkipWithACode) { throw Skip(test_skip("no_peer_access")); }
SHARD_RANKS_TEST(DISABLED_Ranks, SomeSkip) {
  if (rank() > 0) throw Skip(test_skip("multi-gpu-4"));
}

TEST(SkippingRanks, HN047_all_skip_for_a_reason_of_their_own) {
  const Outcome result = run_disabled("DISABLED_Ranks.AllSkip");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.output, HasSubstr("[  SKIPPED ] DISABLED_Ranks.AllSkip"));
  EXPECT_THAT(result.output, HasSubstr("look at subprocess log for skip reason: nobody wants to"));
  EXPECT_THAT(result.output, HasSubstr("Process 3 skipping test AllSkip for following reason: nobody wants to"));
}

TEST(SkippingRanks, HN047_all_skip_with_gtest_skip) {
  const Outcome result = run_disabled("DISABLED_Ranks.AllSkipAsGoogleTestDoes");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.output, AllOf(HasSubstr("[  SKIPPED ]"), HasSubstr("nobody likes to")));
}

TEST(SkippingRanks, HN012_all_skip_with_a_code_of_the_table) {
  const Outcome result = run_disabled("DISABLED_Ranks.AllSkipWithACode");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.output, AllOf(HasSubstr("[  SKIPPED ]"), HasSubstr("Test skipped because no GPU peer access")));
}

TEST(SkippingRanks, HN051_TR36_some_that_skip_are_a_failure) {
  const Outcome result = run_disabled("DISABLED_Ranks.SomeSkip");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.output, HasSubstr("Expect process 1 exit code to match Process 0 exit code of 0, but got 81"));
}

SHARD_RANKS_TEST(DISABLED_Ranks, AllEndWithThree) { throw ExitRequest{3}; }

TEST(FailingRanks, HN051_a_code_that_is_no_skip) {
  const Outcome result = run_disabled("DISABLED_Ranks.AllEndWithThree");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.output, HasSubstr("Expected zero exit code but got 3 for pid: "));
}

SHARD_RANKS_TEST(DISABLED_Ranks, OneIsKilled) {
  if (rank() == 2) std::raise(SIGKILL);
  wait_in_vain();
}

TEST(FailingRanks, HN051_a_killed_rank_ends_the_test) {
  const Outcome result = run_disabled("DISABLED_Ranks.OneIsKilled");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.output, HasSubstr("Process 2 was ended by signal 9 (Killed)"));
  EXPECT_LT(result.time, kSoon);
}

SHARD_RANKS_TEST(DISABLED_Ranks, OneAborts) {
  if (rank() == 1) std::abort();
  wait_in_vain();
}

TEST(FailingRanks, HN047_a_fatal_signal_leaves_the_stack) {
  const Outcome result = run_disabled("DISABLED_Ranks.OneAborts");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.output,
              AllOf(HasSubstr("Process 1 was ended by signal 6 (Aborted)"), HasSubstr("run_rank_and_exit")));
}

/// Dies of SIGABRT if it must end; rank 0 fails once it is ready.
SHARD_RANKS_TEST(DISABLED_Ranks, OneCrashesWhenAnotherHasFailed) {
  if (rank() == 1) {
    std::signal(SIGTERM, [](int) { std::abort(); });
    std::ofstream(file_name()) << "ready";
  }
  while (!std::filesystem::exists(file_name())) std::this_thread::sleep_for(10ms);
  if (rank() == 0) throw std::runtime_error("what rank 0 sees of it");
  wait_in_vain();
}

TEST(FailingRanks, HN049_a_crash_that_is_seen_last_is_named_first) {
  const Outcome result = run_disabled("DISABLED_Ranks.OneCrashesWhenAnotherHasFailed");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.output, HasSubstr("Failed\nProcess 1 was ended by signal 6 (Aborted)\n"
                                       "Process 0 exited with error code 10 and exception:\n"
                                       "std::runtime_error: what rank 0 sees of it"));
}

/// A descendant has the rank's socket open, and nothing else.
SHARD_RANKS_TEST(DISABLED_Ranks, OneLeavesADescendant) {
  if (rank() != 1 || ::fork() != 0) return;
  for (const int descriptor : {0, 1, 2}) ::close(descriptor);
  const std::filesystem::path folder = std::filesystem::path(file_name()).parent_path();
  while (std::filesystem::exists(folder)) std::this_thread::sleep_for(10ms);  // The test removes it.
  ::_exit(0);
}

TEST(DescendantsOfRanks, HN049_are_not_waited_for) {
  const Outcome result = run_disabled("DISABLED_Ranks.OneLeavesADescendant");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_LT(result.time, kSoon);
}

SHARD_RANKS_TEST(Ranks, HN044_programs_that_ranks_start_have_no_socket) {
  EXPECT_EQ(std::system(("test ! -e /proc/self/fd/" + std::to_string(rank_context()->socket)).c_str()), 0);
}

SHARD_RANKS_TEST(DISABLED_Ranks, OneHangs) {
  EXPECT_NE(rank(), 1) << "before it hangs";
  if (rank() == 1) wait_in_vain();
}

TEST(StuckRanks, HN048_tell_their_stacks_when_the_time_is_over) {
  const Outcome result = run_disabled("DISABLED_Ranks.OneHangs", /*timeout_s=*/10);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.output, HasSubstr("Process 1 timed out with traceback:"));
  EXPECT_THAT(result.output, HasSubstr("run_rank_and_exit"));  // The main thread's stack, with names.
  EXPECT_THAT(result.output, HasSubstr("Timing out after 10 seconds and killing subprocesses."));
  EXPECT_THAT(result.output, HasSubstr("Process 1 terminated or timed out after 10"));
  EXPECT_THAT(result.output, HasSubstr("before it hangs"));
  EXPECT_LT(result.time, kSoon);
}

SHARD_RANKS_TEST(DISABLED_Ranks, OneIsStopped) {
  if (rank() == 1) std::raise(SIGSTOP);
}

TEST(StuckRanks, HN048_one_that_does_not_answer_is_ended_all_the_same) {
  const Outcome result = run_disabled("DISABLED_Ranks.OneIsStopped", /*timeout_s=*/2);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.output, HasSubstr("Could not retrieve traceback for timed out process: 1"));
  EXPECT_LT(result.time, kSoon);
}

}  // namespace
}  // namespace shard::test
