// Destinations of the elements of ShardedTensors on thread ranks: gathered, scattered, resharded.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shardtorch/sharded_tensor/agree.h"
#include "shardtorch/sharded_tensor/factories.h"
#include "shardtorch/sharded_tensor/ops.h"
#include "shardtorch/sharded_tensor/sharded_tensor.h"
#include "tests/shardtorch/tensor_fixture.h"

namespace shard::test {
namespace {

using Agree = Tensor;
using Gather = Tensor;
using Scatter = Tensor;
using Reshard = Tensor;

SHARD_RANKS_TEST(Agree, WhateverOneRankThrowsAllThrow) {
  const auto step = [&] {
    if (rank() == 1) throw 7;
  };
  EXPECT_THAT([&] { agree(default_group()->group(), step); },
              Refuses<c10::Error>("an exception not derived from std::exception"));
}

SHARD_RANKS_TEST(Agree, TheFirstArgumentThatDiffersIsNamed) {
  const auto words = [&]() -> std::vector<std::string> { return {"a=1", c10::str("b=", rank() / 3), "c=0"}; };
  EXPECT_THAT([&] { agree_on(default_group()->group(), words); },
              Refuses<c10::ValueError>(rank() == 3 ? "b=1 on rank: 3 does not match with b=0 on rank: 0"
                                                   : "does not match with b=1 on rank: 3"));
  agree_on(default_group()->group(), [] { return std::vector<std::string>{"a=1"}; });
}

SHARD_RANKS_TEST(Gather, ToReturnsTheWholeOnOneRank) {
  const at::Tensor whole = counted({9, 3}, at::kLong);
  const ShardedTensor st = cut(whole, chunks(0, {2, 0, 3, 1}));
  for (int dst = 0; dst < 4; ++dst) {
    const at::Tensor out = st.gather_to(dst);
    ASSERT_EQ(out.defined(), rank() == dst);
    EXPECT_TRUE(!out.defined() || tensors_equal(out, whole));
  }
  EXPECT_THAT([&] { st.gather_to(4); }, Refuses<c10::ValueError>("Destination rank 4 is not in a group of 4"));
  EXPECT_THAT([&] { st.gather_to(rank() == 1 ? 1 : 0); }, Refuses<c10::ValueError>("does not match with dst="));
  const ProcessGroupPtr some = new_group({1, 3});
  const at::Tensor of_some = cut(whole, chunk_spec(0, some, at::kCPU), some).gather_to(1);
  EXPECT_EQ(of_some.defined(), rank() == 3);
}

SHARD_RANKS_TEST(Gather, UnevenAndEmptyShards) {
  const at::Tensor whole = counted({9, 3});
  const at::Tensor out = gathered(cut(whole, chunks(0, {2, 0, 3, 1})), 1, at::kFloat);
  EXPECT_EQ(out.defined(), rank() == 1);
  if (out.defined()) {
    EXPECT_TRUE(tensors_equal(out, whole));
  }
}

SHARD_RANKS_TEST(Gather, ST015_SeveralShardsAndRanksWithout) {
  const at::Tensor whole = counted({10, 20});
  const at::Tensor out = gathered(cut(whole, chunks(0, {0, 0, 1, 1, 2})), 3, at::kFloat);
  if (rank() == 3) {
    EXPECT_TRUE(tensors_equal(out, whole));
  }
}

SHARD_RANKS_TEST(Gather, ColumnsAndQuarters) {
  const at::Tensor whole = counted({10, 10});
  for (const ShardingSpecPtr& spec : {chunks(1, {3, 2, 1, 0}), enumerable_spec(quarters({0, 1, 0, 3}))}) {
    const at::Tensor out = gathered(cut(whole, spec), 0, at::kFloat);
    if (rank() == 0) {
      EXPECT_TRUE(tensors_equal(out, whole));
    }
  }
}

SHARD_RANKS_TEST(Gather, TR14_ElementsAreTransferredUnchanged) {
  const at::Tensor numbers = counted({8, 2}, at::kLong) + (std::int64_t{1} << 60);
  const at::Tensor longs = gathered(cut(numbers, chunks(0, {0, 1, 2, 3})), 0, at::kLong);
  const at::Tensor exact = counted({8, 2}, at::kDouble) + 1e-12;
  const at::Tensor doubles = gathered(cut(exact, chunks(0, {0, 1, 2, 3})), 0, at::kDouble);
  if (rank() != 0) return;
  EXPECT_TRUE(at::equal(longs, numbers));
  EXPECT_TRUE(at::equal(doubles, exact));
}

SHARD_RANKS_TEST(Gather, DtypeSelectsTheTransferredDtype) {
  const ShardedTensor st = cut(at::full({4}, 1.0001, at::kDouble), chunks(0, {0, 1, 2, 3}));
  const at::Tensor out = gathered(st, 0, at::kDouble, {.dtype = at::kHalf});
  if (rank() == 0) {
    EXPECT_TRUE(at::equal(out, at::ones({4}, at::kDouble)));
  }
}

SHARD_RANKS_TEST(Gather, OutMayHaveADifferentDtype) {
  const at::Tensor whole = counted({8, 2});
  const at::Tensor out = gathered(cut(whole, chunks(0, {0, 1, 2, 3})), 2, at::kLong, {.enforce_dtype = true});
  if (rank() == 2) {
    EXPECT_TRUE(at::equal(out, whole.to(at::kLong)));
  }
}

SHARD_RANKS_TEST(Gather, OutMayHaveHoles) {
  const ShardedTensor st = cut(counted({4, 2}), chunks(0, {0, 1, 2, 3}));
  at::Tensor behind = at::zeros({4, 4});
  st.gather(0, rank() == 0 ? std::optional(behind.slice(1, 0, 4, 2)) : std::nullopt);
  if (rank() == 0) {
    EXPECT_TRUE(at::equal(behind.select(1, 2), counted({4, 2}).select(1, 1)));
  }
}

SHARD_RANKS_TEST(Gather, TR29_TheDestinationIsARankOfTheGroup) {
  const ProcessGroupPtr group = new_group({1, 3});
  const at::Tensor whole = counted({4, 3});
  const at::Tensor out = gathered(cut(whole, chunks(0, {3, 1}), group), 1, at::kFloat);
  EXPECT_EQ(out.defined(), rank() == 3);
  if (rank() == 3) {
    EXPECT_TRUE(tensors_equal(out, whole));
  }
}

SHARD_RANKS_TEST(Gather, AWrongOutOfOneRankIsThrownByAll) {
  const ShardedTensor st = cut(counted({4, 3}), chunks(0, {0, 1, 2, 3}));
  EXPECT_THAT([&] { st.gather(1); },
              Refuses<c10::ValueError>("Argument ``dst_tensor`` must be specified on destination rank 1"));
  const at::Tensor small = at::zeros({3, 3}), right = at::zeros({4, 3});
  EXPECT_THAT([&] { st.gather(1, rank() == 1 ? std::optional(small) : std::nullopt); },
              Refuses<c10::ValueError>("Argument ``dst_tensor`` have size [3, 3],but should be [4, 3]"));
  EXPECT_THAT([&] { st.gather(1, rank() != 3 ? std::optional(right) : std::nullopt); },
              Refuses<c10::ValueError>("Argument ``dst_tensor`` must NOT be specified on non-destination ranks."));
  EXPECT_THAT([&] { st.gather(4); }, Refuses<c10::ValueError>("Destination rank 4 is not in a group of 4"));
}

SHARD_RANKS_TEST(Gather, RefusesAnOutputThatCannotHoldTheElements) {
  const ShardedTensor sharded = cut(counted({4, 3}), chunks(0, {0, 1, 2, 3}));
  const auto gather_into = [&](const at::Tensor& out) {
    sharded.gather(0, rank() == 0 ? std::optional(out) : std::nullopt);
  };
  EXPECT_THAT(
      [&] {
        gather_into(at::zeros({1, 3}).expand({4, 3}));
      },
      Refuses<c10::Error>("more than one element of the written-to tensor refers to a single memory location"));
  EXPECT_THAT([&] { gather_into(at::empty({4, 3}, at::kMeta)); }, Refuses<c10::ValueError>("is a meta tensor"));
}

SHARD_RANKS_TEST(Gather, ADestinationOrDtypeOfOneRankIsRefusedByAll) {
  const ShardedTensor st = cut(counted({4, 3}), chunks(0, {0, 1, 2, 3}));
  const int dst = rank() == 3 ? 3 : 0;
  EXPECT_THAT([&] { gathered(st, dst, at::kFloat); },
              Refuses<c10::ValueError>(rank() == 3 ? "dst=3 on rank: 3 does not match with dst=0 on rank: 0"
                                                   : "dst=0 on rank: " + std::to_string(rank()) +
                                                         " does not match with dst=3 on rank: 3"));
  const ShardedTensor::GatherOptions options{.dtype = rank() == 1 ? at::kHalf : at::kFloat};
  EXPECT_THAT([&] { gathered(st, 0, at::kFloat, options); }, Refuses<c10::ValueError>("does not match with dtype="));
}

SHARD_RANKS_TEST(Gather, WhereItThrowsNothingWasWritten) {
  const ShardedTensor st = cut(at::ones({4, 3}), chunks(0, {0, 1, 2, 3}));
  const at::Tensor out = at::zeros({4, 3});
  EXPECT_THROW(st.gather(0, rank() % 3 == 0 ? std::optional(out) : std::nullopt), c10::ValueError);
  EXPECT_TRUE(at::equal(out, at::zeros({4, 3})));
}

SHARD_RANKS_TEST(Gather, TheGroupIsUsableAfterAnError) {
  const ShardedTensor st = cut(counted({4, 3}), chunks(0, {0, 1, 2, 3}));
  EXPECT_THROW(st.gather(1), c10::ValueError);
  const at::Tensor out = gathered(st, 1, at::kFloat);
  if (rank() == 1) {
    EXPECT_TRUE(tensors_equal(out, counted({4, 3})));
  }
}

SHARD_RANKS_TEST(Scatter, ST005_TheElementsAreTheSources) {
  const at::Tensor whole = counted({9, 12});
  const ShardingSpecPtr spec = chunks(0, {0, 1, 2, 3});
  const ShardedTensor st = shard_tensor(rank() == 2 ? whole : at::zeros({9, 12}), spec, 2);
  EXPECT_EQ(st.sharding_spec(), spec);
  EXPECT_EQ(st.local_tensor().sizes(), (Sizes{rank() == 3 ? 0 : 3, 12}));
  expect_parts_of(st, whole);
}

SHARD_RANKS_TEST(Scatter, TR03_FiveRowsOverFourRanks) {
  const ShardedTensor st = shard_tensor(counted({5, 2}), chunks(0, {3, 2, 1, 0}));
  EXPECT_EQ(st.local_tensor().size(0), (Sizes{0, 1, 2, 2}[static_cast<std::size_t>(rank())]));
  expect_parts_of(st, counted({5, 2}));
}

SHARD_RANKS_TEST(Scatter, TR28_TheShardsAreLeavesWithTheInputsProperties) {
  const at::Tensor whole = counted({8, 6}, at::kDouble).requires_grad_();
  const ShardedTensor st = shard_tensor(whole, chunks(1, {0, 1, 2, 3}));
  EXPECT_TRUE(st.requires_grad());
  EXPECT_TRUE(st.local_tensor().requires_grad());
  EXPECT_TRUE(st.local_tensor().is_leaf());
  EXPECT_EQ(st.dtype(), at::kDouble);
  expect_parts_of(st, whole.detach());
}

SHARD_RANKS_TEST(Scatter, TR29_TheSourceIsARankOfTheGroup) {
  const ProcessGroupPtr group = new_group({1, 3});
  const at::Tensor whole = counted({5, 2});
  const ShardedTensor st = shard_tensor(rank() == 3 ? whole : at::zeros({5, 2}), chunks(0, {3, 1, 3}), 1, group);
  EXPECT_EQ(st.local_shards().size(), (std::vector<std::size_t>{0, 1, 0, 2}[static_cast<std::size_t>(rank())]));
  expect_parts_of(st, whole);
}

SHARD_RANKS_TEST(Scatter, ST006_RanksThatDifferAreRefusedByAll) {
  const ShardingSpecPtr spec = chunks(0, {0, 1, 2, 3});
  const at::Tensor whole = counted({12, 12});
  EXPECT_THAT([&] { shard_tensor(whole, spec, rank()); }, Refuses<c10::ValueError>("does not match with src_rank"));
  EXPECT_THAT(
      [&] {
        shard_tensor(whole, chunks(0, {rank(), 1, 2, 3}));
      },
      Refuses<c10::ValueError>("does not match with sharding_spec"));
  EXPECT_THAT([&] { shard_tensor(whole.t(), spec); }, Refuses<c10::ValueError>("not a contiguous Tensor"));
  EXPECT_THAT([&] { shard_tensor(whole, spec, 4); }, Refuses<c10::ValueError>("Source rank 4 is not in a group of 4"));
  EXPECT_THAT(
      [&] {
        shard_tensor(whole, enumerable_spec(quarters({0, 1, 2, 3})));
      },
      Refuses<c10::NotImplementedError>("not implemented yet!"));
}

SHARD_RANKS_TEST(Scatter, TR13_OneRankAloneIsWrong) {
  const at::Tensor whole = counted({12, 12});
  EXPECT_THAT(
      [&] {
        shard_tensor(rank() == 3 ? whole.t() : whole, chunks(0, {0, 1, 2, 3}));
      },
      Refuses<c10::ValueError>("not a contiguous Tensor"));
  EXPECT_THAT(
      [&] {
        shard_tensor(whole, chunks(0, {0, 1, 2, 3}), rank() == 3 ? 1 : 0);
      },
      Refuses<c10::ValueError>("does not match with src_rank"));
}

SHARD_RANKS_TEST(Scatter, IfSourceAndSpecDifferTheErrorNamesTheSource) {
  const int source = rank() == 3 ? 1 : 0;
  EXPECT_THAT(
      [&] {
        shard_tensor(counted({12, 12}), chunks(rank() == 3 ? 1 : 0, {0, 1, 2, 3}), source);
      },
      Refuses<c10::ValueError>("does not match with src_rank"));
  EXPECT_THAT(
      [&] {
        shard_tensor(counted({10, 10}), enumerable_spec(quarters({0, 1, 2, 3})), source);
      },
      Refuses<c10::ValueError>("does not match with src_rank"));
  EXPECT_THAT(
      [&] {
        shard_tensor(counted({10, 10}), enumerable_spec(quarters({0, 1, 2, 3})));
      },
      Refuses<c10::NotImplementedError>("not implemented yet"));
}

SHARD_RANKS_TEST(Scatter, ATensorOfOneRankThatDiffersIsRefusedByAll) {
  const auto refused = [&](const at::Tensor& other, const std::string& text) {
    const at::Tensor own = rank() == 2 ? other : counted({12, 12});
    EXPECT_THAT([&] { shard_tensor(own, chunks(0, {0, 1, 2, 3})); }, Refuses<c10::ValueError>(text));
  };
  refused(counted({12, 13}), "does not match with size=[12, 1");
  refused(counted({12, 12}, at::kDouble), "does not match with dtype=");
  refused(counted({12, 12}).requires_grad_(), "does not match with requires_grad=");
  expect_parts_of(shard_tensor(counted({12, 12}), chunks(0, {0, 1, 2, 3})), counted({12, 12}));
}

SHARD_RANKS_TEST(Scatter, ProcessesOutsideOfTheGroupLookAtTheirArgumentsToo) {
  const ProcessGroupPtr group = new_group({1, 3});
  EXPECT_THAT([&] { shard_tensor(counted({4}), nullptr, 0, group); },
              Refuses<c10::ValueError>("Expecting ShardingSpec but got: None"));
  EXPECT_THAT(
      [&] {
        shard_tensor(counted({4, 2}).t(), chunks(0, {1, 3}), 0, group);
      },
      Refuses<c10::ValueError>("not a contiguous Tensor"));
}

SHARD_RANKS_TEST(Scatter, ASpecNeedsNoOwner) {
  const ChunkShardingSpec spec(0, cpu_placements());
  const ShardedTensor st = spec.shard(counted({8, 2}), 0, nullptr);
  expect_parts_of(st, counted({8, 2}));
  EXPECT_EQ(*st.sharding_spec(), spec);
}

std::vector<std::vector<int>> all_orders(int ranks) {
  std::vector<int> order(static_cast<std::size_t>(ranks));
  std::iota(order.begin(), order.end(), 0);
  std::vector<std::vector<int>> orders;
  do orders.push_back(order);
  while (std::ranges::next_permutation(order).found);
  return orders;
}

/// From every dim to every dim (negative ones too), from the given order of owners to all others.
void expect_reshards(const at::Tensor& whole, const std::vector<int>& before,
                     const std::vector<std::vector<int>>& orders) {
  for (std::int64_t from = -whole.dim(); from < whole.dim(); ++from) {
    for (std::int64_t to = -whole.dim(); to < whole.dim(); ++to) {
      for (const std::vector<int>& after : orders) {
        ShardedTensor st = cut(whole, chunks(from, before));
        EXPECT_TRUE(st.reshard(chunks(to, after)).is_same(st));
        SCOPED_TRACE(c10::str("from ", from, " to ", to, " in ", at::ArrayRef<int>(after), " of ", whole.sizes()));
        ASSERT_EQ(st.local_shards().size(), 1u);
        EXPECT_EQ(*st.sharding_spec(), *chunks(to, after));
        expect_parts_of(st, whole);
        const at::Tensor own = st.local_tensor();
        EXPECT_EQ(own.size(to),
                  chunk_of_rank(whole.size(to), *as_chunk(*st.sharding_spec()), default_group()->rank()).second);
      }
    }
  }
}

class ReshardOf : public ::testing::TestWithParam<Sizes> {};

TEST_P(ReshardOf, TR33_EveryPairOfDimsAndOrdersOfOwners) {
  for (const int ranks : {1, 2, 3}) {
    spawn_threads_and_init_comms(ranks, [&](int) {
      for (const auto& before : all_orders(ranks)) expect_reshards(counted(GetParam()), before, all_orders(ranks));
    });
  }
}
TEST_P(ReshardOf, TR33_FourRanks) {
  spawn_threads_and_init_comms(4, [&](int) { expect_reshards(counted(GetParam()), {2, 0, 3, 1}, all_orders(4)); });
}
INSTANTIATE_TEST_SUITE_P(Sizes, ReshardOf,
                         ::testing::Values(Sizes{7}, Sizes{2}, Sizes{0}, Sizes{12, 8}, Sizes{5, 9}, Sizes{1, 3},
                                           Sizes{4, 3, 5}));

SHARD_RANKS_TEST(Reshard, TR05_AfterwardsShardsAreInTheOrderOfRanks) {
  ShardedTensor st = cut(counted({24, 12}), chunks(0, {0, 1, 3, 2}));
  st.reshard(chunks(1, {2, 3, 1, 0}));
  const Sizes begins{9, 6, 0, 3};
  for (int i = 0; i < 4; ++i) {
    const ShardMetadata& shard = st.metadata().shards_metadata[static_cast<std::size_t>(i)];
    EXPECT_EQ(shard.placement, on(i));
    EXPECT_EQ(shard.shard_offsets, (Sizes{0, begins[static_cast<std::size_t>(i)]}));
  }
}

SHARD_RANKS_TEST(Reshard, OffsetsOfEmptyShardsAreClamped) {
  ShardedTensor st = cut(counted({8, 5}), chunks(0, {0, 1, 2, 3}));
  st.reshard(chunks(1, {0, 1, 2, 3}));
  EXPECT_EQ(st.metadata().shards_metadata[3], ShardMetadata({0, 5}, {8, 0}, on(3)));
}

SHARD_RANKS_TEST(Reshard, NothingMovesIfNothingChanges) {
  ShardedTensor st = cut(counted({8, 5}), chunks(0, {0, 1, 2, 3}));
  const at::Tensor before = st.local_tensor();
  st.reshard(chunks(0, {0, 1, 2, 3}));
  EXPECT_TRUE(st.local_tensor().is_same(before));
}

/// Counts how often ranks wait for each other.
class MeetingsGroup final : public Group {
 public:
  explicit MeetingsGroup(Group& group) : group_(group) {}
  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }
  std::string_view backend() const override { return group_.backend(); }
  void barrier() override { ++meetings, group_.barrier(); }
  void broadcast(std::span<std::byte> data, int root) override { ++meetings, group_.broadcast(data, root); }
  void all_gather(std::span<const std::byte> own, std::span<std::byte> all) override {
    ++meetings, group_.all_gather(own, all);
  }
  void exchange(std::span<const std::span<const std::byte>> to, std::span<const std::span<std::byte>> from) override {
    ++exchanges, group_.exchange(to, from);
  }
  void set_timeout(std::chrono::milliseconds timeout) override { group_.set_timeout(timeout); }
  void abort() noexcept override { group_.abort(); }

