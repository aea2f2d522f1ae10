// tests/support/distributed with ranks. What must fail is disabled and started by other tests, which look at what came
// out.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <thread>

#include "libshard/torch/sharded_tensor/factories.h"
#include "tests/support/distributed/multi_thread_test.h"
#include "tests/support/distributed/sharded_tensor_test.h"

namespace shard::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using namespace std::chrono_literals;

/// Longer than any of these tests may take: who waits for it hangs.
void wait_in_vain() { std::this_thread::sleep_for(10min); }

// --- Running this binary's disabled tests ---------------------------------------------------------------------------

struct Outcome {
  int exit_code;
  std::string output;  ///< Stdout and stderr.
  std::chrono::duration<double> time;
};

std::string this_binary() { return std::filesystem::read_symlink("/proc/self/exe").string(); }

Outcome run(const std::string& command) {
  const auto begin = std::chrono::steady_clock::now();
  FILE* const pipe = ::popen(("exec 2>&1; " + command).c_str(), "r");
  Outcome result{-1, {}, {}};
  std::array<char, 4096> part;
  for (std::size_t bytes = 0; (bytes = std::fread(part.data(), 1, part.size(), pipe)) > 0;) {
    result.output.append(part.data(), bytes);
  }
  const int status = ::pclose(pipe);
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  result.time = std::chrono::steady_clock::now() - begin;
  return result;
}

Outcome run_disabled(const std::string& test, int timeout_s = 40) {
  return run("DISTRIBUTED_TESTS_DEFAULT_TIMEOUT=" + std::to_string(timeout_s) + " " + this_binary() +
             " --gtest_also_run_disabled_tests --gtest_filter=" + test);
}

// --- Ranks as processes ---------------------------------------------------------------------------------------------

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

SHARD_RANKS_TEST(RanksThatLeaveFiles, HN041_ranks_run_no_set_up) {
  EXPECT_EQ(set_ups_, 0);
  leave_file();
}

SHARD_RANKS_TEST(RanksThatLeaveFiles, HN043_ranks_know_the_test) {
  EXPECT_EQ(current_test_name(), "HN043_ranks_know_the_test");
  leave_file();
}

class Ranks : public MultiProcessTestCase {};

SHARD_RANKS_TEST(Ranks, HN071_all_draw_from_seed_1234) {
  const at::Tensor drawn = at::rand({4});
  at::manual_seed(1234);
  EXPECT_TRUE(tensors_equal(drawn, at::rand({4})));
}

SHARD_RANKS_TEST(Ranks, HN053_subtests_keep_the_ranks_together) {
  run_subtests({{"dim", {"0", "1"}}}, [](const auto& chosen) { EXPECT_EQ(chosen.size(), 1U); });
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
  EXPECT_LT(result.time, 20s);
}

SHARD_RANKS_TEST(DISABLED_Ranks, OneExpectsInVain) { EXPECT_NE(rank(), 2) << "as rank 2 finds"; }

TEST(FailingRanks, HN047_an_assertion_in_one_rank_fails_the_test) {
  const Outcome result = run_disabled("DISABLED_Ranks.OneExpectsInVain");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.output, AllOf(HasSubstr("Process 2 exited with error code 10"), HasSubstr("as rank 2 finds"),
                                   HasSubstr("harness_test.cpp:"), Not(HasSubstr("Process 0"))));
}

SHARD_RANKS_TEST(DISABLED_Ranks, TwoFailOneAfterTheOther) {
  EXPECT_NE(rank(), 3) << "rank 3's is first";
  std::this_thread::sleep_for(rank() == 0 ? 2s : 10min);
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

TEST(SkippingRanks, HN051_some_that_skip_are_a_failure) {
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
  EXPECT_LT(result.time, 20s);
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

SHARD_RANKS_TEST(DISABLED_Ranks, OneHangs) {
  EXPECT_NE(rank(), 1) << "before it hangs";
  if (rank() == 1) wait_in_vain();
}

TEST(StuckRanks, HN048_tell_their_stacks_when_the_time_is_over) {
  const Outcome result = run_disabled("DISABLED_Ranks.OneHangs", /*timeout_s=*/5);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.output, HasSubstr("Process 1 timed out with traceback:"));
  EXPECT_THAT(result.output, HasSubstr("run_rank_and_exit"));  // The main thread's stack, with names.
  EXPECT_THAT(result.output, HasSubstr("Timing out after 5 seconds and killing subprocesses."));
  EXPECT_THAT(result.output, HasSubstr("Process 1 terminated or timed out after 5"));
  EXPECT_THAT(result.output, HasSubstr("before it hangs"));
  EXPECT_LT(result.time, 15s);
}

SHARD_RANKS_TEST(DISABLED_Ranks, OneIsStopped) {
  if (rank() == 1) std::raise(SIGSTOP);
}

TEST(StuckRanks, HN048_one_that_does_not_answer_is_ended_all_the_same) {
  const Outcome result = run_disabled("DISABLED_Ranks.OneIsStopped", /*timeout_s=*/2);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.output, HasSubstr("Could not retrieve traceback for timed out process: 1"));
  EXPECT_LT(result.time, 25s);
}

