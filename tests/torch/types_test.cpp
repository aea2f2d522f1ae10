// Placements, shards, metadata and its bytes: no group and no communication.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <random>
#include <sstream>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "libshard/core/box.h"
#include "libshard/torch/sharded_tensor/agree.h"
#include "libshard/torch/sharded_tensor/local_metadata.h"
#include "libshard/torch/sharded_tensor/sharded_tensor.h"
#include "tests/support/distributed/sharded_tensor_test.h"

namespace shard::test {
namespace {

using Shards = std::vector<ShardMetadata>;

ProcessGroup group_of_one(int rank) {
  return {std::shared_ptr<Group>(&solo_group(), [](Group*) {}), {rank}, "one"};
}

/// (10, 10) in four quarters, one a rank.
Shards quarters() {
  return {ShardMetadata({0, 0}, {5, 5}, "rank:0/cuda:0"), ShardMetadata({0, 5}, {5, 5}, "rank:1/cuda:1"),
          ShardMetadata({5, 0}, {5, 5}, "rank:2/cuda:2"), ShardMetadata({5, 5}, {5, 5}, "rank:3/cuda:3")};
}

// RemoteDevice

TEST(RemoteDevice, NamesARankAndADevice) {
  const RemoteDevice device("rank:12/cuda:1");
  EXPECT_EQ(device.rank(), 12);
  EXPECT_EQ(device.worker_name(), std::nullopt);
  EXPECT_EQ(device.device(), at::Device(at::kCUDA, 1));
  EXPECT_EQ(device.str(), "rank:12/cuda:1");
}

TEST(RemoteDevice, NamesAWorkerAndADevice) {
  const RemoteDevice device("trainer0/meta");
  EXPECT_EQ(device.worker_name(), "trainer0");
  EXPECT_EQ(device.rank(), std::nullopt);
  EXPECT_EQ(device.device(), at::Device(at::kMeta));
  EXPECT_EQ(device.str(), "trainer0/meta");
}

TEST(RemoteDevice, ADeviceAloneIsOfThisProcess) {
  const RemoteDevice device("cuda");
  EXPECT_EQ(device.worker_name(), std::nullopt);
  EXPECT_EQ(device.rank(), std::nullopt);
  EXPECT_EQ(device.str(), "cuda");
}

TEST(RemoteDevice, WithoutADeviceItIsTheCpu) {
  EXPECT_EQ(RemoteDevice("rank:3").str(), "rank:3/cpu");
  EXPECT_EQ(RemoteDevice("ps0").str(), "ps0/cpu");
}

TEST(RemoteDevice, AWorkerMayBeNamedAsADeviceOrRank) {
  EXPECT_EQ(RemoteDevice("cpu/cuda:0").worker_name(), "cpu");
  EXPECT_EQ(RemoteDevice("rank/cuda:0").worker_name(), "rank");
}

TEST(RemoteDevice, OtherTextsAreRefused) {
  for (const char* const text : {"", "/cpu", "a/b/cpu", "rank:/cpu", "rank:x/cpu", "rank:-1/cpu", "rank:1:2/cpu",
                                 "worker:1/cpu", "cuda:x", "rank:99999999999/cpu", "rank:1/cpu/"}) {
    SHARD_EXPECT_THROW(RemoteDevice{text}, c10::ValueError,
                       "Could not parse remote_device: " + std::string(text) +
                           ". The valid format is '<workername>/<device>' or 'rank:<rank>/<device>' or '<device>'")
        << text;
  }
}

TEST(RemoteDevice, AnUnknownDeviceIsTorchsError) {
  SHARD_EXPECT_THROW(RemoteDevice("rank:0/tape"), c10::Error, "tape");
  SHARD_EXPECT_THROW(RemoteDevice("rank:0/"), c10::Error, "empty");
}

TEST(RemoteDevice, ANegativeRankIsRefused) {
  SHARD_EXPECT_THROW(RemoteDevice(-1, at::kCPU), c10::ValueError,
                     "the rank of a remote device should be >= 0, found -1");
}

TEST(RemoteDevice, IsEqualByAllThreeParts) {
  EXPECT_EQ(RemoteDevice("rank:1/cuda:0"), RemoteDevice(1, at::Device(at::kCUDA, 0)));
  EXPECT_NE(RemoteDevice("cuda"), RemoteDevice("cuda:0"));
  EXPECT_NE(RemoteDevice("rank:1/cpu"), RemoteDevice("rank:2/cpu"));
  EXPECT_NE(RemoteDevice("a/cpu"), RemoteDevice("b/cpu"));
  EXPECT_NE(RemoteDevice("rank:0/cpu"), RemoteDevice("cpu"));
}

TEST(RemoteDevice, HashesAsItCompares) {
  const std::unordered_set<RemoteDevice> devices{"rank:0/cpu", "rank:1/cpu", "a/cpu", "cpu", "rank:0"};
  EXPECT_EQ(devices.size(), 4U);
}

TEST(RemoteDevice, ItsDeviceCanBeSet) {
  RemoteDevice device("rank:2/cuda:2");
  device.set_device(at::kCPU);
  EXPECT_EQ(device.str(), "rank:2/cpu");
}

// ShardMetadata and Shard

TEST(TestShardMetadata, ST059_shard_metadata_init) {
  const ProcessGroup group = group_of_one(0);
  const ShardMetadata nowhere({10}, {0});
  EXPECT_EQ(nowhere.placement, std::nullopt);
  SHARD_EXPECT_THROW(resolve_placement(group, nowhere.placement), c10::ValueError, "remote device is None");
  const ShardMetadata somewhere({10}, {0}, "rank:0/cpu");
  EXPECT_EQ(somewhere.placement, RemoteDevice("rank:0/cpu"));
  EXPECT_EQ(resolve_placement(group, somewhere.placement), std::pair(0, at::Device(at::kCPU)));
}

TEST(TestShardMetadata, ST060_create_shard_with_no_placement) {
  const Shard shard(at::zeros({10}), ShardMetadata({0}, {10}));
  EXPECT_EQ(shard.metadata.placement, std::nullopt);
}

TEST(ShardMetadata, TR19_OffsetsComeFirst) {
  const ShardMetadata shard({10}, {0});
  EXPECT_EQ(shard.shard_offsets, Sizes{10});
  EXPECT_EQ(shard.shard_sizes, Sizes{0});
}

TEST(ShardMetadata, WrongNumbersAreRefused) {
  SHARD_EXPECT_THROW(ShardMetadata({0}, {5, 5}), c10::ValueError,
                     "shard_offsets and shard_sizes should have the same number of elements, found 1 and [5, 5] "
                     "respectively");
  SHARD_EXPECT_THROW(ShardMetadata({0, -1}, {5, 5}), c10::ValueError, "shard_offsets should be >=0");
  SHARD_EXPECT_THROW(ShardMetadata({0, 0}, {5, -5}), c10::ValueError, "shard_sizes should be >= 0");
}

TEST(ShardMetadata, ItsTextNamesAllParts) {
  std::ostringstream text;
  text << ShardMetadata({0, 5}, {5, 5}, "rank:1/cuda:1") << ShardMetadata({0}, {1});
  EXPECT_EQ(text.str(),
            "ShardMetadata(shard_offsets=[0, 5], shard_sizes=[5, 5], placement=rank:1/cuda:1)"
            "ShardMetadata(shard_offsets=[0], shard_sizes=[1], placement=None)");
}

TEST(ShardMetadata, HashesAsItCompares) {
  std::unordered_set<ShardMetadata> shards;
  for (int i = 0; i < 2; ++i) {
    for (const ShardMetadata& shard : quarters()) shards.insert(shard);
  }
  shards.insert(ShardMetadata({0, 0}, {5, 5}));
  EXPECT_EQ(shards.size(), 5U);
}

TEST(TestShardedTensorFromLocalShards, ST047_local_shards) {
  for (int rank = 0; rank < 4; ++rank) {
    const Sizes offsets{rank / 2 * 5, rank % 2 * 5};
    const ShardMetadata metadata(offsets, {5, 5}, "rank:" + std::to_string(rank) + "/cpu");
    const at::Tensor tensor = at::randn({5, 5});
    EXPECT_EQ(Shard(tensor, metadata).metadata, Shard::from_tensor_and_offsets(tensor, offsets, rank).metadata);
    SHARD_EXPECT_THROW(Shard(tensor, ShardMetadata(offsets, {6, 5}, metadata.placement)), c10::ValueError,
                       "Shard tensor size does not match with metadata.shard_lengths! Found shard tensor size: "
                       "[5, 5], metadata.shard_lengths: [6, 5], ");
  }
}

TEST(Shard, SharesItsTensor) {
  const at::Tensor tensor = at::zeros({2});
  EXPECT_TRUE(Shard(tensor, ShardMetadata({0}, {2}, "rank:0/cpu")).tensor.is_same(tensor));
}

TEST(Shard, ST051_AnotherDeviceIsRefused) {
  SHARD_EXPECT_THROW(Shard(at::randn({5}, at::kMeta), ShardMetadata({0}, {5}, "rank:0/cpu")), c10::ValueError,
                     "Local shard tensor device does not match with local Shard's placement! Found local shard tensor "
                     "device: meta, local shard metadata placement device: cpu");
}

TEST(Shard, TR18_SizeIsLookedAtFirstAndLayoutNotAtAll) {
  SHARD_EXPECT_THROW(Shard(at::randn({4}, at::kMeta), ShardMetadata({0}, {5}, "rank:0/cpu")), c10::ValueError,
                     "Shard tensor size does not match");
  const at::Tensor sparse = at::zeros({5, 5}).to_sparse();
  EXPECT_NO_THROW(Shard(sparse, ShardMetadata({0, 0}, {5, 5}, "rank:0/cpu")));
  EXPECT_NO_THROW(Shard(at::zeros({5, 4}).t(), ShardMetadata({0, 0}, {4, 5}, "rank:0/cpu")));
}

// Bytes

constexpr at::ScalarType kDtypes[] = {at::kFloat, at::kDouble,   at::kComplexFloat, at::kComplexDouble,
                                      at::kHalf,  at::kBFloat16, at::kByte,         at::kChar,
                                      at::kShort, at::kInt,      at::kLong,         at::kBool};

TEST(TestShardedTensorMetadata, ST001_serialize_and_deserialize) {
  int cases = 0;
  for (const at::ScalarType dtype : kDtypes) {
    for (const at::Layout layout : {at::kStrided, at::kSparse}) {
      for (const bool requires_grad : {true, false}) {
        for (const auto format :
             {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast, at::MemoryFormat::Preserve}) {
          for (const bool pin_memory : {true, false}) {
            const ShardedTensorMetadata metadata{
                quarters(), {10, 10}, {dtype, layout, requires_grad, format, pin_memory}};
            EXPECT_EQ(deserialize_metadata(serialize(metadata)), metadata) << metadata.tensor_properties;
            ++cases;
          }
        }
      }
    }
  }
  EXPECT_EQ(cases, 288);
}

TEST(MetadataBytes, PlacementsComeBackAsTheyWere) {
  ShardedTensorMetadata metadata;
  metadata.size = {3};
  metadata.shards_metadata = {ShardMetadata({0}, {1}), ShardMetadata({1}, {1}, "worker1/cuda:0"),
                              ShardMetadata({2}, {1}, "cuda")};
  EXPECT_EQ(deserialize_metadata(serialize(metadata)), metadata);
}

TEST(MetadataBytes, OnlyThreeMemoryFormatsHaveANumber) {
  ShardedTensorMetadata metadata;
  metadata.tensor_properties.memory_format = at::MemoryFormat::ChannelsLast3d;
  SHARD_EXPECT_THROW(serialize(metadata), c10::Error, "Invalid torch.memory_format: ");
}

TEST(MetadataBytes, AnUnknownMemoryFormatIsRefused) {
  std::string bytes = serialize(ShardedTensorMetadata());
  // The last numbers are: dtype, layout, requires_grad, memory format, pin_memory, number of shards.
  bytes[bytes.size() - 3 * sizeof(std::int64_t)] = 7;
  SHARD_EXPECT_THROW(deserialize_metadata(bytes), c10::Error, "Invalid torch.memory_format encoding: 7");
}

TEST(MetadataBytes, NumbersThatSerializeDoesNotWriteAreRefused) {
  const std::string bytes = serialize(ShardedTensorMetadata());
  const auto with = [&](std::size_t from_end, std::int64_t number) {
    std::string changed = bytes;
    std::memcpy(changed.data() + changed.size() - from_end * sizeof number, &number, sizeof number);
    return changed;
  };
  SHARD_EXPECT_THROW(deserialize_metadata(with(1, -1)), c10::Error, "a list of -1 items");
  SHARD_EXPECT_THROW(deserialize_metadata(with(7, -1)), c10::Error, "a list of -1 items");
  SHARD_EXPECT_THROW(deserialize_metadata(with(2, 2)), c10::Error, "Invalid bool encoding: 2");
  SHARD_EXPECT_THROW(deserialize_metadata(with(4, -1)), c10::Error, "Invalid bool encoding: -1");
  const auto undefined = static_cast<std::int64_t>(at::ScalarType::Undefined);
  SHARD_EXPECT_THROW(deserialize_metadata(with(6, undefined)), c10::Error, "Invalid dtype encoding: ");
}

TEST(MetadataBytes, EveryCutIsRefused) {
  const std::string bytes = serialize({quarters(), {10, 10}, {}});
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_THROW(deserialize_metadata(bytes.substr(0, size)), c10::Error) << size;
  }
  EXPECT_THROW(deserialize_metadata(bytes + "x"), c10::Error);
}

TEST(MetadataBytes, DamageIsRefusedOrReadAndNeverAnythingElse) {
  const std::string bytes = serialize({quarters(), {10, 10}, {}});
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    std::string damaged = bytes;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x55);
    try {
      deserialize_metadata(damaged);
    } catch (const c10::Error&) {
      continue;
    }
  }
}

