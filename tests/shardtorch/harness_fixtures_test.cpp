// tests/support/distributed: ranks that are threads, ranks that communicate, and fixtures that start none.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <csignal>
#include <iostream>

#include "shardtorch/sharded_tensor/factories.h"
#include "tests/shardtorch/disabled_tests.h"
#include "tests/support/distributed/environment.h"
#include "tests/support/distributed/multi_thread_test.h"
#include "tests/support/distributed/sharded_tensor_test.h"
#include "tests/support/temp_folder.h"

namespace shard::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using namespace std::chrono_literals;

// --- Ranks as threads -----------------------------------------------------------------------------------------------

class Threads : public MultiThreadedTestCase {};

SHARD_RANKS_TEST(Threads, HN060_TR39_each_has_its_own_default_group) {
  EXPECT_EQ(default_group()->rank(), rank());
  EXPECT_EQ(default_group()->size(), 4);
  default_group()->barrier();
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
  default_group()->barrier();
}

TEST(FailingThreads, HN056_one_that_throws_wakes_the_others) {
  const Outcome result = run_disabled("DISABLED_Threads.OneThrows");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.output, HasSubstr("Thread 1 exited with exception:\nwhat thread 1 says"));
  EXPECT_THAT(result.output, Not(HasSubstr("Thread 0")));
  EXPECT_LT(result.time, kSoon);
}

SHARD_RANKS_TEST(DISABLED_Threads, OneHangs) {
  if (rank() == 2) wait_in_vain();
}

TEST(FailingThreads, HN061_one_that_does_not_end_ends_the_process) {
  const Outcome result = run_disabled("DISABLED_Threads.OneHangs", /*timeout_s=*/2);
  EXPECT_EQ(result.exit_code, 10);
  EXPECT_THAT(result.output, HasSubstr("Thread 2 terminated or timed out after 2 seconds"));
  EXPECT_LT(result.time, kSoon);
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

SHARD_RANKS_TEST(Comms, HN004_rpc_maps_the_devices_of_each_pair_of_workers_both_ways) {
  const auto maps = rpc_device_maps();
  EXPECT_EQ(maps.size(), 4U);
  for (int other = 0; other < 4; ++other) {
    const auto& map = maps.at("worker" + std::to_string(other));
    EXPECT_EQ(map.at(device(other)), device());
    EXPECT_EQ(map.at(device()), device(other));
  }
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
    EXPECT_EQ(model.submodule->sharded_tensor2.sizes(), (Sizes{10, 20}));
  });
}

/// The rule for rows that run only on GPUs.
class CommsOverNccl : public ShardedTensorTestBase {};

SHARD_RANKS_TEST(CommsOverNccl, HN008_skips_without_enough_gpus) {
  with_comms({.rpc = false, .backend = "nccl"}, [&] { EXPECT_EQ(default_group()->backend(), "nccl"); });
}

class DISABLED_Comms : public ShardedTensorTestBase {};

SHARD_RANKS_TEST(DISABLED_Comms, OneIsKilledWhileOthersWaitForIt) {
  with_comms({.rpc = false}, [&] {
    if (rank() == 2) std::raise(SIGKILL);
    default_group()->barrier();
  });
}

TEST(FailingComms, HN049_a_killed_rank_is_named_first) {
  const Outcome result = run_disabled("DISABLED_Comms.OneIsKilledWhileOthersWaitForIt");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.output, HasSubstr("Failed\nProcess 2 was ended by signal 9 (Killed)"));
  EXPECT_LT(result.time, kSoon);
}

SHARD_RANKS_TEST(DISABLED_Comms, OneStaysAway) {
  with_comms({.rpc = false}, [&] {
    if (rank() == 2) wait_in_vain();
    default_group()->barrier();
  });
}

SHARD_RANKS_TEST(DISABLED_Comms, OneFailsInside) {
  with_comms({.rpc = false}, [&] { EXPECT_NE(rank(), 1); });
  std::cerr << "rank " + std::to_string(rank()) + (has_default_group() ? " has a group\n" : " has none\n");
}

