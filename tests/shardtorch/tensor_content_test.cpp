// ShardedTensors on thread ranks: moved, made with content, and seen by other workers.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "shardtorch/sharded_tensor/factories.h"
#include "shardtorch/sharded_tensor/sharded_tensor.h"
#include "tests/shardtorch/tensor_fixture.h"

namespace shard::test {
namespace {

using Move = Tensor;
using Factory = Tensor;
using Remote = Tensor;

// --- To other devices and dtypes -------------------------------------------------------------------------------------

SHARD_RANKS_TEST(Move, TR15_NoMoveReturnsTheSameObject) {
  const ShardedTensor st = cut(counted({10, 20}), chunks(0, {0, 1, 2, 3}));
  EXPECT_TRUE(st.cpu().is_same(st));
  EXPECT_TRUE(st.to(at::kFloat).is_same(st));
  EXPECT_TRUE(st.to("cpu").is_same(st));
  EXPECT_TRUE(st.to(at::zeros({1})).is_same(st));
  EXPECT_FALSE(st.to({.copy = true}).is_same(st));
  EXPECT_FALSE(st.to({.copy = true}).local_tensor().is_same(st.local_tensor()));
}

SHARD_RANKS_TEST(Move, ToADifferentDtype) {
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

SHARD_RANKS_TEST(Move, WithoutADeviceAllPlacementsStay) {
  const ShardingSpecPtr spec = chunk_spec(0, {"rank:0/meta", "rank:1/cpu", "rank:0/cpu"});
  const ShardedTensor st(spec, {6}), moved = st.to(at::kDouble);
  EXPECT_EQ(moved.metadata().shards_metadata, st.metadata().shards_metadata);
  EXPECT_EQ(moved.sharding_spec(), spec);
  EXPECT_EQ(moved.dtype(), at::kDouble);
  ASSERT_EQ(moved.local_shards().size(), (std::vector<std::size_t>{2, 1, 0, 0}[static_cast<std::size_t>(rank())]));
  for (const Shard& shard : moved.local_shards()) {
    EXPECT_EQ(shard.tensor.device(), shard.metadata.placement->device());
    EXPECT_EQ(shard.tensor.scalar_type(), at::kDouble);
  }
}

SHARD_RANKS_TEST(Move, WhileGradientsAreOffNoneAreRequired) {
  const ShardedTensor st(chunk_spec(0, {"rank:0/meta", "rank:1/cpu"}), {6}, {.requires_grad = true});
  const at::NoGradGuard no_grad;
  for (const ShardedTensor& moved : {st.to(at::kDouble), st.to("meta"), st.to({.copy = true})}) {
    EXPECT_FALSE(moved.requires_grad());
    EXPECT_FALSE(moved.metadata().tensor_properties.requires_grad);
    for (const Shard& shard : moved.local_shards()) EXPECT_FALSE(shard.tensor.requires_grad());
  }
  EXPECT_TRUE(st.requires_grad());
}

SHARD_RANKS_TEST(Move, ToADifferentDevice) {
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

SHARD_RANKS_TEST(Move, TR16_TheDeviceOfOtherRanksIsNotGuessed) {
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

// --- Content ---------------------------------------------------------------------------------------------------------

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
  EXPECT_EQ(sharded_tensor::empty_like(st).sizes(), (Sizes{8, 8}));
}

/// One rank with all shards: the generator is the process's, which ranks as threads would draw from in any order.
class Draws : public MultiThreadedTestCase {
 public:
  int world_size() const override { return 1; }

 protected:
  const ShardingSpecPtr spec = chunks(0, {0, 0, 0, 0});
  static constexpr std::uint64_t kSeed = 1234;

  /// With the same seed, `make` draws the same as `draw`, a shard of (rows, 2) each.
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

SHARD_RANKS_TEST(Draws, ST017_TR31_OneDrawPerShard) {
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

SHARD_RANKS_TEST(Draws, InitFunctionsMatchTorch) {
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

// --- Remote shards, over an agent of threads -------------------------------------------------------------------------

thread_local int t_worker = 0;

/// Workers are threads; published shards are in a table.
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
    default_group()->barrier();
    EXPECT_EQ(registered_sharded_tensors(), 0u);
  });
  set_current_rpc_agent(nullptr);
  EXPECT_EQ(agent->left(), 0u);
}

TEST(RemoteShards, TR12_OnlyThoseOfOtherRanks) {
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
    default_group()->barrier();
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

// --- Several devices of one rank ------------------------------------------------------------------------------------

/// Rank 0 has the upper quarters, one on the CPU and one on "meta", a device that every machine has.
ShardingSpecPtr on_two_devices() {
  return enumerable_spec(quarters(
      {RemoteDevice(0, at::kCPU), RemoteDevice(0, at::kMeta), RemoteDevice(1, at::kCPU), RemoteDevice(2, at::kCPU)}));
}

SHARD_RANKS_TEST(Tensor, ARankMayHaveShardsOnSeveralDevices) {
  const ShardedTensor st = sharded_tensor::ones(on_two_devices(), {10, 10});
  EXPECT_EQ(st.local_shards().size(), (std::vector<std::size_t>{2, 1, 1, 0})[static_cast<std::size_t>(rank())]);
  EXPECT_EQ(st.device(), at::Device(at::kCPU)) << "that of the first shard";
  if (rank() == 0) {
    EXPECT_TRUE(st.local_shards()[1].tensor.is_meta());
  }
  const ShardedTensor half = st.to(at::kHalf);
  ASSERT_EQ(half.local_shards().size(), st.local_shards().size());
  for (std::size_t i = 0; i < half.local_shards().size(); ++i) {
    EXPECT_EQ(half.local_shards()[i].tensor.device(), st.local_shards()[i].tensor.device());
    EXPECT_EQ(half.local_shards()[i].tensor.scalar_type(), at::kHalf);
  }
  const auto again = ShardedTensor::init_from_local_shards(st.local_shards(), {10, 10});
  EXPECT_EQ(again.metadata().shards_metadata, st.metadata().shards_metadata);
}

SHARD_RANKS_TEST(Tensor, ToADeviceMovesTheShardsOfAllDevices) {
  const ShardedTensor st = sharded_tensor::ones(on_two_devices(), {10, 10}).to(at::Device(at::kMeta));
  for (const Shard& shard : st.local_shards()) EXPECT_TRUE(shard.tensor.is_meta());
  for (const ShardMetadata& shard : st.metadata().shards_metadata) EXPECT_TRUE(shard.placement->device().is_meta());
}

}  // namespace
}  // namespace shard::test