// --- Ranks as threads -----------------------------------------------------------------------------------------------

class Threads : public MultiThreadedTestCase {};

SHARD_RANKS_TEST(Threads, HN060_each_has_its_own_default_group) {
  EXPECT_EQ(default_group()->rank(), rank());
  EXPECT_EQ(default_group()->size(), 4);
  default_group()->group().barrier();
  assert_equal_on_rank(rank(), 0);
  assert_not_equal_on_rank(rank(), 0, /*on_rank=*/2);
}

TEST(SpawnThreads, HN056_runs_the_body_once_per_rank) {
  std::array<std::atomic<int>, 3> runs = {};
  spawn_threads_and_init_comms(3, [&](int rank) { ++runs[static_cast<std::size_t>(rank)]; });
  for (const auto& count : runs) EXPECT_EQ(count, 1);
  EXPECT_FALSE(has_default_group());
}

class DISABLED_Threads : public Threads {};

SHARD_RANKS_TEST(DISABLED_Threads, OneThrows) {
  if (rank() == 1) throw std::runtime_error("what thread 1 says");
  default_group()->group().barrier();
}

TEST(FailingThreads, HN056_one_that_throws_wakes_the_others) {
  const Outcome result = run_disabled("DISABLED_Threads.OneThrows");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.output, HasSubstr("Thread 1 exited with exception:\nwhat thread 1 says"));
  EXPECT_THAT(result.output, Not(HasSubstr("Thread 0")));
  EXPECT_LT(result.time, 20s);
}

SHARD_RANKS_TEST(DISABLED_Threads, OneHangs) {
  if (rank() == 2) wait_in_vain();
}

TEST(FailingThreads, HN061_one_that_does_not_end_ends_the_process) {
  const Outcome result = run_disabled("DISABLED_Threads.OneHangs", /*timeout_s=*/2);
  EXPECT_EQ(result.exit_code, 10);
  EXPECT_THAT(result.output, HasSubstr("Thread 2 terminated or timed out after 2 seconds"));
  EXPECT_LT(result.time, 15s);
}

SHARD_RANKS_TEST(DISABLED_Threads, OneSkips) {
  if (rank() == 3) throw Skip("thread 3 cannot");
}

TEST(FailingThreads, HN062_one_that_skips_skips_the_test) {
  const Outcome result = run_disabled("DISABLED_Threads.OneSkips");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.output, AllOf(HasSubstr("[  SKIPPED ]"), HasSubstr("thread 3 cannot")));
}

// --- ShardedTensorTestBase ------------------------------------------------------------------------------------------

class Comms : public ShardedTensorTestBase {};

SHARD_RANKS_TEST(Comms, HN008_brings_a_group_and_takes_it_away) {
  for (int round = 0; round < 2; ++round) {
    with_comms({.rpc = false}, [&] {
      EXPECT_EQ(default_group()->rank(), rank());
      EXPECT_EQ(default_group()->size(), 4);
      EXPECT_EQ(default_group()->backend(), test_backend());
    });
    EXPECT_FALSE(has_default_group());
  }
}

SHARD_RANKS_TEST(Comms, HN004_brings_rpc) {
  with_comms([&] {
    ASSERT_NE(current_rpc_agent(), nullptr);
    EXPECT_EQ(current_rpc_agent()->self().id, rank());
    EXPECT_EQ(current_rpc_agent()->self().name, "worker" + std::to_string(rank()));
    EXPECT_EQ(current_rpc_agent()->workers().size(), 4U);
  });
  EXPECT_EQ(current_rpc_agent(), nullptr);
}

