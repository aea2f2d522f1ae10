// Groups and worlds: threads, and Gloo between threads that share a store.

#include "shardtorch/sharded_tensor/process_group.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <utility>
#include <vector>

#include "libshard/core/error.h"
#include "shardtorch/c10d/gloo.h"
#include "shardtorch/sharded_tensor/factories.h"
#include "shardtorch/sharded_tensor/ops.h"
#include "shardtorch/state/state_dict.h"
#include "tests/shardtorch/rank_threads.h"
#include "tests/support/distributed/sharded_tensor_test.h"
#include "tests/support/expect_error.h"

namespace shard::test {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;

/// on_threads, each thread with its rank of a world of threads as default.
void on_ranks_of_size(int size, const std::function<void(int)>& body) {
  const auto worlds = make_thread_worlds(size);
  on_threads(size, [&](int rank) {
    const ProcessGroupPtr group = init_thread_process_group(worlds[static_cast<std::size_t>(rank)]);
    group->group().set_timeout(20s);
    body(rank);
    group->group().barrier();  // A group that ends early breaks it for the others.
  });
}

/// World ranks of the group, as exchanged by its members.
std::vector<int> ranks_met(Group& group, int own) {
  std::vector<int> all(static_cast<std::size_t>(group.size()));
  group.set_timeout(20s);
  group.all_gather(std::as_bytes(std::span(&own, 1)), std::as_writable_bytes(std::span(all)));
  group.barrier();
  return all;
}

TEST(DefaultGroup, AnErrorNamesItIfItIsMissing) {
  EXPECT_FALSE(has_default_group());
  SHARD_EXPECT_THROW(default_group(), c10::ValueError,
                     "Default process group has not been initialized, please make sure to call init_process_group.");
  SHARD_EXPECT_THROW(new_group({0}), c10::ValueError, "Default process group has not been initialized");
}

TEST(DefaultGroup, IsTheProcesssForAllThreads) {
  const ProcessGroupPtr group = init_process_group(make_thread_worlds(1)[0]);
  EXPECT_EQ(group->name(), "default_pg");
  std::jthread([&] { EXPECT_EQ(default_group(), group); }).join();
  SHARD_EXPECT_THROW(init_process_group(make_thread_worlds(1)[0]), c10::Error,
                     "trying to initialize the default process group twice!");
  destroy_process_group();
  EXPECT_FALSE(has_default_group());
  EXPECT_EQ(group->size(), 1) << "who holds it keeps it";
}

TEST(DefaultGroup, TR39_OfAThreadHidesTheProcesss) {
  const ProcessGroupPtr of_process = init_process_group(make_thread_worlds(1)[0]);
  on_ranks_of_size(2, [&](int rank) {
    EXPECT_NE(default_group(), of_process);
    EXPECT_EQ(default_group()->rank(), rank);
    SHARD_EXPECT_THROW(init_thread_process_group(make_thread_worlds(1)[0]), c10::Error, "twice");
  });
  EXPECT_EQ(default_group(), of_process);
  EXPECT_EQ(group_or_default(nullptr), of_process);
  destroy_process_group();
}

TEST(DefaultGroup, IsUsedIfNoneIsGiven) {
  on_ranks_of_size(2, [](int) {
    const ProcessGroupPtr other = new_group({0, 1});
    EXPECT_EQ(group_or_default(other), other);
    EXPECT_EQ(group_or_default(nullptr), default_group());
  });
}

TEST(DefaultGroup, CanBeMadeAgainInTheSameWorld) {
  const auto worlds = make_thread_worlds(2);
  on_threads(2, [&](int rank) {
    for (int round = 0; round < 3; ++round) {
      init_thread_process_group(worlds[static_cast<std::size_t>(rank)]);
      EXPECT_THAT(ranks_met(default_group()->group(), rank), ElementsAre(0, 1));
      destroy_process_group();
    }
  });
}

/// One rank. `meet` runs when a world waits for its ranks, `part` when its group ends.
class SlowWorld final : public World {
 public:
  SlowWorld(std::function<void()> meet, std::function<void()> part) : meet_(std::move(meet)), part_(std::move(part)) {}

  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::shared_ptr<Group> make_group(const std::string&, const std::vector<int>&, const std::string&) override {
    meet_();
    return {&solo_group(), [part = part_](Group*) { part(); }};
  }