  int meetings = 0, exchanges = 0;

 private:
  Group& group_;
};

SHARD_RANKS_TEST(Reshard, RanksAgreeOnceBeforeTheyMoveElements) {
  const auto counting = std::make_shared<MeetingsGroup>(default_group()->group());
  const auto group = std::make_shared<ProcessGroup>(counting, default_group()->global_ranks(), "counting");
  ShardedTensor st = cut(counted({8, 5}), chunks(0, {0, 1, 2, 3}), group);
  const auto meetings_of = [&](const ShardingSpecPtr& spec) {
    counting->meetings = counting->exchanges = 0;
    st.reshard(spec);
    return std::pair(counting->meetings, counting->exchanges);
  };
  EXPECT_EQ(meetings_of(chunks(1, {0, 1, 2, 3})), std::pair(1, 1));
  EXPECT_EQ(meetings_of(chunks(1, {0, 1, 2, 3})).first, 1) << "where nothing changes too";
  requires_grad_(st);
  EXPECT_EQ(meetings_of(chunks(0, {3, 1, 0, 2})), std::pair(1, 1)) << "while gradients are recorded";
  expect_parts_of(st, counted({8, 5}));
}

SHARD_RANKS_TEST(Reshard, DtypeAndRequiresGradStay) {
  ShardedTensor st = shard_tensor(counted({8, 4}, at::kDouble).requires_grad_(), chunks(0, {0, 1, 2, 3}));
  st.reshard(chunks(1, {0, 1, 2, 3}));
  EXPECT_TRUE(st.local_tensor().requires_grad());
  EXPECT_EQ(st.local_tensor().scalar_type(), at::kDouble);
}

SHARD_RANKS_TEST(Reshard, GradientsReturnToTheOriginalShards) {
  const at::Tensor weights = counted({7, 6}, at::kDouble) + 1;
  for (const std::int64_t to : {0, 1}) {  // Chunks that are not equal, and one without elements.
    ShardedTensor st = shard_tensor(counted({7, 6}, at::kDouble), chunks(0, {0, 1, 2, 3}));
    requires_grad_(st);
    const at::Tensor leaf = st.local_tensor();
    const ShardMetadata before = st.local_shards()[0].metadata;
    st.reshard(chunks(to, {3, 1, 0, 2}));
    EXPECT_TRUE(st.requires_grad());
    EXPECT_NE(st.local_tensor().grad_fn(), nullptr);
    (st.local_tensor() * part_of(weights, st.local_shards()[0].metadata)).sum().backward();
    EXPECT_TRUE(tensors_equal(leaf.grad(), part_of(weights, before)));
  }
}

SHARD_RANKS_TEST(Reshard, WhatMovesIsCountedAndNothingIsStaged) {
  ShardedTensor st = cut(counted({8, 8}, at::kDouble), chunks(0, {0, 1, 2, 3}));
  const WireBytes before = default_group()->wire_bytes();
  st.reshard(chunks(1, {0, 1, 2, 3}));
  const WireBytes after = default_group()->wire_bytes();
  EXPECT_EQ(after.direct - before.direct, 2 * 3 * 2 * 2 * 8) << "out and in, three ranks, (2, 2) doubles each";
  EXPECT_EQ(after.staged, 0);
}

SHARD_RANKS_TEST(Reshard, OfAGroupOfSomeRanks) {
  const ProcessGroupPtr group = new_group({1, 3});
  ShardedTensor st = cut(counted({4, 6}), chunks(0, {3, 1}), group);
  st.reshard(chunks(1, {1, 3}));
  EXPECT_EQ(st.metadata().shards_metadata[0].placement, on(1));
  EXPECT_EQ(st.local_shards().size(), rank() % 2 == 1 ? 1u : 0u);
  expect_parts_of(st, counted({4, 6}));
}

SHARD_RANKS_TEST(Reshard, ASpecOfOneRankAloneIsRefusedByAll) {
  ShardedTensor st = cut(counted({8, 5}), chunks(0, {0, 1, 2, 3}));
  const at::Tensor before = st.local_tensor();
  const ShardingSpecPtr right = chunks(1, {0, 1, 2, 3});
  const auto refused = [&](ShardingSpecPtr wrong) {
    return [&st, spec = rank() == 2 ? std::move(wrong) : right] { st.reshard(spec); };
  };
  EXPECT_THAT(refused(nullptr), Refuses<c10::NotImplementedError>("Only ChunkShardingSpec supported for reshard."));
  EXPECT_THAT(refused(chunks(1, {0, 1, 2})),
              Refuses<c10::NotImplementedError>("Only single local shard supported for reshard."));
  EXPECT_THAT(refused(chunks(0, {0, 1, 2, 3})), Refuses<c10::ValueError>("does not match with resharding_spec="));
  EXPECT_THAT(refused(chunks(1, {3, 1, 2, 0})), Refuses<c10::ValueError>("does not match with resharding_spec="));
  EXPECT_TRUE(st.local_tensor().is_same(before));
  expect_parts_of(st.reshard(right), counted({8, 5}));
}

SHARD_RANKS_TEST(Reshard, OnlyChunksWithOneShardPerRank) {
  ShardedTensor st = cut(counted({8, 5}), chunks(0, {0, 1, 2, 3}));
  EXPECT_THAT(
      [&] {
        st.reshard(enumerable_spec(quarters({0, 1, 2, 3})));
      },
      Refuses<c10::NotImplementedError>("Only ChunkShardingSpec supported for reshard."));
  EXPECT_THAT(
      [&] {
        st.reshard(chunks(1, {0, 1, 2}));
      },
      Refuses<c10::NotImplementedError>("Only single local shard supported for reshard."));
  EXPECT_THAT(
      [&] {
        st.reshard(chunks(1, {0, 1, 2, 2}));
      },
      Refuses<c10::NotImplementedError>("Only single local shard supported for reshard."));
  ShardedTensor several = cut(counted({8, 5}), chunks(0, {0, 1, 2, 3, 0}));
  EXPECT_THAT(
      [&] {
        several.reshard(chunks(0, {0, 1, 2, 3}));
      },
      Refuses<c10::NotImplementedError>("Only single local shard supported for reshard."));
}

}  // namespace
}  // namespace shard::test
