// Agreement between ranks: the local metadata of all become one tensor's, and all ranks throw one rank's error.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "libshard/core/error.h"
#include "shardtorch/errors.h"
#include "shardtorch/sharded_tensor/agree.h"
#include "shardtorch/sharded_tensor/local_metadata.h"
#include "tests/support/distributed/multi_thread_test.h"
#include "tests/support/distributed/sharded_tensor_test.h"

namespace shard::test {
namespace {

using Shards = std::vector<ShardMetadata>;

/// The view of a process outside the group: placements are not compared with its members.
ProcessGroup group_of_others() { return {nullptr, {0}, "of others"}; }

Shard local_shard(int rank, const at::Tensor& tensor) {
  return {tensor, ShardMetadata({rank * 2, 0}, tensor.sizes().vec(), RemoteDevice(rank, at::kCPU))};
}

TEST(LocalMetadata, IsOfAllShardsWithThePropertiesOfTheFirst) {
  const std::vector<Shard> shards{local_shard(1, at::zeros({1, 3}, at::kInt)),
                                  local_shard(1, at::ones({1, 3}, at::kInt))};
  const ShardedTensorMetadata metadata = metadata_of_local_shards(shards, {4, 3}, 1, group_of_others());
  EXPECT_EQ(metadata.shards_metadata, (Shards{shards[0].metadata, shards[1].metadata}));
  EXPECT_EQ(metadata.size, (Sizes{4, 3}));
  EXPECT_EQ(metadata.tensor_properties.dtype, at::kInt);
}

TEST(LocalMetadata, ErrorsNameTheRank) {
  const ProcessGroup group = group_of_others();
  const auto of = [&](std::vector<Shard> shards) { metadata_of_local_shards(shards, {4, 3}, 1, group); };
  SHARD_EXPECT_THROW(of({}), c10::Error, "must have local shards!");
  SHARD_EXPECT_THROW(of({local_shard(1, at::zeros({2, 3}).to_sparse())}), c10::ValueError,
                     "Only torch.strided layout is currently supported, but found Sparse on rank:1!");
  SHARD_EXPECT_THROW(of({local_shard(1, at::zeros({3, 2}).t())}), c10::ValueError,
                     "Only torch.contiguous_format memory_format is currently supported!");
  SHARD_EXPECT_THROW(of({local_shard(1, at::zeros({1, 3})), local_shard(1, at::zeros({1, 3}, at::kInt))}),
                     c10::ValueError,
                     "Local shards' tensor dtype property need to be the same on rank:1! Found one local shard tensor "
                     "dtype=Int, the other local shard tensor dtype=Float.");
  SHARD_EXPECT_THROW(of({local_shard(1, at::zeros({1, 3})), local_shard(1, at::zeros({1, 3}).requires_grad_())}),
                     c10::ValueError, "Local shards' tensor requires_grad property need to be the same on rank:1!");
}

TEST(LocalMetadata, ThePlacementIsCheckedBeforeTheLayout) {
  Shard shard = local_shard(1, at::zeros({2, 3}).to_sparse());
  shard.metadata.placement = std::nullopt;
  SHARD_EXPECT_THROW(metadata_of_local_shards({shard}, {4, 3}, 1, group_of_others()), c10::ValueError,
                     "remote device is None");
}

TEST(LocalMetadata, APlacementOnADifferentRankIsRefused) {
  const ProcessGroup two(std::shared_ptr<Group>(&solo_group(), [](Group*) {}), {1, 2}, "two");
  SHARD_EXPECT_THROW(
      metadata_of_local_shards({local_shard(2, at::zeros({2, 3}))}, {4, 3}, 1, two), c10::ValueError,
      "Local shard metadata's rank does not match with the rank in its process group! Found current rank "
      "in the process group: 1, local ShardMetadata placement's rank: 2");
}

TEST(LocalMetadata, ADeviceThatChangedIsRefused) {
  Shard shard = local_shard(1, at::zeros({2, 3}));
  shard.metadata.placement->set_device(at::Device(at::kCUDA, 1));
  SHARD_EXPECT_THROW(metadata_of_local_shards({shard}, {4, 3}, 1, group_of_others()), c10::ValueError,
                     "Local shard tensor device does not match with local Shard's placement! Found local shard tensor "
                     "device: cpu, local shard metadata placement device: cuda:1");
}

TEST(LocalMetadata, ASizeThatChangedIsRefused) {
  Shard shard = local_shard(1, at::zeros({2, 3}));
  shard.metadata.shard_sizes = {2, 2};
  SHARD_EXPECT_THROW(metadata_of_local_shards({shard}, {4, 3}, 1, group_of_others()), c10::ValueError,
                     "Local shards' tensor size property need to be the same on rank:1!");
}

ShardedTensorMetadata of_rank(int rank, Sizes size = {4, 3}, TensorProperties properties = {}) {
  return {{ShardMetadata({rank * 2, 0}, {2, 3}, RemoteDevice(rank, at::kCPU))}, std::move(size), properties};
}

TEST(MergeMetadata, TR05_ShardsAreInTheOrderOfRanks) {
  ShardedTensorMetadata first = of_rank(0), last = of_rank(1);
  std::swap(first.shards_metadata, last.shards_metadata);
  const ShardedTensorMetadata merged = merge_metadata({first, std::nullopt, last});
  EXPECT_EQ(merged.shards_metadata, (Shards{first.shards_metadata[0], last.shards_metadata[0]}));
  EXPECT_EQ(merged.size, (Sizes{4, 3}));
}

TEST(MergeMetadata, ST051_ATensorWithoutShardsIsRefused) {
  SHARD_EXPECT_THROW(merge_metadata({std::nullopt, std::nullopt}), c10::ValueError,
                     "ShardedTensor have no local shards on all ranks!");
}

TEST(MergeMetadata, ST052_PropertiesAreTheSameOnAllRanks) {
  TensorProperties integers, with_grad, pinned;
  integers.dtype = at::kInt;
  with_grad.requires_grad = true;
  pinned.pin_memory = true;
  const auto other = [](const ShardedTensorMetadata& metadata) {
    merge_metadata({std::nullopt, of_rank(0), std::nullopt, metadata});
  };
  SHARD_EXPECT_THROW(other(of_rank(1, {5, 3})), c10::ValueError,
                     "ShardedTensor global_size property does not match from different ranks! Found "
                     "global_size=[4, 3] on rank:1, and global_size=[5, 3] on rank:3.");
  SHARD_EXPECT_THROW(other(of_rank(1, {4, 3}, integers)), c10::ValueError,
                     "ShardedTensor dtype property does not match from different ranks! Found dtype=Float on rank:1, "
                     "and dtype=Int on rank:3.");
  SHARD_EXPECT_THROW(other(of_rank(1, {4, 3}, with_grad)), c10::ValueError,
                     "ShardedTensor requires_grad property does not match from different ranks!");
  SHARD_EXPECT_THROW(other(of_rank(1, {4, 3}, pinned)), c10::ValueError,
                     "ShardedTensor pin_memory property does not match from different ranks!");
}

TEST(MergeMetadata, ST054_OverlapIsFoundBeforeCoverage) {
  ShardedTensorMetadata larger = of_rank(0);
  larger.shards_metadata[0].shard_sizes[0] = 3;
  SHARD_EXPECT_THROW(merge_metadata({larger, of_rank(1)}), c10::ValueError, "overlap");
}

TEST(MergeMetadata, AnOverlapAndAGapOfOneVolumeAreRefused) {
  ShardedTensorMetadata again = of_rank(0);  // The volume of rank 1's shard, where rank 0's is.
  again.shards_metadata[0].placement = RemoteDevice(1, at::kCPU);
  SHARD_EXPECT_THROW(merge_metadata({of_rank(0), again}), c10::ValueError, "overlap");
}

TEST(MergeMetadata, ST055_GapsAreFound) {
  ShardedTensorMetadata smaller = of_rank(0);
  smaller.shards_metadata[0].shard_sizes[0] = 1;
  SHARD_EXPECT_THROW(merge_metadata({smaller, of_rank(1)}), c10::ValueError, "does not match tensor volume: 12");
}

TEST(Agree, BytesOfAllRanksComeByRank) {
  spawn_threads_and_init_comms(3, [](int rank) {
    const auto all = all_gather_or_throw(default_group()->group(),
                                         [&] { return Bytes(static_cast<std::size_t>(rank), std::byte{7}); });
    ASSERT_EQ(all.size(), 3U);
    EXPECT_EQ(all[2], (Bytes{std::byte{7}, std::byte{7}}));
    EXPECT_TRUE(all[0].empty());
  });
}

/// All ranks must throw an `Exception` that contains `words` if rank 1's step is `fail`.
template <class Exception>
void expect_all_throw(const std::string& words, const std::function<void()>& fail) {
  spawn_threads_and_init_comms(3, [&](int rank) {
    const auto step = [&] {
      if (rank == 1) fail();
    };
    SHARD_EXPECT_THROW(agree(default_group()->group(), step), Exception, words);
    EXPECT_NO_THROW(agree(default_group()->group(), [] {})) << "the group lives on";
  });
}

TEST(Agree, TR13_TheErrorOfOneRankIsThrownByAllWithItsType) {
  expect_all_throw<c10::ValueError>("value 3", [] { TORCH_CHECK_VALUE(false, "value ", 3); });
  expect_all_throw<c10::IndexError>("index", [] { TORCH_CHECK_INDEX(false, "index"); });
  expect_all_throw<c10::TypeError>("type", [] { TORCH_CHECK_TYPE(false, "type"); });
  expect_all_throw<c10::NotImplementedError>("not yet", [] { TORCH_CHECK_NOT_IMPLEMENTED(false, "not yet"); });
  expect_all_throw<AttributeError>("attribute", [] { SHARD_CHECK_ATTRIBUTE(false, "attribute"); });
  expect_all_throw<c10::Error>("plain", [] { TORCH_CHECK(false, "plain"); });
  expect_all_throw<Error>("no file", [] { throw Error(ErrorCode::kNotFound, "no file"); });
}

TEST(Agree, OtherExceptionsBecomeAPlainErrorForOthers) {
  spawn_threads_and_init_comms(2, [](int) {
    SHARD_EXPECT_THROW(agree(default_group()->group(), [] { throw std::bad_alloc(); }), c10::Error, "bad_alloc");
  });
}

TEST(Agree, OfSeveralErrorsTheLowestRanksIsThrown) {
  spawn_threads_and_init_comms(3, [](int rank) {
    const auto step = [&] { TORCH_CHECK(rank == 0, "rank ", rank); };
    SHARD_EXPECT_THROW(agree(default_group()->group(), step), c10::Error, "rank 1");
  });
}

TEST(GatherMetadata, IsEveryMembersOrNothing) {
  spawn_threads_and_init_comms(2, [](int rank) {
    const auto gathered = gather_metadata(default_group()->group(), [&] {
      return rank == 0 ? std::nullopt : std::optional(ShardedTensorMetadata{{ShardMetadata({0}, {3})}, {3}, {}});
    });
    ASSERT_EQ(gathered.size(), 2U);
    EXPECT_EQ(gathered[0], std::nullopt);
    EXPECT_EQ(gathered[1]->size, Sizes{3});
  });
}

TEST(GatherMetadata, TR13_OneRanksErrorReachesAll) {
  spawn_threads_and_init_comms(2, [](int rank) {
    const ProcessGroupPtr group = default_group();
    const Shard good(at::zeros({2}), ShardMetadata({rank * 2}, {2}, RemoteDevice(rank, at::kCPU)));
    const Shard sparse(at::zeros({2}).to_sparse(), good.metadata);
    const auto own = [&] {
      return std::optional(metadata_of_local_shards({rank == 1 ? sparse : good}, {4}, rank, *group));
    };
    SHARD_EXPECT_THROW(gather_metadata(group->group(), own), c10::ValueError, "found Sparse on rank:1!");
  });
}

}  // namespace
}  // namespace shard::test