// Properties

TEST(TensorProperties, AreGivenInOrder) {
  const TensorProperties properties{at::kInt, at::kSparse, true, at::MemoryFormat::Preserve, true};
  EXPECT_EQ(properties.dtype, at::kInt);
  EXPECT_EQ(properties.layout, at::kSparse);
  EXPECT_TRUE(properties.requires_grad);
  EXPECT_EQ(properties.memory_format, at::MemoryFormat::Preserve);
  EXPECT_TRUE(properties.pin_memory);
}

TEST(TensorProperties, AreThoseOfATensorButForItsMemoryFormat) {
  const at::Tensor tensor = at::zeros({1, 2, 3, 4}, at::kDouble).contiguous(at::MemoryFormat::ChannelsLast);
  tensor.requires_grad_();
  const TensorProperties expected{at::kDouble, at::kStrided, true, at::MemoryFormat::Contiguous, false};
  EXPECT_EQ(TensorProperties::of(tensor), expected);
  EXPECT_EQ(TensorProperties::of(at::zeros({2, 2}).to_sparse()).layout, at::kSparse);
}

TEST(TensorProperties, TheDefaultDtypeIsTorchs) { EXPECT_EQ(TensorProperties().dtype, at::kFloat); }

// Overlap

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
  EXPECT_NO_THROW(check_no_overlap(quarters()));
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