 private:
  std::function<void()> meet_, part_;
};

/// Checks whether a second thread soon learns if there is a default group; if not, it keeps waiting.
bool another_thread_may_ask() {
  std::packaged_task<bool()> ask(has_default_group);
  const auto answer = ask.get_future();
  std::thread(std::move(ask)).detach();
  return answer.wait_for(5s) == std::future_status::ready;
}

TEST(DefaultGroup, OtherThreadsMayAskWhileItIsMadeAndWhileItEnds) {
  bool answered_meeting = false, answered_parting = false;
  init_process_group(std::make_shared<SlowWorld>([&] { answered_meeting = another_thread_may_ask(); },
                                                 [&] { answered_parting = another_thread_may_ask(); }));
  destroy_process_group();
  EXPECT_TRUE(answered_meeting);
  EXPECT_TRUE(answered_parting);
}

TEST(DefaultGroup, DestroyingNoneDoesNothing) { EXPECT_NO_THROW(destroy_process_group()); }

TEST(NewGroup, TR07_OutsidersAreMinusOneOfMinusOne) {
  on_ranks_of_size(4, [](int rank) {
    const ProcessGroupPtr group = new_group({1, 2, 3});
    EXPECT_THAT(group->global_ranks(), ElementsAre(1, 2, 3));
    EXPECT_EQ(group->name(), "group-1");
    EXPECT_EQ(group->is_member(), rank != 0);
    EXPECT_EQ(group->rank(), rank == 0 ? -1 : rank - 1);
    EXPECT_EQ(group->size(), rank == 0 ? -1 : 3);
    EXPECT_EQ(group->backend(), rank == 0 ? "none" : "threads");
    EXPECT_EQ(group->preferred_device(), at::Device(at::kCPU));
    if (rank != 0) {
      EXPECT_THAT(ranks_met(group->group(), rank), ElementsAre(1, 2, 3));
    }
  });
}

TEST(NewGroup, TR06_RanksAreTranslated) {
  on_ranks_of_size(3, [](int) {
    const ProcessGroupPtr group = new_group({2, 0});
    EXPECT_THAT(group->global_ranks(), ElementsAre(0, 2));
    EXPECT_EQ(group->group_rank_of(2), 1);
    EXPECT_EQ(group->group_rank_of(1), -1);
    EXPECT_EQ(group->global_rank_of(1), 2);
    SHARD_EXPECT_THROW(group->global_rank_of(2), c10::ValueError,
                       "Group rank 2 is not part of group group-1 of 2 ranks");
    SHARD_EXPECT_THROW(group->global_rank_of(-1), c10::ValueError, "Group rank -1");
  });
}

TEST(NewGroup, TR39_TwoAtTheSameTimeByTheirMembersOnly) {
  on_ranks_of_size(4, [](int rank) {
    const std::vector<int> own = rank < 2 ? std::vector{0, 1} : std::vector{2, 3};
    const ProcessGroupPtr group = new_group(own, {.local_synchronization = true});
    EXPECT_EQ(group->rank(), rank % 2);
    EXPECT_EQ(group->name(), rank < 2 ? "ranks-0,1-1" : "ranks-2,3-1");
    EXPECT_EQ(ranks_met(group->group(), rank), own);
  });
}

TEST(NewGroup, TheSameRanksMayHaveSeveral) {
  on_ranks_of_size(3, [](int rank) {
    if (rank == 2) return;
    const ProcessGroupPtr first = new_group({0, 1}, {.local_synchronization = true}),
                          second = new_group({0, 1}, {.local_synchronization = true});
    EXPECT_EQ(second->name(), "ranks-0,1-2");
    EXPECT_THAT(ranks_met(second->group(), rank), ElementsAre(0, 1));
    EXPECT_THAT(ranks_met(first->group(), rank), ElementsAre(0, 1));
  });
}

TEST(NewGroup, LocalGroupsDoNotCountForOthers) {
  on_ranks_of_size(3, [](int rank) {
    if (rank == 0) new_group({0}, {.local_synchronization = true});
    const ProcessGroupPtr all = new_group({0, 1, 2});
    EXPECT_EQ(all->name(), "group-1");
    EXPECT_THAT(ranks_met(all->group(), rank), ElementsAre(0, 1, 2));
  });
}

TEST(NewGroup, WrongRanksAreRefused) {
  on_ranks_of_size(2, [](int) {
    SHARD_EXPECT_THROW(new_group({}), c10::ValueError, "a group needs a rank");
    SHARD_EXPECT_THROW(new_group({0, 2}), c10::ValueError, "within 0 to 1, found 0,2");
    SHARD_EXPECT_THROW(new_group({-1}), c10::ValueError, "within 0 to 1");
    SHARD_EXPECT_THROW(new_group({1, 0, 1}), c10::ValueError, "a rank is named twice: 0,1,1");
  });
}

TEST(NewGroup, ThreadsRefuseOtherBackendsByName) {
  on_ranks_of_size(2, [](int rank) {
    EXPECT_THAT(ranks_met(new_group({0, 1}, {.backend = "threads"})->group(), rank), ElementsAre(0, 1));
    SHARD_EXPECT_THROW(new_group({0, 1}, {.backend = "gloo"}), c10::Error,
                       "ranks that are threads have no backend 'gloo': expected threads");
    SHARD_EXPECT_THROW(new_group({rank}, {.backend = "nccl", .local_synchronization = true}), c10::Error,
                       "no backend 'nccl'");
  });
}

TEST(World, OnlyMembersMakeAGroup) {
  const auto worlds = make_thread_worlds(2);
  EXPECT_EQ(worlds[1]->rank(), 1);
  EXPECT_EQ(worlds[1]->size(), 2);
  SHARD_EXPECT_THROW(worlds[0]->make_group("g", {1}, ""), c10::ValueError, "not a member");
}

// Gloo

std::shared_ptr<World> gloo_world(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size) {
  return make_c10d_world("gloo", store, rank, size, 20s);
}

TEST(C10dWorld, OfOneRankMeetsItself) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const ProcessGroupPtr group = init_process_group(gloo_world(store, 0, 1));
  EXPECT_EQ(group->backend(), "gloo");
  EXPECT_THAT(ranks_met(group->group(), 0), ElementsAre(0));
  destroy_process_group();
}

