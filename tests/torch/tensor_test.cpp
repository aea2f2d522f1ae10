// ShardedTensors on thread ranks: how they are made, what they refuse, and where their elements go.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <numeric>
#include <string>
#include <vector>

#include "libshard/torch/sharded_tensor/factories.h"
#include "libshard/torch/sharded_tensor/sharded_tensor.h"
#include "tests/support/distributed/multi_thread_test.h"
#include "tests/support/distributed/sharded_tensor_test.h"
#include "tests/support/distributed/tensors.h"

namespace shard::test {
namespace {

/// Of a callable: it throws an `E` whose text holds `text`.
template <class E>
auto Refuses(const std::string& text) {
  return ::testing::ThrowsMessage<E>(::testing::HasSubstr(text));
}

RemoteDevice on(int rank) { return {rank, at::Device(at::kCPU)}; }

ShardingSpecPtr chunks(std::int64_t dim, const std::vector<int>& ranks) {
  std::vector<RemoteDevice> placements;
  for (const int rank : ranks) placements.push_back(on(rank));
  return chunk_spec(dim, placements);
}

/// The quarters of a (10, 10) tensor, row by row, on these ranks.
std::vector<ShardMetadata> quarters(const std::vector<int>& ranks) {
  std::vector<ShardMetadata> shards;
  for (std::int64_t i = 0; i < 4; ++i) {
    shards.emplace_back(Sizes{i / 2 * 5, i % 2 * 5}, Sizes{5, 5}, on(ranks[static_cast<std::size_t>(i)]));
  }
  return shards;
}

/// 0, 1, 2, ... in that shape.
at::Tensor counted(at::IntArrayRef size, at::ScalarType dtype = at::kFloat) {
  return at::arange(c10::multiply_integers(size), at::kDouble).view(size).to(dtype);
}

/// The part of `whole` that a shard is; shards without elements may lie outside.
at::Tensor part_of(const at::Tensor& whole, const ShardMetadata& shard) {
  if (c10::multiply_integers(shard.shard_sizes) == 0) return at::empty(shard.shard_sizes, whole.scalar_type());
  return narrow_tensor(whole, shard).contiguous();
}

/// `whole`, cut. No communication.
ShardedTensor cut(const at::Tensor& whole, ShardingSpecPtr spec, ProcessGroupPtr group = nullptr) {
  ShardedTensor sharded(std::move(spec), whole.sizes(),
                        {.dtype = whole.scalar_type(), .process_group = std::move(group)});
  for (const Shard& shard : sharded.local_shards()) shard.tensor.copy_(part_of(whole, shard.metadata));
  return sharded;
}

void expect_parts_of(const ShardedTensor& sharded, const at::Tensor& whole) {
  for (const Shard& shard : sharded.local_shards()) {
    EXPECT_TRUE(tensors_equal(shard.tensor, part_of(whole, shard.metadata))) << shard.metadata;
  }
}

/// Four ranks as threads.
class Tensor : public MultiThreadedTestCase {
 protected:
  Shard quarter() const {
    const ShardMetadata own = quarters({0, 1, 2, 3})[static_cast<std::size_t>(rank())];
    return {at::full({5, 5}, rank()), own};
  }
  /// Gathers to `dst` into zeros of `dtype`; the others get an undefined tensor.
  at::Tensor gathered(const ShardedTensor& tensor, int dst, at::ScalarType dtype,
                      const ShardedTensor::GatherOptions& options = {}) const {
    std::optional<at::Tensor> out;
    if (tensor.process_group()->rank() == dst) out = at::zeros(tensor.sizes(), dtype);
    tensor.gather(dst, out, options);
    return out.value_or(at::Tensor());
  }
};
using Construction = Tensor;
using FromLocalShards = Tensor;
using GlobalMetadata = Tensor;
using FromLocalTensor = Tensor;
using Handle = Tensor;
using Gather = Tensor;
using Scatter = Tensor;
using Reshard = Tensor;
using Move = Tensor;
using Factory = Tensor;
using Remote = Tensor;

// How they are made.

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

SHARD_RANKS_TEST(Construction, TR10_WhatIsWrongFirstIsToldFirst) {
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
  EXPECT_EQ(st.size(), (Sizes{10, 10}));
  EXPECT_EQ(st.local_shards().size(), 1u);
}

SHARD_RANKS_TEST(FromLocalShards, ARankMayHaveNone) {
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

SHARD_RANKS_TEST(GlobalMetadata, EveryRankBringsItsOwnShards) {
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

SHARD_RANKS_TEST(GlobalMetadata, TheNumberOfLocalShardsMustBeTheMetadatas) {
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

SHARD_RANKS_TEST(LocalShards, EveryPropertyMustBeTheMetadatas) {
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

SHARD_RANKS_TEST(LocalShards, APlacementMustBeThere) {
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

TEST(Base, ST063_NeedsNoGroupAndTakesTheShardsOfAllRanks) {
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

TEST(Base, TheMemoryFormatIsNotTakenOver) {
  ShardedTensorMetadata metadata = two_rows_each();
  metadata.tensor_properties.memory_format = at::MemoryFormat::ChannelsLast;
  const auto st = ShardedTensorBase::init_from_local_shards_and_global_metadata({}, metadata);
  EXPECT_EQ(st.metadata().tensor_properties.memory_format, at::MemoryFormat::Contiguous);
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

// What a handle says.

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

SHARD_RANKS_TEST(Handle, TR22_RequiresGradIsReadOnly) {
  ShardedTensor st(chunks(0, {0}), {4});
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

// Elements.

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

SHARD_RANKS_TEST(Gather, TR14_ElementsTravelAsTheyAre) {
  const at::Tensor numbers = counted({8, 2}, at::kLong) + (std::int64_t{1} << 60);
  const at::Tensor longs = gathered(cut(numbers, chunks(0, {0, 1, 2, 3})), 0, at::kLong);
  const at::Tensor exact = counted({8, 2}, at::kDouble) + 1e-12;
  const at::Tensor doubles = gathered(cut(exact, chunks(0, {0, 1, 2, 3})), 0, at::kDouble);
  if (rank() != 0) return;
  EXPECT_TRUE(at::equal(longs, numbers));
  EXPECT_TRUE(at::equal(doubles, exact));
}

SHARD_RANKS_TEST(Gather, DtypeSaysHowTheyTravel) {
  const ShardedTensor st = cut(at::full({4}, 1.0001, at::kDouble), chunks(0, {0, 1, 2, 3}));
  const at::Tensor out = gathered(st, 0, at::kDouble, {.dtype = at::kHalf});
  if (rank() == 0) {
    EXPECT_TRUE(at::equal(out, at::ones({4}, at::kDouble)));
  }
}

SHARD_RANKS_TEST(Gather, OutMayHaveAnotherDtype) {
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

SHARD_RANKS_TEST(Reshard, NothingMovesWhereNothingChanges) {
  ShardedTensor st = cut(counted({8, 5}), chunks(0, {0, 1, 2, 3}));
  const at::Tensor before = st.local_tensor();
  if (rank() == 0) st.reshard(chunks(0, {0, 1, 2, 3}));  // The others do not come: there is nothing to agree on.
  EXPECT_TRUE(st.local_tensor().is_same(before));
}

SHARD_RANKS_TEST(Reshard, DtypeAndRequiresGradStay) {
  ShardedTensor st = shard_tensor(counted({8, 4}, at::kDouble).requires_grad_(), chunks(0, {0, 1, 2, 3}));
  st.reshard(chunks(1, {0, 1, 2, 3}));
  EXPECT_TRUE(st.local_tensor().requires_grad());
  EXPECT_EQ(st.local_tensor().scalar_type(), at::kDouble);
}

SHARD_RANKS_TEST(Reshard, OfAGroupOfSomeRanks) {
  const ProcessGroupPtr group = new_group({1, 3});
  ShardedTensor st = cut(counted({4, 6}), chunks(0, {3, 1}), group);
  st.reshard(chunks(1, {1, 3}));
  EXPECT_EQ(st.metadata().shards_metadata[0].placement, on(1));
  EXPECT_EQ(st.local_shards().size(), rank() % 2 == 1 ? 1u : 0u);
  expect_parts_of(st, counted({4, 6}));
}

SHARD_RANKS_TEST(Reshard, OnlyChunksAndOneShardARank) {
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

// To other devices and dtypes.

SHARD_RANKS_TEST(Move, TR15_WhatIsThereAlreadyIsTheSameObject) {
  const ShardedTensor st = cut(counted({10, 20}), chunks(0, {0, 1, 2, 3}));
  EXPECT_TRUE(st.cpu().is_same(st));
  EXPECT_TRUE(st.to(at::kFloat).is_same(st));
  EXPECT_TRUE(st.to("cpu").is_same(st));
  EXPECT_TRUE(st.to(at::zeros({1})).is_same(st));
  EXPECT_FALSE(st.to({.copy = true}).is_same(st));
  EXPECT_FALSE(st.to({.copy = true}).local_tensor().is_same(st.local_tensor()));
}

SHARD_RANKS_TEST(Move, ToAnotherDtype) {
  const ShardingSpecPtr spec = chunks(-2, {3, 1, 0, 2});
  const ShardedTensor st = cut(counted({10, 20}), spec), half = st.to(at::kHalf);
  EXPECT_FALSE(half.is_same(st));
  EXPECT_EQ(half.dtype(), at::kHalf);
  EXPECT_EQ(half.as_tensor().scalar_type(), at::kHalf);
  EXPECT_EQ(*half.sharding_spec(), *spec);
  EXPECT_EQ(half.process_group(), st.process_group());
  expect_parts_of(half, counted({10, 20}, at::kHalf));
  EXPECT_EQ(st.dtype(), at::kFloat);
}

SHARD_RANKS_TEST(Move, IntegersNeedNoGradient) {
  const ShardedTensor st(chunks(0, {0, 1, 2, 3}), {8}, {.requires_grad = true});
  EXPECT_FALSE(st.to(at::kLong).requires_grad());
  EXPECT_TRUE(st.to(at::kDouble).requires_grad());
}

SHARD_RANKS_TEST(Move, ToAnotherDevice) {
  const ShardedTensor st = cut(counted({2, 20}), chunks(0, {0, 1, 2, 3})), meta = st.to("meta");
  EXPECT_EQ(meta.device(), at::Device(at::kMeta));
  for (const ShardMetadata& shard : meta.metadata().shards_metadata) {
    EXPECT_EQ(shard.placement->device(), at::Device(at::kMeta));
  }
  EXPECT_NE(as_chunk(*meta.sharding_spec()), nullptr);
  EXPECT_EQ(st.metadata().shards_metadata[1].placement, on(1));
}

SHARD_RANKS_TEST(Move, RanksWithoutShardsDecideAsTheOthers) {
  const ShardedTensor st = cut(counted({4}), chunk_spec(0, {"rank:0/meta", "rank:1/meta"}));
  EXPECT_TRUE(st.to("meta").is_same(st));
}

SHARD_RANKS_TEST(Move, TR16_WhichDeviceAnotherRankHasIsNotMadeUp) {
  if (rank() == 1) return;  // It has no device of that number, and is not needed: nothing is sent.
  const ShardedTensor st(chunk_spec(0, {"rank:0/cpu", "rank:1/meta:3", "rank:2/cpu"}), {6});
  const ShardedTensor meta = st.to("meta");
  const auto& shards = meta.metadata().shards_metadata;
  EXPECT_EQ(shards[0].placement, RemoteDevice("rank:0/meta"));
  EXPECT_EQ(shards[1].placement, RemoteDevice("rank:1/meta:3"));
  EXPECT_EQ(shards[2].placement, RemoteDevice("rank:2/meta"));
}

SHARD_RANKS_TEST(Move, ToAGivenGroup) {
  const ProcessGroupPtr group = new_group({0, 1, 2, 3});
  const ShardedTensor st = cut(counted({4, 3}), chunks(0, {0, 1, 2, 3}));
  EXPECT_EQ(st.to({.dtype = at::kDouble, .process_group = group}).process_group(), group);
}

SHARD_RANKS_TEST(Move, OtherMemoryFormatsAreRefused) {
  const ShardedTensor st = cut(counted({4, 3}), chunks(0, {0, 1, 2, 3}));
  EXPECT_THAT([&] { st.cpu(at::MemoryFormat::ChannelsLast); },
              Refuses<c10::Error>("Only `torch.contiguous_format` or `torch.preserve_format` is supported!"));
  EXPECT_THAT([&] { st.cuda(std::nullopt, false, at::MemoryFormat::ChannelsLast); },
              Refuses<c10::Error>("Only `torch.contiguous_format` or `torch.preserve_format` is supported!"));
}

// Content.

SHARD_RANKS_TEST(Factory, ConstantsAndDefaultDtype) {
  const ShardingSpecPtr spec = chunks(0, {0, 1, 2, 3});
  expect_parts_of(sharded_tensor::ones(spec, {10, 20}), at::ones({10, 20}));
  expect_parts_of(sharded_tensor::zeros(spec, {10, 20}), at::zeros({10, 20}));
  expect_parts_of(sharded_tensor::full(spec, {10, 20}, 1234, {.dtype = at::kInt}), at::full({10, 20}, 1234, at::kInt));
  expect_parts_of(sharded_tensor::full(spec, {10, 20}, 7, {.requires_grad = true}), at::full({10, 20}, 7.0F));
}

SHARD_RANKS_TEST(Factory, TR32_LikeTakesSpecAndSizeOnly) {
  const ProcessGroupPtr group = new_group({0, 1, 2, 3});
  const ShardedTensor st(chunks(0, {0, 1, 2, 3}), {8, 8}, {.dtype = at::kDouble, .process_group = group});
  const ShardedTensor like = sharded_tensor::zeros_like(st);
  EXPECT_EQ(like.dtype(), at::kFloat);
  EXPECT_EQ(like.process_group(), default_group());
  EXPECT_EQ(like.sharding_spec(), st.sharding_spec());
  expect_parts_of(sharded_tensor::full_like(st, 8.8, {.dtype = at::kDouble}), at::full({8, 8}, 8.8, at::kDouble));
  expect_parts_of(sharded_tensor::ones_like(st), at::ones({8, 8}));
  EXPECT_EQ(sharded_tensor::empty_like(st).size(), (Sizes{8, 8}));
}

/// One rank with all shards: the generator is the process's, which ranks as threads would draw from in any order.
class Draws : public MultiThreadedTestCase {
 public:
  int world_size() const override { return 1; }

 protected:
  const ShardingSpecPtr spec = chunks(0, {0, 0, 0, 0});
  static constexpr std::uint64_t kSeed = 1234;

  /// `make` seeded alike draws what `draw` does, a shard of (rows, 2) each.
  template <class Make, class Draw>
  void expect_draws(const Make& make, const Draw& draw, const std::vector<std::int64_t>& rows) const {
    at::manual_seed(kSeed);
    std::vector<at::Tensor> expected;
    for (const std::int64_t count : rows) expected.push_back(draw(Sizes{count, 2}));
    at::manual_seed(kSeed);
    const ShardedTensor st = make();
    ASSERT_EQ(st.local_shards().size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(at::equal(st.local_shards()[i].tensor, expected[i])) << i;
    }
  }
};

SHARD_RANKS_TEST(Draws, ST017_TR31_OneDrawAShard) {
  const CreateOptions options{.dtype = at::kDouble};
  const auto rand = [](at::IntArrayRef size) { return at::rand(size, at::kDouble); };
  const auto randn = [](at::IntArrayRef size) { return at::randn(size, at::kDouble); };
  expect_draws([&] { return sharded_tensor::rand(spec, {8, 2}, options); }, rand, {2, 2, 2, 2});
  expect_draws([&] { return sharded_tensor::randn(spec, {8, 2}, options); }, randn, {2, 2, 2, 2});
  expect_draws([&] { return sharded_tensor::rand(spec, {5, 2}, options); }, rand, {2, 2, 1, 0});
}

SHARD_RANKS_TEST(Draws, ST019_LikeDrawsAlike) {
  const ShardedTensor st = sharded_tensor::rand(spec, {8, 2}, {.dtype = at::kDouble});
  const CreateOptions options{.dtype = at::kDouble};
  expect_draws([&] { return sharded_tensor::rand_like(st, options); },
               [](at::IntArrayRef size) { return at::rand(size, at::kDouble); }, {2, 2, 2, 2});
  expect_draws([&] { return sharded_tensor::randn_like(st, options); },
               [](at::IntArrayRef size) { return at::randn(size, at::kDouble); }, {2, 2, 2, 2});
}

SHARD_RANKS_TEST(Draws, InitFunctionsAreTorchs) {
  const auto make = [&] { return ShardedTensor(spec, {8, 2}); };
  expect_draws([&] { return init::uniform_(make(), -2, 3); },
               [](at::IntArrayRef size) { return at::empty(size).uniform_(-2, 3); }, {2, 2, 2, 2});
  expect_draws([&] { return init::normal_(make(), 1, 4); },
               [](at::IntArrayRef size) { return at::empty(size).normal_(1, 4); }, {2, 2, 2, 2});
  // Fans of (2, 2): gain sqrt(2 / (1 + 1)) = 1, bound 1 * sqrt(3) / sqrt(2).
  expect_draws([&] { return init::kaiming_uniform_(make(), 1); },
               [](at::IntArrayRef size) { return at::empty(size).uniform_(-std::sqrt(1.5), std::sqrt(1.5)); },
               {2, 2, 2, 2});
  expect_draws([&] { return init::constant_(make(), 3); }, [](at::IntArrayRef size) { return at::full(size, 3.0F); },
               {2, 2, 2, 2});
}

SHARD_RANKS_TEST(Draws, KaimingTakesEmptyShardsAndKnownWords) {
  const ShardedTensor st(spec, {5, 2}, {.requires_grad = true});
  EXPECT_NO_THROW(init::kaiming_uniform_(st, 0, "fan_out", "relu"));
  EXPECT_THAT([&] { init::kaiming_uniform_(st, 0, "fan"); }, Refuses<c10::ValueError>("Mode fan not supported"));
  EXPECT_THAT([&] { init::kaiming_uniform_(st, 0, "fan_in", "step"); },
              Refuses<c10::ValueError>("Unsupported nonlinearity step"));
}

// Remote shards, over an agent of threads.

thread_local int t_worker = 0;

/// Workers are threads; what is published lies in a table.
class ThreadAgent final : public RpcAgent {
 public:
  ThreadAgent(int size, int first_id) : first_id_(first_id) {
    for (int i = 0; i < size; ++i) workers_.push_back({i, "worker" + std::to_string(i)});
  }
  Worker self() const override {
    return workers_[static_cast<std::size_t>((t_worker + first_id_) % std::ssize(workers_))];
  }
  const std::vector<Worker>& workers() const override { return workers_; }
  std::vector<Bytes> all_gather(const Bytes& own) override { return shard::all_gather(default_group()->group(), own); }
  Bytes publish(const Shard& shard) override {
    const std::scoped_lock lock(mutex_);
    const auto key = static_cast<std::byte>(next_++);
    shards_.emplace(key, shard);
    return {key};
  }
  void withdraw(const Bytes& published) noexcept override {
    const std::scoped_lock lock(mutex_);
    shards_.erase(published.front());
  }
  RemoteShard remote_shard(int owner, const Bytes& published) override {
    struct Source final : RemoteShard::Source {
      Source(ThreadAgent& of, std::byte at) : agent(of), key(at) {}
      Shard fetch() override {
        const std::scoped_lock lock(agent.mutex_);
        return agent.shards_.at(key);
      }
      ThreadAgent& agent;
      std::byte key;
    };
    return {workers_[static_cast<std::size_t>(owner)], std::make_shared<Source>(*this, published.front())};
  }
  std::size_t left() {
    const std::scoped_lock lock(mutex_);
    return shards_.size();
  }

 private:
  int first_id_;
  std::vector<Worker> workers_;
  std::mutex mutex_;
  int next_ = 0;
  std::map<std::byte, Shard> shards_;
};

/// Four ranks, each a worker; the first one's id is `first_id`.
void on_workers(int first_id, const std::function<void(int)>& body) {
  const auto agent = std::make_shared<ThreadAgent>(4, first_id);
  set_current_rpc_agent(agent);
  spawn_threads_and_init_comms(4, [&](int rank) {
    t_worker = rank;
    body(rank);
    default_group()->group().barrier();
    EXPECT_EQ(registered_sharded_tensors(), 0u);
  });
  set_current_rpc_agent(nullptr);
  EXPECT_EQ(agent->left(), 0u);
}

TEST(RemoteShards, TR12_NeitherOwnOnesNorThoseOfRanksWithout) {
  on_workers(0, [](int rank) {
    const ShardedTensor st = sharded_tensor::full(chunks(0, {2, 3, 2}), {6, 2}, rank, {.init_rrefs = true});
    std::vector<int> owners;
    for (const auto& [owner, shards] : st.remote_shards()) {
      owners.push_back(owner);
      EXPECT_EQ(shards.size(), owner == 2 ? 2u : 1u);
      EXPECT_EQ(shards[0].owner().id, owner);
      EXPECT_EQ(shards[0].to_here().metadata.placement, on(owner));
    }
    EXPECT_EQ(owners, rank == 2 ? std::vector{3} : rank == 3 ? std::vector{2} : (std::vector{2, 3}));
    default_group()->group().barrier();
  });
}

TEST(RemoteShards, WorkerNamesAreRanks) {
  on_workers(0, [](int rank) {
    const ShardedTensor st(chunk_spec(0, {"worker3/cpu", "worker1/cpu"}), {4});
    EXPECT_EQ(st.local_shards().size(), rank % 2 == 1 ? 1u : 0u);
    EXPECT_THAT([] { ShardedTensor(chunk_spec(0, {"workerfoo/cpu"}), {4}); },
                Refuses<c10::ValueError>("Invalid worker name: workerfoo"));
  });
}

TEST(RemoteShards, ST025_WorkersMustBeTheRanks) {
  on_workers(1, [](int) {
    EXPECT_THAT(
        [] {
          sharded_tensor::empty(chunks(0, {1}), {10, 20}, {.init_rrefs = true});
        },
        Refuses<c10::ValueError>("Default ProcessGroup and RPC ranks must be the same"));
  });
}

SHARD_RANKS_TEST(Remote, NoneWithoutInitRrefs) {
  const ShardedTensor st(chunks(0, {0}), {4});
  EXPECT_THAT([&] { st.remote_shards(); }, Refuses<c10::Error>("ShardedTensor created with init_rrefs=False"));
}

}  // namespace
}  // namespace shard::test