SHARD_RANKS_TEST(Comms, HN003_other_backends_are_not_supported) {
  SHARD_EXPECT_THROW(init_pg("foo"), c10::Error, "Backend foo not supported!");
  try {
    init_pg("mpi");
    ADD_FAILURE() << "there is no MPI";
  } catch (const Skip& skip) {
    EXPECT_EQ(skip.exit_code(), 72);
  }
}

SHARD_RANKS_TEST(Comms, HN007_equal_tensors_are_equal) {
  with_comms([&] {
    const CreateOptions options{.init_rrefs = true};
    const auto spec = chunk_spec(0, placements());
    const ShardedTensor ones = sharded_tensor::ones(spec, {10, 20}, options);
    EXPECT_TRUE(sharded_tensors_equal(ones, sharded_tensor::ones(spec, {10, 20}, options)));
    EXPECT_FALSE(sharded_tensors_equal(ones, sharded_tensor::zeros(spec, {10, 20}, options)));
    EXPECT_FALSE(sharded_tensors_equal(ones, sharded_tensor::ones(chunk_spec(-2, placements()), {10, 20}, options)));
  });
}

SHARD_RANKS_TEST(Comms, HN011_models_are_sharded) {
  with_comms([&] {
    const MyShardedModel1 model(chunk_spec(0, placements()));
    EXPECT_EQ(model.sharded_tensor1.local_tensor().size(0), rank() == 3 ? 1 : 3);
    EXPECT_EQ(model.submodule->sharded_tensor2.size(), (Sizes{10, 20}));
  });
}

/// As the rows that run on GPUs alone.
class CommsOverNccl : public ShardedTensorTestBase {};

SHARD_RANKS_TEST(CommsOverNccl, HN008_skips_without_enough_gpus) {
  with_comms({.rpc = false, .backend = "nccl"}, [&] { EXPECT_EQ(default_group()->backend(), "nccl"); });
}

class DISABLED_Comms : public ShardedTensorTestBase {};

SHARD_RANKS_TEST(DISABLED_Comms, OneIsKilledWhileOthersWaitForIt) {
  with_comms({.rpc = false}, [&] {
    if (rank() == 2) std::raise(SIGKILL);
    default_group()->group().barrier();
  });
}

TEST(FailingComms, HN049_a_killed_rank_is_named_first) {
  const Outcome result = run_disabled("DISABLED_Comms.OneIsKilledWhileOthersWaitForIt");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.output, HasSubstr("Failed\nProcess 2 was ended by signal 9 (Killed)"));
  EXPECT_LT(result.time, 20s);
}

SHARD_RANKS_TEST(DISABLED_Comms, OneStaysAway) {
  with_comms({.rpc = false}, [&] {
    if (rank() == 2) wait_in_vain();
    default_group()->group().barrier();
  });
}

TEST(FailingComms, HN049_who_waits_in_vain_says_so_within_the_time) {
  const Outcome result = run_disabled("DISABLED_Comms.OneStaysAway", /*timeout_s=*/10);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.output, HasSubstr("exited with error code 10 and exception:\nshard::Error"));
  EXPECT_LT(result.time, 15s);
}

// --- Other fixtures -------------------------------------------------------------------------------------------------

class Single : public SingleProcessTestCase {};

TEST_F(Single, HN067_one_process_has_a_group_of_one) {
  EXPECT_EQ(default_group()->size(), 1);
  EXPECT_EQ(variable("MASTER_PORT"), "12355");
}

class Continuous : public MultiProcContinuousTest {};

TEST_F(Continuous, HN069_the_group_is_there) { EXPECT_EQ(default_group()->rank(), rank()); }
TEST_F(Continuous, HN069_and_stays_for_the_next_test) { default_group()->group().barrier(); }

TEST(ContinuousTest, HN069_ranks_started_from_outside_share_one_group) {
  const TempFolder folder;
  const auto rank = [&](int which) {
    return "RANK=" + std::to_string(which) + " WORLD_SIZE=2 RENDEZVOUS_FILE=" + folder / "file" + " " + this_binary() +
           " --gtest_filter=Continuous.*";
  };
  const Outcome result = run(rank(1) + " & " + rank(0) + " && wait $!");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.output, AllOf(HasSubstr("Rank 0 setup complete"), HasSubstr("Rank 1 teardown complete"),
                                   Not(HasSubstr("SKIPPED"))));
}

class PerGpu : public MultiProcessPerGpuTestCase {};

SHARD_RANKS_TEST(PerGpu, HN068_has_as_many_ranks_as_gpus) { EXPECT_LT(rank(), cuda_device_count()); }

}  // namespace
}  // namespace shard::test