TEST(FailingComms, HN008_TR38_a_rank_that_fails_takes_nothing_down) {
  const Outcome result = run_disabled("DISABLED_Comms.OneFailsInside", /*timeout_s=*/20);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.output, HasSubstr("rank 1 has a group"));
}

SHARD_RANKS_TEST(DISABLED_Comms, AllSkipInside) {
  with_comms({.rpc = false}, [&] {
    EXPECT_TRUE(has_default_group());
    default_group()->barrier();
    throw Skip(test_skip("no_peer_access"));
  });
}

TEST(SkippingComms, HN008_TR38_a_skip_inside_is_one_of_ranks_that_communicate) {
  const Outcome result = run_disabled("DISABLED_Comms.AllSkipInside");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.output, AllOf(HasSubstr("[  SKIPPED ]"), HasSubstr("Test skipped because no GPU peer access")));
}

TEST(FailingComms, HN049_who_waits_in_vain_says_so_within_the_time) {
  const Outcome result = run_disabled("DISABLED_Comms.OneStaysAway", /*timeout_s=*/20);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.output, HasSubstr("exited with error code 10 and exception:\nshard::Error"));
  EXPECT_LT(result.time, kSoon);
}

// --- Other fixtures -------------------------------------------------------------------------------------------------

class Single : public SingleProcessTestCase {};

TEST_F(Single, HN067_one_process_has_a_group_of_one) {
  EXPECT_EQ(default_group()->size(), 1);
  EXPECT_EQ(variable("MASTER_PORT"), "12355");
  EXPECT_EQ(device().is_cuda(), default_group()->backend() == "nccl");
  EXPECT_EQ(device_ids().size(), device().is_cuda() ? 0U : 1U);
}

class Continuous : public MultiProcContinuousTest<Continuous> {
 public:
  static std::string backend_str() { return "gloo"; }
  static InitOptions opts() { return {std::chrono::seconds(50)}; }
};

TEST_F(Continuous, HN069_the_group_is_there) {
  EXPECT_EQ(pg(), default_group());
  EXPECT_EQ(pg()->rank(), rank());
  EXPECT_EQ(pg()->backend(), "gloo");
}
TEST_F(Continuous, HN069_and_stays_for_the_next_test) { default_group()->barrier(); }

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

/// A class that names no backend.
class Nameless : public MultiProcContinuousTest<Nameless> {
 public:
  using ContinuousTest::backend_str;
};

TEST(ContinuousTest, HN069_a_class_without_a_backend_is_refused) {
  SHARD_EXPECT_THROW(Nameless::backend_str(), c10::NotImplementedError,
                     "Please implement backend_str in your test class");
}

TEST(ContinuousTest, HN069_a_rank_outside_the_world_is_refused) {
  const Outcome result = run("RANK=2 WORLD_SIZE=2 " + this_binary() + " --gtest_filter=Continuous.*");
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.output, HasSubstr("Rank must be set and in the range of 0 to world_size. World size: 2 Rank: 2"));
}

TEST(ContinuousTest, HN069_run_rank_sets_the_variables_and_runs_all_tests) {
  const TempFolder folder;
  const auto rank = [&](int which) {
    return "SHARD_RUN_RANK=" + std::to_string(which) + " SHARD_RUN_FILE=" + folder / "file" + " " + this_binary() +
           " --gtest_filter=Continuous.*";
  };
  const Outcome result = run(rank(1) + " & " + rank(0) + " && wait $!");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.output, AllOf(HasSubstr("Rank 0 setup complete"), HasSubstr("Rank 1 teardown complete")));
}

class PerGpu : public MultiProcessPerGpuTestCase {};

SHARD_RANKS_TEST(PerGpu, HN068_has_as_many_ranks_as_gpus) { EXPECT_LT(rank(), cuda_device_count()); }

}  // namespace
}  // namespace shard::test
