// ShardedTensors on thread ranks: creation, refusals, properties of a handle.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "shardtorch/sharded_tensor/sharded_tensor.h"
#include "tests/shardtorch/tensor_fixture.h"

namespace shard::test {
namespace {

using Construction = Tensor;
using FromLocalShards = Tensor;
using GlobalMetadata = Tensor;
using FromLocalTensor = Tensor;
using Handle = Tensor;

// --- Creation --------------------------------------------------------------------------------------------------------

SHARD_RANKS_TEST(Construction, TR03_ShardsPastTheEndKeepTheirOffsets) {
  const ShardedTensor st(chunks(0, {0, 1, 2, 3}), {2, 20});
  ASSERT_EQ(st.metadata().shards_metadata.size(), 4u);
  for (std::int64_t i = 0; i < 4; ++i) {
    const ShardMetadata& shard = st.metadata().shards_metadata[static_cast<std::size_t>(i)];
    EXPECT_EQ(shard.shard_offsets, (Sizes{i, 0}));
    EXPECT_EQ(shard.shard_sizes, (Sizes{i < 2 ? 1 : 0, 20}));
  }
  EXPECT_EQ(st.local_tensor().sizes(), (Sizes{rank() < 2 ? 1 : 0, 20}));
}

SHARD_RANKS_TEST(Construction, TR10_TheFirstErrorIsReported) {
  const auto make = [](ShardingSpecPtr spec, const CreateOptions& options) {
    return [=] { ShardedTensor(spec, {10, 20}, options); };
  };
  CreateOptions options{.layout = at::kSparse, .memory_format = at::MemoryFormat::ChannelsLast, .init_rrefs = true};
  EXPECT_THAT(make(nullptr, options), Refuses<c10::ValueError>("Expecting ShardingSpec but got"));
  EXPECT_THAT(make(chunks(2, {9}), options), Refuses<c10::ValueError>("Invalid sharding dim: 2"));
  EXPECT_THAT(make(chunks(0, {9}), options),
              Refuses<c10::ValueError>("Only torch.strided layout is currently supported"));
  options.layout = at::kStrided;
  EXPECT_THAT(make(chunks(0, {9}), options),
              Refuses<c10::ValueError>("Only torch.contiguous_format memory_format is currently supported"));
  options.memory_format = at::MemoryFormat::Contiguous;
  EXPECT_THAT(make(chunks(0, {0, 9}), options),
              Refuses<c10::ValueError>("Global rank 9 does not exist in input process group: [0, 1, 2, 3]"));
  EXPECT_THAT(make(chunks(0, {0}), options), Refuses<c10::Error>("RPC Framework needs to be initialized"));
  EXPECT_EQ(registered_sharded_tensors(), 0u);
}

SHARD_RANKS_TEST(Construction, WorkerNamesNeedAnAgent) {
  EXPECT_THAT([] { ShardedTensor(chunk_spec(0, {"worker0/cpu"}), {4}); },
              Refuses<c10::Error>("RPC framework needs to be initialized for using worker names: worker0"));
}

SHARD_RANKS_TEST(Construction, NegativeSizesAreRefused) {
  EXPECT_THROW(ShardedTensor(chunks(0, {0}), {-4, 2}), c10::Error);
}

SHARD_RANKS_TEST(Construction, MoreThan64DimensionsAreRefused) {
  EXPECT_NO_THROW(ShardedTensor(chunks(0, {0}), Sizes(64, 1)));
  EXPECT_THAT([] { ShardedTensor(chunks(0, {0}), Sizes(65, 1)); },
              Refuses<c10::ValueError>("a ShardedTensor has at most 64 dimensions, found 65"));
}

SHARD_RANKS_TEST(Construction, TR07_ProcessesOutsideOfTheGroupKnowTheMetadata) {
  const ProcessGroupPtr group = new_group({1, 3});
  const ShardedTensor st(chunks(0, {3, 1}), {6, 2}, {.process_group = group});
  EXPECT_EQ(st.metadata().shards_metadata.size(), 2u);
  EXPECT_EQ(st.local_shards().size(), rank() % 2 == 1 ? 1u : 0u);
  if (rank() == 3) {
    EXPECT_EQ(st.local_shards()[0].metadata.shard_offsets, (Sizes{0, 0}));
  }
  EXPECT_EQ(st.device(), at::Device(at::kCPU));
}

SHARD_RANKS_TEST(Construction, LocalTensorsHaveTheProperties) {
  const ShardedTensor st(chunks(0, {0, 1, 2, 3}), {8, 3}, {.dtype = at::kDouble, .requires_grad = true});
  EXPECT_EQ(st.local_tensor().scalar_type(), at::kDouble);
  EXPECT_TRUE(st.local_tensor().requires_grad());
  EXPECT_TRUE(st.requires_grad());
  EXPECT_TRUE(st.is_leaf());
  EXPECT_FALSE(st.grad().defined());
}

SHARD_RANKS_TEST(FromLocalShards, QuartersBecomeOneTensor) {
  const ShardedTensor st = ShardedTensor::init_from_local_shards({quarter()}, {10, 10});
  EXPECT_EQ(st.metadata().shards_metadata, quarters({0, 1, 2, 3}));
  EXPECT_EQ(st.sizes(), (Sizes{10, 10}));
  EXPECT_EQ(st.local_shards().size(), 1u);
}

SHARD_RANKS_TEST(FromLocalShards, ARankMayHaveNoShards) {
  std::vector<Shard> shards;
  if (rank() < 2) shards.emplace_back(at::zeros({5, 5}), ShardMetadata({5 * rank(), 0}, {5, 5}, on(rank())));
  const ShardedTensor st = ShardedTensor::init_from_local_shards(shards, {10, 5});
  EXPECT_EQ(st.metadata().shards_metadata.size(), 2u);
  EXPECT_NE(as_chunk(*st.sharding_spec()), nullptr);
}

SHARD_RANKS_TEST(FromLocalShards, PlacementsNameRanksOfTheWorld) {
  const ProcessGroupPtr group = new_group({1, 2, 3});
  if (rank() == 0) return;
  const Shard own{at::zeros({5, 5}), ShardMetadata({5 * (rank() - 1), 0}, {5, 5}, on(rank()))};
  const ShardedTensor st = ShardedTensor::init_from_local_shards({own}, {15, 5}, group);
  EXPECT_EQ(st.metadata().shards_metadata.size(), 3u);
  EXPECT_EQ(st.local_shards()[0].metadata, own.metadata);
}

SHARD_RANKS_TEST(FromLocalShards, TR13_TheErrorOfOneRankIsThrownByAll) {
  Shard own = quarter();
  if (rank() == 2) own.metadata.placement = on(1);
  EXPECT_THAT(
      [&] {
        ShardedTensor::init_from_local_shards({own}, {10, 10});
      },
      Refuses<c10::ValueError>("Local shard metadata's rank does not match"));
}

SHARD_RANKS_TEST(FromLocalShards, NoShardsAtAllAreRefused) {
  EXPECT_THAT(
      [] {
        ShardedTensor::init_from_local_shards({}, {10, 10});
      },
      Refuses<c10::ValueError>("have no local shards on all ranks"));
}

/// The metadata of a (4, 2) tensor in two shards, on ranks 0 and 1.
ShardedTensorMetadata two_rows_each() { return {{{{0, 0}, {2, 2}, on(0)}, {{2, 0}, {2, 2}, on(1)}}, {4, 2}, {}}; }

SHARD_RANKS_TEST(GlobalMetadata, EveryRankPassesItsShards) {
  const ShardedTensorMetadata metadata = two_rows_each();
  std::vector<Shard> shards;
  if (rank() < 2) shards.emplace_back(at::zeros({2, 2}), metadata.shards_metadata[static_cast<std::size_t>(rank())]);
  const auto st = ShardedTensor::init_from_local_shards_and_global_metadata(shards, metadata);
  EXPECT_EQ(st.metadata(), metadata);
  EXPECT_EQ(st.local_shards().size(), rank() < 2 ? 1u : 0u);
  const auto* spec = as_chunk(*st.sharding_spec());
  ASSERT_NE(spec, nullptr);
  EXPECT_EQ(spec->placements(), (std::vector<RemoteDevice>{on(0), on(1)}));
}

SHARD_RANKS_TEST(GlobalMetadata, TheNumberOfLocalShardsMustMatchTheMetadata) {
  if (rank() != 1) return;
  EXPECT_THAT([] { ShardedTensor::init_from_local_shards_and_global_metadata({}, two_rows_each()); },
              Refuses<c10::Error>("Number of local shards (0) does not match number of local shards metadata in "
                                  "sharded_tensor_metadata (1) on rank (1) "));
}

SHARD_RANKS_TEST(GlobalMetadata, EmptyMetadataAndOtherLayoutsAreRefused) {
  ShardedTensorMetadata metadata{{}, {4, 2}, {}};
  const auto make = [&] { ShardedTensor::init_from_local_shards_and_global_metadata({}, metadata); };
  EXPECT_THAT(make, Refuses<c10::ValueError>("shards_metadata must not be empty!"));
  metadata.shards_metadata = {{{0, 0}, {4, 2}, on((rank() + 1) % 4)}};
  metadata.tensor_properties.layout = at::kSparse;
  EXPECT_THAT(make, Refuses<c10::ValueError>("Only torch.strided layout is currently supported"));
}

/// One rank: everything is local.
class LocalShards : public MultiThreadedTestCase {
 public:
  int world_size() const override { return 1; }

