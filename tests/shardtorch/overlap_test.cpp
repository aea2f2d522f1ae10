// Whether shards overlap, and whether they cover their tensor.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include "shardtorch/sharded_tensor/metadata.h"
#include "shardtorch/sharded_tensor/sharded_tensor.h"
#include "shardtorch/sharded_tensor/sharding_spec.h"
#include "tests/support/cpu_time.h"
#include "tests/support/distributed/layouts.h"
#include "tests/support/distributed/sharded_tensor_test.h"

namespace shard::test {
namespace {

using Shards = std::vector<ShardMetadata>;

TEST(Overlap, OneShardOrNoneIsFine) {
  EXPECT_NO_THROW(check_no_overlap({}));
  EXPECT_NO_THROW(check_no_overlap({ShardMetadata({3}, {4})}));
}

TEST(Overlap, TwoBoxesAreNamed) {
  SHARD_EXPECT_THROW(check_no_overlap({ShardMetadata({0, 0}, {6, 6}, "rank:0/cpu"), ShardMetadata({5, 5}, {5, 5})}),
                     c10::ValueError,
                     "Shards ShardMetadata(shard_offsets=[0, 0], shard_sizes=[6, 6], placement=rank:0/cpu) and "
                     "ShardMetadata(shard_offsets=[5, 5], shard_sizes=[5, 5], placement=None) overlap");
}

TEST(Overlap, EqualShardsOverlap) {
  SHARD_EXPECT_THROW(check_no_overlap({ShardMetadata({0, 0}, {5, 5}), ShardMetadata({0, 0}, {5, 5})}), c10::ValueError,
                     "overlap");
}

TEST(Overlap, ScalarsOverlap) {
  SHARD_EXPECT_THROW(check_no_overlap({ShardMetadata({}, {}), ShardMetadata({}, {})}), c10::ValueError, "overlap");
}

TEST(Overlap, EmptyShardsOverlapNothing) {
  EXPECT_NO_THROW(check_no_overlap({ShardMetadata({0, 0}, {0, 5}), ShardMetadata({0, 0}, {0, 5})}));
  EXPECT_NO_THROW(check_no_overlap({ShardMetadata({0}, {4}), ShardMetadata({4}, {0}), ShardMetadata({4}, {2})}));
  EXPECT_NO_THROW(check_no_overlap({ShardMetadata({0, 0}, {4, 4}), ShardMetadata({2, 2}, {0, 1})}));
}

TEST(Overlap, NeighboursTouchOnly) {
  EXPECT_NO_THROW(check_no_overlap(quarters(cpu_placements())));
  EXPECT_NO_THROW(check_no_overlap({ShardMetadata({5}, {5}), ShardMetadata({0}, {5})}));
}

TEST(Overlap, OneElementIsFound) {
  SHARD_EXPECT_THROW(check_no_overlap({ShardMetadata({5}, {5}), ShardMetadata({0}, {6})}), c10::ValueError, "overlap");
}

TEST(Overlap, NumbersPastTheEndOfTheirTypeAreFound) {
  SHARD_EXPECT_THROW(check_no_overlap({ShardMetadata({INT64_MAX - 1}, {INT64_MAX}), ShardMetadata({0}, {INT64_MAX})}),
                     c10::ValueError, "overlap");
}

TEST(Overlap, OtherNumbersOfDimensionsAreRefused) {
  SHARD_EXPECT_THROW(check_no_overlap({ShardMetadata({0}, {5}), ShardMetadata({5, 0}, {5, 5})}), c10::ValueError,
                     "Found inconsistent ranks for shards: 1 and 2");
}

bool intersects(const ShardMetadata& a, const ShardMetadata& b) {
  for (std::size_t d = 0; d < a.shard_sizes.size(); ++d) {
    const std::int64_t from = std::max(a.shard_offsets[d], b.shard_offsets[d]);
    const std::int64_t to = std::min(a.shard_offsets[d] + a.shard_sizes[d], b.shard_offsets[d] + b.shard_sizes[d]);
    if (from >= to) return false;
  }
  return true;
}

bool any_two_intersect(const Shards& shards) {
  for (std::size_t i = 0; i < shards.size(); ++i) {
    for (std::size_t k = 0; k < i; ++k) {
      if (intersects(shards[i], shards[k])) return true;
    }
  }
  return false;
}

/// Boxes in a grid of `width` cells a dimension; some are empty.
Shards random_boxes(std::mt19937& random, std::size_t dims, int count, int width) {
  std::uniform_int_distribution<std::int64_t> offset(0, width - 1), size(0, 4);
  Shards shards;
  for (int i = 0; i < count; ++i) {
    Sizes offsets(dims), sizes(dims);
    for (std::size_t d = 0; d < dims; ++d) offsets[d] = offset(random), sizes[d] = size(random);
    shards.emplace_back(offsets, sizes);
  }
  return shards;
}

TEST(Overlap, IsFoundIfTwoBoxesIntersect) {
  std::mt19937 random(1234);
  int with = 0, without = 0;
  for (int round = 0; round < 20'000; ++round) {
    const std::size_t dims = 1 + random() % 4;
    const int width = 3 + static_cast<int>(random() % 30);
    const Shards shards = random_boxes(random, dims, 2 + static_cast<int>(random() % 12), width);
    const bool expected = any_two_intersect(shards);
    (expected ? with : without) += 1;
    bool found = false;
    try {
      check_no_overlap(shards);
    } catch (const c10::ValueError&) {
      found = true;
    }
    ASSERT_EQ(found, expected) << ShardedTensorMetadata{shards, {}, {}};
  }
  EXPECT_GT(with, 2000);
  EXPECT_GT(without, 2000);
}

/// A grid of `count`^dims boxes of 3 elements a side, shuffled.
Shards grid(std::size_t dims, std::int64_t count) {
  Shards shards;
  Sizes cell(dims, 0);
  for (bool more = true; more;) {
    Sizes offsets = cell;
    for (std::int64_t& offset : offsets) offset *= 3;
    shards.emplace_back(offsets, Sizes(dims, 3));
    more = false;
    for (std::size_t d = 0; d < dims && !more; ++d) {
      cell[d] = (cell[d] + 1) % count;
      more = cell[d] != 0;
    }
  }
  std::ranges::shuffle(shards, std::mt19937(1));
  return shards;
}

TEST(Overlap, AHundredThousandShardsTakeLessThanASecond) {
  for (const auto& [dims, count] : {std::pair<std::size_t, std::int64_t>{1, 100'000}, {2, 317}, {3, 47}, {4, 18}}) {
    const Shards shards = grid(dims, count);
    ASSERT_GE(shards.size(), 100'000U);
    EXPECT_LT(cpu_seconds([&] { check_no_overlap(shards); }), cpu_limit(1)) << dims << " dimensions";
  }
}

TEST(Overlap, OneOfAHundredThousandIsFound) {
  Shards shards = grid(3, 47);
  for (std::size_t d = 0; d < 3; ++d) {
    Shards larger = shards;
    auto inner = std::ranges::find(larger, Sizes{60, 60, 60}, &ShardMetadata::shard_offsets);
    inner->shard_sizes[d] = 4;
    SHARD_EXPECT_THROW(check_no_overlap(larger), c10::ValueError, "overlap");
  }
}

// Coverage

TEST(CheckTensor, ACoverIsFine) { EXPECT_NO_THROW(check_tensor(quarters(cpu_placements()), {10, 10})); }

TEST(CheckTensor, TR21_ThreeTexts) {
  SHARD_EXPECT_THROW(check_tensor(quarters(cpu_placements()), {100}), c10::ValueError,
                     "Rank of tensor is 1, but shards rank is 2");
  SHARD_EXPECT_THROW(check_tensor(quarters(cpu_placements()), {10, 9}), c10::ValueError,
                     "Shard offset 5 and length 5 exceeds tensor dim: 9 for shard ShardMetadata(shard_offsets=[0, 5], "
                     "shard_sizes=[5, 5], placement=rank:1/cpu)");
  SHARD_EXPECT_THROW(check_tensor(quarters(cpu_placements()), {10, 11}), c10::ValueError,
                     "Total volume of shards: 100 does not match tensor volume: 110, in other words all the individual "
                     "shards do not cover the entire tensor");
}

TEST(CheckTensor, NumbersThatDoNotFitAreRefused) {
  const std::int64_t huge = std::int64_t{1} << 62;
  SHARD_EXPECT_THROW(check_tensor({ShardMetadata({0, 0}, {1, 1})}, {huge, huge}), c10::ValueError, "does not fit");
  SHARD_EXPECT_THROW(check_tensor({ShardMetadata({INT64_MAX}, {INT64_MAX})}, {10}), c10::ValueError, "exceeds");
}

TEST(CheckTensor, NegativeNumbersAreRefused) {
  SHARD_EXPECT_THROW(check_tensor({ShardMetadata({0}, {1})}, {INT64_MIN}), c10::ValueError,
                     "the size of a tensor should be >= 0, found [-9223372036854775808]");
  ShardMetadata changed({0}, {1});
  changed.shard_sizes = {INT64_MIN};
  SHARD_EXPECT_THROW(check_tensor({changed}, {1}), c10::ValueError, "shard_sizes should be >= 0");
}

/// The volumes of rows 0 and 1, row 1, and row 3 of 4 add up, but row 1 occurs twice and row 2 is missing.
TEST(CheckTensor, AnOverlapAndAGapOfOneVolumeAreRefused) {
  const Shards shards{ShardMetadata({0, 0}, {2, 4}), ShardMetadata({1, 0}, {1, 4}), ShardMetadata({3, 0}, {1, 4})};
  EXPECT_NO_THROW(check_tensor(shards, {4, 4})) << "compares volumes";
  SHARD_EXPECT_THROW(enumerable_spec(shards), c10::ValueError, "overlap");
  std::vector<Shard> local;
  for (const ShardMetadata& each : shards) local.emplace_back(at::zeros(each.shard_sizes), each);
  const ShardedTensorMetadata metadata{shards, {4, 4}, {}};
  SHARD_EXPECT_THROW(ShardedTensorBase::init_from_local_shards_and_global_metadata(local, metadata), c10::ValueError,
                     "overlap");
}

TEST(CheckTensor, ANoughtDimensionalTensorHasOneElement) { EXPECT_NO_THROW(check_tensor({ShardMetadata({}, {})}, {})); }

}  // namespace
}  // namespace shard::test