TEST(Overlap, IsFoundExactlyWhereTwoBoxesIntersect) {
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

double seconds_to_check(const Shards& shards) {
  const auto start = std::chrono::steady_clock::now();
  check_no_overlap(shards);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

TEST(Overlap, AHundredThousandShardsTakeLessThanASecond) {
  for (const auto& [dims, count] : {std::pair<std::size_t, std::int64_t>{1, 100'000}, {2, 317}, {3, 47}, {4, 18}}) {
    const Shards shards = grid(dims, count);
    ASSERT_GE(shards.size(), 100'000U);
    EXPECT_LT(seconds_to_check(shards), 1.0) << dims << " dimensions";
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

TEST(CheckTensor, ACoverIsFine) { EXPECT_NO_THROW(check_tensor(quarters(), {10, 10})); }

TEST(CheckTensor, TR21_ThreeTexts) {
  SHARD_EXPECT_THROW(check_tensor(quarters(), {100}), c10::ValueError, "Rank of tensor is 1, but shards rank is 2");
  SHARD_EXPECT_THROW(check_tensor(quarters(), {10, 9}), c10::ValueError,
                     "Shard offset 5 and length 5 exceeds tensor dim: 9 for shard ShardMetadata(shard_offsets=[0, 5], "
                     "shard_sizes=[5, 5], placement=rank:1/cuda:1)");
  SHARD_EXPECT_THROW(check_tensor(quarters(), {10, 11}), c10::ValueError,
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

TEST(CheckTensor, ANoughtDimensionalTensorHasOneElement) { EXPECT_NO_THROW(check_tensor({ShardMetadata({}, {})}, {})); }

// Local metadata

Shard local_shard(int rank, const at::Tensor& tensor) {
  return {tensor, ShardMetadata({rank * 2, 0}, tensor.sizes().vec(), RemoteDevice(rank, at::kCPU))};
}

TEST(LocalMetadata, IsOfAllShardsWithThePropertiesOfTheFirst) {
  const std::vector<Shard> shards{local_shard(1, at::zeros({1, 3}, at::kInt)),
                                  local_shard(1, at::ones({1, 3}, at::kInt))};
  const ShardedTensorMetadata metadata = metadata_of_local_shards(shards, {4, 3}, 1, group_of_one(1));
  EXPECT_EQ(metadata.shards_metadata, (Shards{shards[0].metadata, shards[1].metadata}));
  EXPECT_EQ(metadata.size, (Sizes{4, 3}));
  EXPECT_EQ(metadata.tensor_properties.dtype, at::kInt);
}

TEST(LocalMetadata, ErrorsNameTheRank) {
  const ProcessGroup group = group_of_one(1);
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

TEST(LocalMetadata, ThePlacementIsLookedAtBeforeTheLayout) {
  Shard shard = local_shard(1, at::zeros({2, 3}).to_sparse());
  shard.metadata.placement = std::nullopt;
  SHARD_EXPECT_THROW(metadata_of_local_shards({shard}, {4, 3}, 1, group_of_one(1)), c10::ValueError,
                     "remote device is None");
}

TEST(LocalMetadata, APlacementOfAnotherRankIsRefused) {
  const ProcessGroup two(std::shared_ptr<Group>(&solo_group(), [](Group*) {}), {1, 2}, "two");
  SHARD_EXPECT_THROW(
      metadata_of_local_shards({local_shard(2, at::zeros({2, 3}))}, {4, 3}, 1, two), c10::ValueError,
      "Local shard metadata's rank does not match with the rank in its process group! Found current rank "
      "in the process group: 1, local ShardMetadata placement's rank: 2");
}

TEST(LocalMetadata, ADeviceThatChangedIsRefused) {
  Shard shard = local_shard(1, at::zeros({2, 3}));
  shard.metadata.placement->set_device(at::Device(at::kCUDA, 1));
  SHARD_EXPECT_THROW(metadata_of_local_shards({shard}, {4, 3}, 1, group_of_one(1)), c10::ValueError,
                     "Local shard tensor device does not match with local Shard's placement! Found local shard tensor "
                     "device: cpu, local shard metadata placement device: cuda:1");
}

TEST(LocalMetadata, ASizeThatChangedIsRefused) {
  Shard shard = local_shard(1, at::zeros({2, 3}));
  shard.metadata.shard_sizes = {2, 2};
  SHARD_EXPECT_THROW(metadata_of_local_shards({shard}, {4, 3}, 1, group_of_one(1)), c10::ValueError,
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

TEST(MergeMetadata, ST051_NoShardsAnywhereAreRefused) {
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

TEST(MergeMetadata, ST055_GapsAreFound) {
  ShardedTensorMetadata smaller = of_rank(0);
  smaller.shards_metadata[0].shard_sizes[0] = 1;
  SHARD_EXPECT_THROW(merge_metadata({smaller, of_rank(1)}), c10::ValueError, "does not match tensor volume: 12");
}

}  // namespace
}  // namespace shard::test