 protected:
  static ShardedTensor make(const at::Tensor& tensor, const TensorProperties& properties = {}) {
    const ShardMetadata metadata(Sizes{0, 0}, Sizes{2, 3}, on(0));
    return ShardedTensor::init_from_local_shards_and_global_metadata({Shard(tensor, metadata)},
                                                                     {{metadata}, {2, 3}, properties});
  }
};

SHARD_RANKS_TEST(LocalShards, EveryPropertyMustMatchTheMetadata) {
  const std::string tensor = " property is incompatible with tensor property on rank 0: tensor property ";
  EXPECT_THAT([] { make(at::zeros({2, 3}).to_sparse()); }, Refuses<c10::ValueError>("Local shards' tensor layout"));
  EXPECT_THAT(
      [] {
        make(at::zeros({3, 2}).t());
      },
      Refuses<c10::ValueError>("Only torch.contiguous_format memory_format is currently supported"));
  EXPECT_THAT(
      [] {
        make(at::zeros({2, 3}, at::kInt));
      },
      Refuses<c10::ValueError>("Local shards' tensor dtype" + tensor + "dtype=Float, local shard tensor dtype=Int."));
  EXPECT_THAT(
      [] {
        make(at::zeros({2, 3}).requires_grad_());
      },
      Refuses<c10::ValueError>("Local shards' tensor requires_grad" + tensor));
  EXPECT_THAT(
      [] {
        make(at::zeros({2, 3}), {.pin_memory = true});
      },
      Refuses<c10::ValueError>("Local shards' tensor pin_memory" + tensor));
}

SHARD_RANKS_TEST(LocalShards, APlacementIsRequired) {
  const ShardMetadata with({0}, {2}, on(0)), without({0}, {2});
  EXPECT_THAT(
      [&] {
        ShardedTensor::init_from_local_shards_and_global_metadata({Shard(at::zeros({2}), without)}, {{with}, {2}, {}});
      },
      Refuses<c10::Error>("Must specify placement for `Shard`!"));
}

SHARD_RANKS_TEST(LocalShards, GapsAndOverlapAreRefused) {
  const ShardMetadata low({0}, {3}, on(0)), high({2}, {3}, on(0)), apart({4}, {1}, on(0));
  const auto make_of = [](const ShardMetadata& a, const ShardMetadata& b) {
    return [=] {
      ShardedTensor::init_from_local_shards_and_global_metadata(
          {Shard(at::zeros(a.shard_sizes), a), Shard(at::zeros(b.shard_sizes), b)}, {{a, b}, {5}, {}});
    };
  };
  EXPECT_THAT(make_of(low, high), Refuses<c10::ValueError>("overlap"));
  EXPECT_THAT(make_of(low, apart), Refuses<c10::ValueError>("do not cover the entire tensor"));
}

TEST(Base, ST063_NeedsNoGroupAndAcceptsTheShardsOfAllRanks) {
  const at::Tensor whole = counted({4, 2});
  const ShardedTensorMetadata metadata = two_rows_each();
  const std::vector<Shard> shards{{whole.narrow(0, 0, 2), metadata.shards_metadata[0]},
                                  {whole.narrow(0, 2, 2), metadata.shards_metadata[1]}};
  const auto st = ShardedTensorBase::init_from_local_shards_and_global_metadata(shards, metadata);
  EXPECT_EQ(st.metadata(), metadata);
  EXPECT_EQ(st.local_shards().size(), 2u);
}

TEST(Base, ST064_TakesShardsThatAreNotContiguous) {
  const at::Tensor whole = counted({2, 4}).t();
  const ShardedTensorMetadata metadata = two_rows_each();
  const auto st = ShardedTensorBase::init_from_local_shards_and_global_metadata(
      {{whole.narrow(0, 0, 2), metadata.shards_metadata[0]}, {whole.narrow(0, 2, 2), metadata.shards_metadata[1]}},
      metadata);
  EXPECT_FALSE(st.local_shards()[0].tensor.is_contiguous());
}

TEST(Base, WhatNeedsAGroupSaysThatThereIsNone) {
  const auto base = ShardedTensorBase::init_from_local_shards_and_global_metadata({}, two_rows_each());
  ShardedTensor st = ShardedTensor::of(base.as_tensor());
  EXPECT_EQ(st.process_group(), nullptr);
  const std::function<void()> users[] = {[&] { st.gather(); },   [&] { st.device(); },
                                         [&] { st.is_meta(); },  [&] { st.reshard(chunks(0, {0, 1})); },
                                         [&] { st.to("meta"); }, [&] { st.to(at::kDouble); }};
  for (const auto& use : users) EXPECT_THAT(use, Refuses<c10::Error>("this ShardedTensor has no process group"));
}

TEST(Base, TheMemoryFormatIsNotTakenOver) {
  ShardedTensorMetadata metadata = two_rows_each();
  metadata.tensor_properties.memory_format = at::MemoryFormat::ChannelsLast;
  const auto st = ShardedTensorBase::init_from_local_shards_and_global_metadata({}, metadata);
  EXPECT_EQ(st.metadata().tensor_properties.memory_format, at::MemoryFormat::Contiguous);
}

TEST(Base, WrongMetadataIsRefusedAsWithAGroup) {
  const auto make = [](const ShardedTensorMetadata& metadata) {
    return [metadata] { ShardedTensorBase::init_from_local_shards_and_global_metadata({}, metadata); };
  };
  ShardedTensorMetadata metadata{{}, {4, 2}, {}};
  EXPECT_THAT(make(metadata), Refuses<c10::ValueError>("shards_metadata must not be empty!"));
  metadata = two_rows_each();
  metadata.tensor_properties.layout = at::kSparse;
  EXPECT_THAT(make(metadata), Refuses<c10::ValueError>("Only torch.strided layout is currently supported"));
  metadata = two_rows_each();
  metadata.shards_metadata[1].shard_offsets[0] = 1;
  EXPECT_THAT(make(metadata), Refuses<c10::ValueError>("overlap"));
  metadata.shards_metadata[1].shard_offsets[0] = 3;
  EXPECT_THAT(make(metadata), Refuses<c10::ValueError>("exceeds tensor dim"));
  metadata.shards_metadata.pop_back();
  EXPECT_THAT(make(metadata), Refuses<c10::ValueError>("do not cover the entire tensor"));
}

TEST(Base, AnUndefinedHandleSaysSo) {
  EXPECT_THROW(ShardedTensorBase().metadata(), c10::Error);
  EXPECT_FALSE(ShardedTensor().defined());
}

SHARD_RANKS_TEST(FromLocalTensor, TheSpecIsKept) {
  const ShardingSpecPtr spec = chunks(-1, {2, 3, 0, 1});
  const std::int64_t columns = rank() == 1 ? 1 : 3;
  const ShardedTensor st = ShardedTensor::init_from_local_tensor(at::full({4, columns}, rank()), spec, {4, 10});
  EXPECT_EQ(st.sharding_spec(), spec);
  EXPECT_EQ(st.local_shards()[0].metadata.shard_offsets,
            (Sizes{0, std::vector<std::int64_t>{6, 9, 0, 3}[static_cast<std::size_t>(rank())]}));
}

SHARD_RANKS_TEST(FromLocalTensor, ST046_TensorsThatAreNotContiguousAreRefused) {
  EXPECT_THAT(
      [] {
        ShardedTensor::init_from_local_tensor(at::zeros({5, 4}).t(), chunks(0, {0, 1, 2, 3}), {16, 5});
      },
      Refuses<c10::ValueError>("local_tensor is not a contiguous Tensor."));
}

SHARD_RANKS_TEST(FromLocalTensor, TR03_EmptyShardsMayLiePastTheEnd) {
  const Sizes rows{2, 2, 1, 0};
  const at::Tensor own = at::zeros({rows[static_cast<std::size_t>(rank())], 3});
  const ShardedTensor st = ShardedTensor::init_from_local_tensor(own, chunks(0, {0, 1, 2, 3}), {5, 3});
  EXPECT_EQ(st.metadata().shards_metadata[3].shard_offsets, (Sizes{6, 0}));
}

// --- Properties of a handle ------------------------------------------------------------------------------------------

SHARD_RANKS_TEST(Handle, SizesDimsAndText) {
  const ShardedTensor st(chunks(0, {0, 1, 2, 3}), {10, 20});
  EXPECT_EQ(st.size(-1), 20);
  EXPECT_EQ(st.size(0), 10);
  EXPECT_EQ(st.dim(), 2);
  EXPECT_EQ(st.numel(), 200);
  EXPECT_TRUE(st.is_floating_point());
  EXPECT_THAT([&] { st.size(2); },
              Refuses<c10::IndexError>("Dimension out of range (expected to be in range of [-2, 1], but got 2)"));
  EXPECT_THAT([&] { st.size(-3); }, Refuses<c10::IndexError>("Dimension out of range"));
  EXPECT_TRUE(st.str().starts_with("ShardedTensor(ShardedTensorMetadata(")) << st;
}

SHARD_RANKS_TEST(Handle, ATensorWithoutDimensionsHasNoSizes) {
  const ShardedTensor st(enumerable_spec({ShardMetadata({}, {}, on(0))}), {});
  EXPECT_EQ(st.dim(), 0);
  EXPECT_THAT([&] { st.size(0); }, Refuses<c10::IndexError>("tensor has no dimensions"));
}

SHARD_RANKS_TEST(Handle, ShapeMetaAndGradFn) {
  const ShardedTensor st(chunks(0, {0, 1, 2, 3}), {10, 20}, {.requires_grad = true});
  EXPECT_EQ(st.sizes(), (Sizes{10, 20}));
  EXPECT_TRUE(st.grad_fn() == nullptr);
  EXPECT_FALSE(st.is_meta());
  EXPECT_TRUE(ShardedTensor(chunk_spec(0, {RemoteDevice(rank(), at::kMeta)}), {4}).is_meta());
}

SHARD_RANKS_TEST(Handle, HashesByIdentity) {
  const ShardedTensor st(chunks(0, {0}), {4}), same = st, other(chunks(0, {0}), {4});
  const std::hash<ShardedTensor> hash;
  EXPECT_EQ(hash(st), hash(same));
  EXPECT_EQ(hash(st), std::hash<ShardedTensorBase>()(same));
  EXPECT_NE(hash(st), hash(other));
}

template <class To>
concept MovesTo = requires(const ShardedTensor& tensor, To to) {
  tensor.to(to);
};
template <class Dim>
concept IsDim = requires(Dim dim, std::vector<RemoteDevice> placements) {
  chunk_spec(dim, placements);
};

SHARD_RANKS_TEST(Handle, TR22_RequiresGradIsReadOnly) {
  ShardedTensor st(chunks(0, {0}), {4});
  static_assert(MovesTo<int> && !MovesTo<bool>);
  static_assert(IsDim<int> && IsDim<std::int64_t> && !IsDim<double>);
  EXPECT_THAT(
      [&] {
        st.set_sharding_spec(chunks(0, {0, 0}));
      },
      Refuses<c10::ValueError>("cannot set the sharding spec"));
  EXPECT_THAT([&] { st.set_requires_grad(true); }, Refuses<c10::Error>("torch function '__set__'"));
}

SHARD_RANKS_TEST(Handle, LocalTensorNeedsExactlyOneShard) {
  const ShardedTensor st(chunks(0, {0, 1, 1}), {6});
  if (rank() == 0) {
    EXPECT_TRUE(st.local_tensor().is_same(st.local_tensor()));
    return;
  }
  EXPECT_THAT([&] { st.local_tensor(); }, Refuses<c10::NotImplementedError>("Only single local shard is supported."));
}

SHARD_RANKS_TEST(Handle, AsTensorIsTheSameObject) {
  const ShardedTensor st(chunks(0, {0, 1, 2, 3}), {8, 4});
  EXPECT_TRUE(ShardedTensor::of(st.as_tensor()).is_same(st));
  EXPECT_EQ(st.as_tensor().sizes(), st.sizes());
  EXPECT_FALSE(ShardedTensor::of(at::zeros({2})).defined());
  EXPECT_FALSE(ShardedTensor::of(at::Tensor()).defined());
}

SHARD_RANKS_TEST(Handle, NothingDecaysToAnOrdinaryTensor) {
  const ShardedTensor st(chunks(0, {0, 1, 2, 3}), {8, 4});
  EXPECT_THROW(st.as_tensor().data_ptr(), c10::Error);
  EXPECT_THROW(st.as_tensor().variable_data(), c10::Error);
}

}  // namespace
}  // namespace shard::test