TEST(C10dWorld, RanksMeetInAStore) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  on_threads(2, [&](int rank) {
    const ProcessGroupPtr group = init_thread_process_group(gloo_world(store, rank, 2));
    EXPECT_EQ(group->rank(), rank);
    EXPECT_EQ(group->size(), 2);
    EXPECT_THAT(ranks_met(group->group(), rank), ElementsAre(0, 1));
  });
}

TEST(C10dWorld, GroupsHaveTheirMembersOnly) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  on_threads(3, [&](int rank) {
    init_thread_process_group(gloo_world(store, rank, 3));
    const ProcessGroupPtr last = new_group({1, 2});
    if (rank != 0) {
      EXPECT_THAT(ranks_met(last->group(), rank), ElementsAre(1, 2));
    }
    if (rank != 2) {
      EXPECT_THAT(ranks_met(new_group({0, 1}, {.local_synchronization = true})->group(), rank), ElementsAre(0, 1));
    }
    EXPECT_THAT(ranks_met(default_group()->group(), rank), ElementsAre(0, 1, 2));
  });
}

TEST(C10dWorld, OneStoreServesSeveralWorldsOneAfterAnother) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  on_threads(2, [&](int rank) {
    for (int round = 0; round < 3; ++round) {
      init_thread_process_group(gloo_world(store, rank, 2));
      EXPECT_THAT(ranks_met(default_group()->group(), rank), ElementsAre(0, 1));
      destroy_process_group();
    }
  });
}

TEST(C10dWorld, ARankThatDoesNotComeIsMissedInTime) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  expect_error(ErrorCode::kPeer, "not respond", [&] { make_c10d_world("gloo", store, 0, 2, 300ms); });
}

TEST(C10dWorld, ARankThatIsSilentIsNamed) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::latch ended(3);  // Until then no group is destroyed, because that would also end the others' wait.
  on_threads(3, [&](int rank) {
    const ProcessGroupPtr group = init_thread_process_group(gloo_world(store, rank, 3));
    group->set_timeout(500ms);
    const auto gather = [&] { all_gather(group->group(), Bytes(3)); };
    if (rank != 2) {
      expect_error(ErrorCode::kPeer, "rank 2 died or does not respond, in an all-gather", gather);
      expect_error(ErrorCode::kPeer, "a rank died or stopped responding before", gather);
    }
    ended.arrive_and_wait();
  });
}

TEST(C10dWorld, UnknownBackendsAndRanksAreRefused) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  SHARD_EXPECT_THROW(make_c10d_world("ucc", store, 0, 1, 1s), c10::Error, "unknown backend 'ucc'");
  SHARD_EXPECT_THROW(make_c10d_world("gloo", store, 1, 1, 1s), c10::ValueError, "rank 1 of a world of 1");
}

TEST(C10dWorld, NcclWithoutItsPlugInOrAGpuSaysWhatIsMissing) {
  if (c10::impl::hasDeviceGuardImpl(at::kCUDA) && c10::impl::getDeviceGuardImpl(at::kCUDA)->deviceCount() > 0) {
    GTEST_SKIP() << "there is a GPU";
  }
  const auto store = c10::make_intrusive<c10d::HashStore>();
  SHARD_EXPECT_THROW(make_c10d_world("nccl", store, 0, 1, 1s), c10::Error, "backend nccl");
}

TEST(C10dWorld, GroupsMayNameTheirBackend) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  on_threads(2, [&](int rank) {
    init_thread_process_group(gloo_world(store, rank, 2));
    const ProcessGroupPtr group = new_group({0, 1}, {.backend = "gloo"});
    EXPECT_EQ(group->backend(), "gloo");
    EXPECT_THAT(ranks_met(group->group(), rank), ElementsAre(0, 1));
    SHARD_EXPECT_THROW(new_group({0, 1}, {.backend = "ucc"}), c10::Error,
                       "unknown backend 'ucc': expected gloo or nccl");
  });
}

