// Sharding specs: chunks, boxes, and which spec a list of boxes has.

#include "shardtorch/sharded_tensor/sharding_spec.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "tests/support/distributed/layouts.h"
#include "tests/support/distributed/multi_thread_test.h"
#include "tests/support/distributed/sharded_tensor_test.h"

namespace shard::test {
namespace {

using Shards = std::vector<ShardMetadata>;

Shards chunks(std::int64_t dim, const std::vector<int>& ranks, const Sizes& size) {
  return chunk_spec(dim, cpu_placements(ranks))->build_metadata(size, {}).shards_metadata;
}

Sizes sizes_along(const Shards& shards, std::size_t dim) {
  Sizes sizes;
  for (const ShardMetadata& shard : shards) sizes.push_back(shard.shard_sizes[dim]);
  return sizes;
}

Sizes offsets_along(const Shards& shards, std::size_t dim) {
  Sizes offsets;
  for (const ShardMetadata& shard : shards) offsets.push_back(shard.shard_offsets[dim]);
  return offsets;
}

TEST(ChunkSpec, OfAGroupHasAChunkForEachMember) {
  spawn_threads_and_init_comms(3, [](int) {
    EXPECT_EQ(chunk_spec(1)->str(), chunk_spec(1, cpu_placements({0, 1, 2}))->str());
    EXPECT_EQ(chunk_spec(-1, nullptr, at::kMeta)->str(),
              "ChunkShardingSpec(dim=-1, placements=[rank:0/meta, rank:1/meta, rank:2/meta])");
    const ProcessGroupPtr some = new_group({0, 2});
    EXPECT_EQ(chunk_spec(0, some, at::kCPU)->str(), chunk_spec(0, cpu_placements({0, 2}))->str());
    default_group()->barrier();
  });
  SHARD_EXPECT_THROW(chunk_spec(0), c10::ValueError, "Default process group has not been initialized");
}

TEST(ChunkShardingSpec, TR01_ChunksAreOfTheSizeRoundedUp) {
  EXPECT_EQ(sizes_along(chunks(0, {0, 1, 2, 3}, {10}), 0), (Sizes{3, 3, 3, 1}));
  EXPECT_EQ(sizes_along(chunks(0, {0, 1, 2, 3}, {9}), 0), (Sizes{3, 3, 3, 0}));
  EXPECT_EQ(sizes_along(chunks(0, {0, 1, 2, 3}, {23}), 0), (Sizes{6, 6, 6, 5}));
  EXPECT_EQ(sizes_along(chunks(0, {0, 1, 2, 3}, {2}), 0), (Sizes{1, 1, 0, 0}));
  EXPECT_EQ(sizes_along(chunks(0, {0, 0, 1, 1, 1, 2, 2, 2, 3, 3}, {24}), 0), (Sizes{3, 3, 3, 3, 3, 3, 3, 3, 0, 0}));
}

TEST(ChunkShardingSpec, TR02_EmptyChunksKeepTheirOtherDimensions) {
  EXPECT_EQ(chunks(0, {0, 1, 2, 3}, {9, 12})[3], ShardMetadata({9, 0}, {0, 12}, "rank:3/cpu"));
}

TEST(ChunkShardingSpec, TR03_OffsetsGoPastTheEnd) {
  EXPECT_EQ(offsets_along(chunks(0, {0, 1, 2, 3}, {2, 20}), 0), (Sizes{0, 1, 2, 3}));
  EXPECT_EQ(offsets_along(chunks(0, {0, 1, 2, 3}, {5}), 0), (Sizes{0, 2, 4, 6}));
}

TEST(ChunkShardingSpec, TR04_ANegativeDimensionCountsFromTheEnd) {
  EXPECT_EQ(chunks(-1, {0, 1}, {6, 4}), chunks(1, {0, 1}, {6, 4}));
  EXPECT_EQ(chunks(-2, {0, 1}, {6, 4}), chunks(0, {0, 1}, {6, 4}));
  EXPECT_FALSE(*chunk_spec(-2, cpu_placements({0})) == *chunk_spec(0, cpu_placements({0})));
}

TEST(ChunkShardingSpec, ST024_ADimensionIsSeenToBeWrongWhenASizeIsKnown) {
  for (const std::int64_t dim : {2, 3, 4, -3, -4, -5}) {
    const ShardingSpecPtr spec = chunk_spec(dim, {"rank:1/cuda:1"});
    SHARD_EXPECT_THROW(spec->build_metadata({10, 20}, {}), c10::ValueError,
                       "Invalid sharding dim: " + std::to_string(dim));
  }
  SHARD_EXPECT_THROW(chunk_spec(0, cpu_placements({0}))->build_metadata({}, {}), c10::ValueError,
                     "Invalid sharding dim: 0");
}

TEST(ChunkShardingSpec, ST024_NamedDimensionsAreNotSupported) {
  SHARD_EXPECT_THROW(ChunkShardingSpec("H", {"rank:1/cuda:1"}), c10::NotImplementedError,
                     "ChunkShardingSpec does not support named dimension yet!");
}

TEST(ChunkShardingSpec, NeedsAPlacementAndASize) {
  SHARD_EXPECT_THROW(chunk_spec(0, {}), c10::ValueError, "needs a placement");
  SHARD_EXPECT_THROW(chunk_spec(0, cpu_placements({0, 1}))->build_metadata({-5}, {}), c10::ValueError,
                     "size should be >= 0");
}

TEST(ChunkShardingSpec, TR05_ShardsAreInTheOrderOfPlacements) {
  const Shards shards = chunks(1, {2, 0, 1}, {2, 6});
  EXPECT_EQ(shards, (Shards{ShardMetadata({0, 0}, {2, 2}, "rank:2/cpu"), ShardMetadata({0, 2}, {2, 2}, "rank:0/cpu"),
                            ShardMetadata({0, 4}, {2, 2}, "rank:1/cpu")}));
}

TEST(ChunkShardingSpec, MetadataHasSizeAndProperties) {
  const TensorProperties properties{at::kInt, at::kStrided, true, at::MemoryFormat::Preserve, false};
  const ShardedTensorMetadata metadata = chunk_spec(0, cpu_placements({0}))->build_metadata({3, 4}, properties);
  EXPECT_EQ(metadata.size, (Sizes{3, 4}));
  EXPECT_EQ(metadata.tensor_properties, properties);
}

TEST(ChunkShardingSpec, IsEqualByDimensionAndPlacements) {
  EXPECT_TRUE(*chunk_spec(0, cpu_placements({0, 1})) == *chunk_spec(0, cpu_placements({0, 1})));
  EXPECT_FALSE(*chunk_spec(0, cpu_placements({0, 1})) == *chunk_spec(1, cpu_placements({0, 1})));
  EXPECT_FALSE(*chunk_spec(0, cpu_placements({0, 1})) == *chunk_spec(0, cpu_placements({1, 0})));
  EXPECT_EQ(chunk_spec(-1, cpu_placements({0, 1}))->str(),
            "ChunkShardingSpec(dim=-1, placements=[rank:0/cpu, rank:1/cpu])");
}

TEST(EnumerableShardingSpec, WrongListsAreRefused) {
  SHARD_EXPECT_THROW(enumerable_spec({}), c10::ValueError, "Empty shard list provided: []");
  SHARD_EXPECT_THROW(enumerable_spec({ShardMetadata({0}, {5}), ShardMetadata({5, 0}, {5, 5})}), c10::ValueError,
                     "Found inconsistent ranks for shards: 1 and 2");
  SHARD_EXPECT_THROW(enumerable_spec({ShardMetadata({0}, {5}), ShardMetadata({4}, {5})}), c10::ValueError, "overlap");
}

TEST(EnumerableShardingSpec, TR21_CoverageIsCheckedWhenTheSizeIsKnown) {
  const ShardingSpecPtr spec = enumerable_spec({ShardMetadata({5, 0}, {5, 5}), ShardMetadata({0, 0}, {5, 5})});
  SHARD_EXPECT_THROW(spec->build_metadata({24, 12}, {}), c10::ValueError, "do not cover the entire tensor");
  EXPECT_EQ(offsets_along(spec->build_metadata({10, 5}, {}).shards_metadata, 0), (Sizes{5, 0}));
}

TEST(PlacementSpec, OneDeviceIsAPlacement) {
  EXPECT_EQ(DevicePlacementSpec("rank:1/cuda:1"), DevicePlacementSpec(RemoteDevice(1, at::Device(at::kCUDA, 1))));
  EXPECT_FALSE(DevicePlacementSpec("rank:1/cuda:1") == DevicePlacementSpec("rank:1/cuda:0"));
}

TEST(InferSpec, TR05_ChunksInAnyOrderArePlacedByOffset) {
  Shards shards = chunks(1, {3, 1, 0, 2}, {4, 10});
  std::ranges::rotate(shards, shards.begin() + 2);
  EXPECT_EQ(infer_spec(shards)->str(), chunk_spec(1, cpu_placements({3, 1, 0, 2}))->str());
}

TEST(InferSpec, EmptyChunksAreChunks) {
  EXPECT_EQ(infer_spec(chunks(0, {0, 1, 2, 3}, {2, 20}))->str(), chunk_spec(0, cpu_placements({0, 1, 2, 3}))->str());
}

TEST(InferSpec, OneShardIsABox) { EXPECT_EQ(as_chunk(*infer_spec(chunks(0, {0}, {4, 4}))), nullptr); }

TEST(InferSpec, BoxesCutInTwoDimensionsAreBoxes) {
  const Shards shards{ShardMetadata({0, 0}, {5, 5}, "rank:0/cpu"), ShardMetadata({0, 5}, {5, 5}, "rank:1/cpu"),
                      ShardMetadata({5, 0}, {5, 5}, "rank:2/cpu"), ShardMetadata({5, 5}, {5, 5}, "rank:3/cpu")};
  EXPECT_EQ(infer_spec(shards)->class_name(), "EnumerableShardingSpec");
}

TEST(InferSpec, ChunksOfOtherLengthsAreBoxes) {
  EXPECT_EQ(as_chunk(*infer_spec({ShardMetadata({0}, {4}, "rank:0/cpu"), ShardMetadata({4}, {6}, "rank:1/cpu")})),
            nullptr);
  EXPECT_EQ(as_chunk(*infer_spec({ShardMetadata({0}, {1}, "rank:0/cpu"), ShardMetadata({2}, {2}, "rank:1/cpu")})),
            nullptr)
      << "lengths of a chunk spec in another order";
}

TEST(InferSpec, ChunksWithoutPlacementsAreBoxes) {
  EXPECT_EQ(as_chunk(*infer_spec({ShardMetadata({0}, {4}), ShardMetadata({4}, {4})})), nullptr);
}

TEST(InferSpec, OverlapIsRefused) {
  SHARD_EXPECT_THROW(infer_spec({ShardMetadata({0}, {4}, "rank:0/cpu"), ShardMetadata({3}, {4}, "rank:1/cpu")}),
                     c10::ValueError, "overlap");
}

/// Tries every dimension and length: does a chunk spec over the placements by offset give these boxes?
bool some_chunk_spec_makes(Shards shards) {
  for (std::size_t dim = 0; dim < shards[0].shard_sizes.size(); ++dim) {
    std::ranges::stable_sort(shards, {}, [&](const ShardMetadata& shard) { return shard.shard_offsets[dim]; });
    if (shards.back().shard_offsets[dim] == 0) continue;
    std::vector<RemoteDevice> placements;
    for (const ShardMetadata& shard : shards) placements.push_back(*shard.placement);
    for (std::int64_t length = 0; length < 40; ++length) {
      Sizes size = shards[0].shard_sizes;
      size[dim] = length;
      const ShardingSpecPtr spec = chunk_spec(static_cast<std::int64_t>(dim), placements);
      if (spec->build_metadata(size, {}).shards_metadata == shards) return true;
    }
  }
  return false;
}

/// Chunks, one number of which may have changed, shuffled.
Shards nearly_chunks(std::mt19937& random) {
  const std::size_t dims = 1 + random() % 3;
  Sizes size(dims);
  for (std::int64_t& length : size) length = static_cast<std::int64_t>(random() % 8);
  std::vector<int> ranks(1 + random() % 5);
  for (int& rank : ranks) rank = static_cast<int>(random() % 4);
  Shards shards = chunks(static_cast<std::int64_t>(random() % dims), ranks, size);
  if (random() % 2 == 0) {
    ShardMetadata& shard = shards[random() % shards.size()];
    Sizes& numbers = random() % 2 == 0 ? shard.shard_offsets : shard.shard_sizes;
    numbers[random() % dims] = static_cast<std::int64_t>(random() % 8);
  }
  std::ranges::shuffle(shards, random);
  return shards;
}

TEST(InferSpec, IsAChunkSpecIfOneProducesTheBoxes) {
  std::mt19937 random(99);
  int chunked = 0, boxes = 0;
  for (int round = 0; round < 20'000; ++round) {
    const Shards shards = nearly_chunks(random);
    ShardingSpecPtr spec;
    try {
      spec = infer_spec(shards);
    } catch (const c10::ValueError&) {
      ASSERT_FALSE(some_chunk_spec_makes(shards)) << ShardedTensorMetadata{shards, {}, {}};
      continue;
    }
    ASSERT_EQ(as_chunk(*spec) != nullptr, some_chunk_spec_makes(shards)) << ShardedTensorMetadata{shards, {}, {}};
    (as_chunk(*spec) != nullptr ? chunked : boxes) += 1;
  }
  EXPECT_GT(chunked, 2000);
  EXPECT_GT(boxes, 2000);
}

TEST(ChunkArithmetic, FollowsTorchChunk) {
  EXPECT_EQ(split_size(10, 4), 3);
  EXPECT_EQ(split_size(0, 4), 0);
  EXPECT_EQ(chunked_dim_size(10, 3, 2), 3);
  EXPECT_EQ(chunked_dim_size(10, 3, 3), 1);
  EXPECT_EQ(chunked_dim_size(10, 3, 4), 0);
}

TEST(ChunkArithmetic, NumbersThatMakeNoSenseAreRefused) {
  SHARD_EXPECT_THROW(split_size(10, 0), c10::ValueError, "cannot divide 10 elements into 0 chunks");
  SHARD_EXPECT_THROW(split_size(-10, 2), c10::ValueError, "cannot divide -10 elements into 2 chunks");
  SHARD_EXPECT_THROW(chunked_dim_size(10, 3, -1), c10::ValueError, "chunk -1 of 3 out of 10 elements is none");
}

TEST(ChunkArithmetic, FarPastTheEndThereIsNothing) {
  EXPECT_EQ(chunked_dim_size(10, 3, INT64_MAX), 0);
  EXPECT_EQ(chunked_dim_size(INT64_MAX, INT64_MAX, 2), 0);
  EXPECT_EQ(chunked_dim_size(10, 0, 1), 0);
}

TEST(ChunkArithmetic, ChunksOfRanksFollowTheOrderOfPlacements) {
  const ChunkShardingSpec spec(0, cpu_placements({2, 3, 1, 0}));
  EXPECT_EQ(chunk_of_rank(10, spec, 2), std::pair(std::int64_t{0}, std::int64_t{3}));
  EXPECT_EQ(chunk_of_rank(10, spec, 1), std::pair(std::int64_t{6}, std::int64_t{3}));
  EXPECT_EQ(chunk_of_rank(10, spec, 0), std::pair(std::int64_t{9}, std::int64_t{1}));
  EXPECT_EQ(chunk_of_rank(2, spec, 0), std::pair(std::int64_t{2}, std::int64_t{0}));
  SHARD_EXPECT_THROW(chunk_of_rank(10, spec, 5), c10::Error, "current_rank not in the placement.");
}

TEST(NarrowTensor, IsAViewOfTheShard) {
  const at::Tensor tensor = at::arange(20).view({4, 5});
  const at::Tensor part = narrow_tensor(tensor, ShardMetadata({1, 2}, {2, 3}));
  EXPECT_TRUE(part.equal(tensor.slice(0, 1, 3).slice(1, 2, 5)));
  EXPECT_TRUE(part.is_alias_of(tensor));
}

TEST(NarrowTensor, ByIndex) {
  const at::Tensor tensor = at::arange(20).view({4, 5});
  EXPECT_TRUE(narrow_tensor_by_index(tensor, {1, 2}, {2, 3}).equal(tensor.slice(0, 1, 3).slice(1, 2, 5)));
  SHARD_EXPECT_THROW(narrow_tensor_by_index(tensor, {1}, {2}), c10::ValueError,
                     "cannot narrow a tensor of 2 dimensions to offsets [1] and sizes [2]");
}

TEST(NarrowTensor, DimensionsOfFullSizeStay) {
  const at::Tensor tensor = at::arange(20).view({4, 5});
  EXPECT_TRUE(narrow_tensor(tensor, ShardMetadata({0, 0}, {4, 5})).is_same(tensor));
}

TEST(NarrowTensor, TR03_AnEmptyShardPastTheEndIsEmpty) {
  EXPECT_EQ(narrow_tensor(at::zeros({5, 2}), ShardMetadata({6, 0}, {0, 2})).sizes(), at::IntArrayRef({0, 2}));
}

}  // namespace
}  // namespace shard::test
