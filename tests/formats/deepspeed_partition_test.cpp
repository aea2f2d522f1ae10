// Positions of parameters in ZeRO's buffers: vectors that were computed by hand, and a walk over every element.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "formats/deepspeed/partition.h"

namespace shard::deepspeed {
namespace {

using testing::ElementsAre;

std::vector<std::int64_t> real_lengths(const SlicedGroup& group, std::int64_t ranks) {
  std::vector<std::int64_t> lengths;
  for (std::int64_t rank = 0; rank < ranks; ++rank) lengths.push_back(group.real(rank));
  return lengths;
}

TEST(SlicedGroup, ThreeParametersOnTwoRanks) {
  const SlicedGroup group = SlicedGroup::of(15, 2, 2).value();
  EXPECT_EQ(group.slice, 8);
  EXPECT_THAT(real_lengths(group, 2), ElementsAre(8, 7));
  EXPECT_THAT(group.runs(0, 6), ElementsAre(FlatRun{0, 0, 6, 0}));
  EXPECT_THAT(group.runs(6, 5), ElementsAre(FlatRun{0, 0, 2, 6}, FlatRun{1, 2, 3, 0}));
  EXPECT_THAT(group.runs(11, 4), ElementsAre(FlatRun{1, 0, 4, 3}));
}

TEST(SlicedGroup, ThreeParametersOnFourRanks) {
  const SlicedGroup group = SlicedGroup::of(15, 4, 2).value();
  EXPECT_EQ(group.slice, 4);
  EXPECT_THAT(real_lengths(group, 4), ElementsAre(4, 4, 4, 3));
  EXPECT_THAT(group.runs(0, 6), ElementsAre(FlatRun{0, 0, 4, 0}, FlatRun{1, 4, 2, 0}));
  EXPECT_THAT(group.runs(11, 4), ElementsAre(FlatRun{2, 0, 1, 3}, FlatRun{3, 1, 3, 0}));
}

TEST(SlicedGroup, TheLastRanksMayHoldNothing) {
  EXPECT_THAT(real_lengths(SlicedGroup::of(3, 4, 2).value(), 4), ElementsAre(2, 1, 0, 0));
}

TEST(SlicedGroup, SizesPast64BitsAreRefused) {
  EXPECT_FALSE(SlicedGroup::of(std::numeric_limits<std::int64_t>::max(), 4, 2));
}

TEST(SlicedGroup, RunsCoverEveryElementOnce) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::int64_t> numels(1 + random() % 5);
    for (std::int64_t& numel : numels) numel = static_cast<std::int64_t>(random() % 40);
    const auto ranks = static_cast<std::int64_t>(1 + random() % 7);
    const std::int64_t all = std::accumulate(numels.begin(), numels.end(), std::int64_t{0});
    const SlicedGroup group = SlicedGroup::of(all, ranks, 2).value();
    EXPECT_EQ(group.slice * ranks % (2 * ranks), 0);
    std::int64_t next = 0;  // The group's elements, rank after rank.
    for (const std::int64_t numel : numels) {
      std::int64_t begin = 0;
      for (const FlatRun& run : group.runs(next - begin, numel)) {
        EXPECT_EQ(run.begin, begin);
        EXPECT_EQ(run.rank * group.slice + run.first, next);
        EXPECT_LE(run.first + run.count, group.real(run.rank));
        begin += run.count;
        next += run.count;
      }
      EXPECT_EQ(begin, numel);
    }
  }
}

TEST(Parts, OfThreeParametersOnEightRanks) {
  EXPECT_EQ(part_of(33, 8), 5);
  const std::vector<FlatRun> runs = runs_in_parts(33, 8, 0);
  ASSERT_EQ(runs.size(), 7U);  // The last rank's part is padding.
  EXPECT_EQ(runs[6], (FlatRun{6, 30, 3, 0}));
  EXPECT_EQ(part_of(6, 8), 1);
  EXPECT_EQ(runs_in_parts(6, 8, 5).back(), (FlatRun{5, 5, 1, 5}));
  EXPECT_THAT(runs_in_parts(1, 8, 6), ElementsAre(FlatRun{0, 0, 1, 6}));
  EXPECT_THAT(runs_in_parts(0, 8, 7), ElementsAre());
}

TEST(Parts, OfThreeParametersOnTwoRanks) {
  EXPECT_THAT(runs_in_parts(5, 2, 3), ElementsAre(FlatRun{0, 0, 3, 3}, FlatRun{1, 3, 2, 3}));
}

}  // namespace
}  // namespace shard::deepspeed