TEST(C10dWorld, OfNcclMakesGroupsOfGlooToo) {
  std::shared_ptr<World> world;
  try {
    world = make_c10d_world("nccl", c10::make_intrusive<c10d::HashStore>(), 0, 1, 20s);
  } catch (const c10::Error& error) {
    GTEST_SKIP() << error.what_without_backtrace();
  }
  EXPECT_EQ(init_process_group(world)->backend(), "nccl");
  const ProcessGroupPtr group = new_group({0}, {.backend = "gloo"});
  EXPECT_EQ(group->backend(), "gloo");
  EXPECT_THAT(ranks_met(group->group(), 0), ElementsAre(0));
  destroy_process_group();
}

TEST(WrapProcessGroup, AGroupOfTheProgramIsOneOfOurs) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  on_threads(2, [&](int rank) {
    auto options = c10d::ProcessGroupGloo::Options::create(20s);
    options->devices.push_back(gloo_device(true));
    const auto gloo = c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, 2, options);
    const ProcessGroupPtr group = wrap_process_group(gloo, "mine", at::kCPU, {4, 7});
    EXPECT_EQ(group->name(), "mine");
    EXPECT_EQ(group->backend(), "gloo");
    EXPECT_EQ(group->group_rank_of(7), 1);
    EXPECT_THAT(ranks_met(group->group(), rank), ElementsAre(0, 1));
    EXPECT_THAT(wrap_process_group(gloo, "mine", at::kCPU)->global_ranks(), ElementsAre(0, 1));
    SHARD_EXPECT_THROW(wrap_process_group(gloo, "mine", at::kCPU, {1}), c10::ValueError, "has 2 ranks, but 1");
  });
}

/// One rank, as a separate program would create it.
ProcessGroupPtr wrapped_alone() {
  auto options = c10d::ProcessGroupGloo::Options::create(20s);
  options->devices.push_back(gloo_device(true));
  const auto gloo = c10::make_intrusive<c10d::ProcessGroupGloo>(c10::make_intrusive<c10d::HashStore>(), 0, 1, options);
  return wrap_process_group(gloo, "mine", at::kCPU);
}

TEST(WrapProcessGroup, CanBeTheDefaultGroup) {
  const ProcessGroupPtr mine = wrapped_alone();
  EXPECT_EQ(init_process_group(mine), mine);
  EXPECT_EQ(default_group(), mine);
  const auto spec = chunk_spec(0, {"rank:0/cpu"});
  const ShardedTensor ones = sharded_tensor::ones(spec, {3, 2});
  StateDict state;
  state.insert("w", ones.as_tensor());
  const StateDict loaded = load_state(save_state(state));  // Asks for the ranks in the default group.
  EXPECT_TRUE(equal(ShardedTensor::of(loaded["w"].toTensor()), ones));
  SHARD_EXPECT_THROW(new_group({0}), c10::Error, "the default group was wrapped without a store for the rendezvous");
  SHARD_EXPECT_THROW(default_store(), c10::Error, "did not connect through a store");
  SHARD_EXPECT_THROW(init_process_group(wrapped_alone()), c10::Error, "twice");
  destroy_process_group();
}

TEST(WrapProcessGroup, AsTheDefaultWithAStoreMakesOtherGroups) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  init_process_group(wrapped_alone(), store);
  EXPECT_THAT(ranks_met(new_group({0})->group(), 0), ElementsAre(0));
  EXPECT_EQ(default_store(), store);
  destroy_process_group();
}

TEST(WrapProcessGroup, OfOtherRanksThanTheWorldsIsNotADefault) {
  const ProcessGroupPtr other = wrap_process_group(wrapped_alone()->c10d_backend(), "other", at::kCPU, {3});
  SHARD_EXPECT_THROW(init_process_group(other), c10::ValueError, "group other cannot be the default: its ranks are 3");
  EXPECT_FALSE(has_default_group());
}

TEST(InitProcessGroup, WithoutALauncherIsAWorldOfOne) {
  const ProcessGroupPtr group = init_process_group();
  EXPECT_EQ(group->backend(), "gloo");
  EXPECT_THAT(ranks_met(group->group(), 0), ElementsAre(0));
  EXPECT_THAT(ranks_met(new_group({0})->group(), 0), ElementsAre(0));
  default_store()->set("key", std::string("value"));
  destroy_process_group();
  SHARD_EXPECT_THROW(init_process_group("ucc"), c10::Error, "unknown backend 'ucc'");
}

}  // namespace
}  // namespace shard::test
