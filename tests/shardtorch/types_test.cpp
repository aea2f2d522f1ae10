// Placements, shards, metadata and its bytes: no group and no communication.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstring>
#include <sstream>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "libshard/core/box.h"
#include "shardtorch/errors.h"
#include "shardtorch/sharded_tensor/sharded_tensor.h"
#include "tests/support/distributed/sharded_tensor_test.h"

namespace shard::test {
namespace {

using Shards = std::vector<ShardMetadata>;

ProcessGroup group_of_one(int rank) {
  return {std::shared_ptr<Group>(&solo_group(), [](Group*) {}), {rank}, "one"};
}

/// (10, 10) in four quarters, one a rank.
Shards cuda_quarters() {
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

TEST(RemoteDevice, AnUnknownDeviceThrowsTorchsError) {
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
    for (const ShardMetadata& shard : cuda_quarters()) shards.insert(shard);
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

TEST(Shard, ST051_ADifferentDeviceIsRefused) {
  SHARD_EXPECT_THROW(Shard(at::randn({5}, at::kMeta), ShardMetadata({0}, {5}, "rank:0/cpu")), c10::ValueError,
                     "Local shard tensor device does not match with local Shard's placement! Found local shard tensor "
                     "device: meta, local shard metadata placement device: cpu");
}

TEST(Shard, TR18_SizeIsCheckedFirstAndLayoutNever) {
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
                cuda_quarters(), {10, 10}, {dtype, layout, requires_grad, format, pin_memory}};
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
  const std::string bytes = serialize({cuda_quarters(), {10, 10}, {}});
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_THROW(deserialize_metadata(bytes.substr(0, size)), c10::Error) << size;
  }
  EXPECT_THROW(deserialize_metadata(bytes + "x"), c10::Error);
}

TEST(MetadataBytes, DamageIsRefusedOrReadAndNeverAnythingElse) {
  const std::string bytes = serialize({cuda_quarters(), {10, 10}, {}});
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

TEST(TensorProperties, AreThoseOfATensorExceptItsMemoryFormat) {
  const at::Tensor tensor = at::zeros({1, 2, 3, 4}, at::kDouble).contiguous(at::MemoryFormat::ChannelsLast);
  tensor.requires_grad_();
  const TensorProperties expected{at::kDouble, at::kStrided, true, at::MemoryFormat::Contiguous, false};
  EXPECT_EQ(TensorProperties::of(tensor), expected);
  EXPECT_EQ(TensorProperties::of(at::zeros({2, 2}).to_sparse()).layout, at::kSparse);
}

TEST(TensorProperties, TheDefaultDtypeIsTorchs) {
  EXPECT_EQ(TensorProperties().dtype, at::kFloat);
  c10::set_default_dtype(c10::scalarTypeToTypeMeta(at::kDouble));
  EXPECT_EQ(TensorProperties().dtype, at::kDouble);
  c10::set_default_dtype(c10::scalarTypeToTypeMeta(at::kFloat));
}

// --- Errors ---------------------------------------------------------------------------------------------------------

template <class Throw>
std::string message_thrown_by(const Throw& action, std::optional<ErrorCode> code) {
  try {
    action();
  } catch (const std::exception& error) {
    EXPECT_EQ(code_of(error), code);
    return message_of(error);
  }
  return "nothing";
}

TEST(Errors, WhatIsTheMessageAlone) {
  try {
    chunk_spec(0, {});
  } catch (const std::exception& error) {
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
  }
}

TEST(Errors, AreOneFamilyByTheirCodes) {
  EXPECT_NE(message_thrown_by([] { chunk_spec(0, {}); }, ErrorCode::kInvalidArgument), "nothing");
  EXPECT_NE(message_thrown_by([] { ChunkShardingSpec("dim", {"rank:0"}); }, ErrorCode::kUnsupported), "nothing");
  const auto torchs = [] { at::zeros({2}).view({3}); };
  EXPECT_EQ(message_thrown_by(torchs, ErrorCode::kInvalidArgument).find("frame #"), std::string::npos);
  const auto files = [] {
    throw Error(ErrorCode::kResource, "cannot write").in_file("a.pt").because("no room").hint("make room");
  };
  EXPECT_EQ(message_thrown_by(files, ErrorCode::kResource), "a.pt: cannot write\n  why:  no room\n  hint: make room");
  EXPECT_EQ(message_thrown_by([] { throw std::runtime_error("other"); }, std::nullopt), "other");
}

}  // namespace
}  // namespace shard::test
