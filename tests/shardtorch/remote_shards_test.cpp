// Shards of other ranks, over RPC: the rows of the conformance table that make tensors with init_rrefs.
#include <ATen/ATen.h>

#include <set>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "shardtorch/rpc/rpc.h"
#include "shardtorch/sharded_tensor/factories.h"
#include "tests/support/distributed/layouts.h"
#include "tests/support/distributed/sharded_tensor_test.h"

namespace shard::test {

namespace {

class RemoteShardsTest : public ShardedTensorTestBase {
 protected:
  static CreateOptions with_rrefs(ProcessGroupPtr group = nullptr) {
    return {.process_group = std::move(group), .init_rrefs = true};
  }
  static std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }
  /// This rank has exactly the shards that `metadata` places on it, in its order, on its device; all ranks see
  /// `metadata`.
  void expect_shards(const ShardedTensor& st, const std::vector<ShardMetadata>& metadata) const {
    EXPECT_EQ(st.metadata().shards_metadata, metadata);
    std::vector<ShardMetadata> own;
    for (const ShardMetadata& shard : metadata) {
      if (is_own(*shard.placement)) own.push_back(shard);
    }
    ASSERT_EQ(st.local_shards().size(), own.size());
    for (std::size_t i = 0; i < own.size(); ++i) {
      const Shard& shard = st.local_shards()[i];
      EXPECT_EQ(shard.tensor.device(), device());
      EXPECT_EQ(shard.tensor.sizes(), at::IntArrayRef(own[i].shard_sizes));
      EXPECT_EQ(shard.metadata, own[i]);
    }
  }

  /// The keys of remote_shards() are `owners` without this rank; each has `count` shards, and fetched shards match
  /// `metadata`. Ends in a barrier: a tensor that is destroyed withdraws its shards.
  void expect_remote(const ShardedTensor& st, const std::vector<int>& owners, std::size_t count,
                     const std::vector<ShardMetadata>& metadata) const {
    std::set<int> others(owners.begin(), owners.end());
    others.erase(rank());
    std::set<int> keys;
    for (const auto& [owner, shards] : st.remote_shards()) {
      keys.insert(owner);
      EXPECT_EQ(shards.size(), count);
      for (const RemoteShard& shard : shards) {
        EXPECT_EQ(shard.owner().id, owner);
        EXPECT_EQ(shard.owner().name, "worker" + std::to_string(owner));
        const Shard here = shard.to_here();
        EXPECT_EQ(here.tensor.sizes(), at::IntArrayRef(here.metadata.shard_sizes));
        EXPECT_THAT(metadata, testing::Contains(here.metadata));
        EXPECT_TRUE(is_at(*here.metadata.placement, owner));
      }
    }
    EXPECT_EQ(keys, others);
    default_group()->barrier();
  }

  /// Each of the other three ranks has one shard, full of `value`. Ends in a barrier.
  static void expect_remote_values(const ShardedTensor& st, double value) {
    EXPECT_EQ(st.remote_shards().size(), 3U);
    for (const auto& [owner, shards] : st.remote_shards()) {
      ASSERT_EQ(shards.size(), 1U);
      const at::Tensor here = shards[0].to_here().tensor;
      EXPECT_TRUE(tensors_equal(here, at::full_like(here, value))) << "of rank " << owner;
    }
    default_group()->barrier();
  }
  /// Every rank's local shards, before any rank continues.
  static void fill(const ShardedTensor& st, double value) {
    for (const Shard& shard : st.local_shards()) at::Tensor(shard.tensor).fill_(value);
    default_group()->barrier();
  }

 private:
  bool is_at(const RemoteDevice& place, int of_rank) const {
    return place == placement(of_rank) || place == worker_placement(of_rank);
  }
  bool is_own(const RemoteDevice& place) const { return is_at(place, rank()); }
};

class ShardedTensorChunked : public RemoteShardsTest {};

class ShardedTensorEnumerable : public RemoteShardsTest {};

class ShardedTensorFromLocalShards : public RemoteShardsTest {
 protected:
  Shard own_quarter() const { return {at::randn({5, 5}, device()), quarters(placements())[index(rank())]}; }
};

SHARD_RANKS_TEST(ShardedTensorChunked, OthersSeeShardsWithTheirContent) {
  with_comms([&] {
    for (int value = 0; value < 20; ++value) {
      const ShardedTensor st = sharded_tensor::full(rows(), {512, 512}, value, with_rrefs());
      for (const auto& [owner, shards] : st.remote_shards()) {
        EXPECT_TRUE(tensors_equal(shards.at(0).to_here().tensor, at::full({128, 512}, value, at::kFloat)));
      }
      default_group()->barrier();
    }
  });
}

SHARD_RANKS_TEST(ShardedTensorChunked, ST012_complete_world_size) {
  with_comms([&] {
    for (const std::int64_t dim : {0, -2}) {
      const ShardedTensor st = sharded_tensor::empty(chunk_spec(dim, placements()), {10, 20}, with_rrefs());
      const std::vector<ShardMetadata> shards{{{0, 0}, {3, 20}, placement(0)},
                                              {{3, 0}, {3, 20}, placement(1)},
                                              {{6, 0}, {3, 20}, placement(2)},
                                              {{9, 0}, {1, 20}, placement(3)}};
      expect_shards(st, shards);
      expect_remote(st, {0, 1, 2, 3}, 1, shards);
    }
  });
}

SHARD_RANKS_TEST(ShardedTensorChunked, ST020_TR12_partial_world_size) {
  with_comms([&] {
    const ShardedTensor st = sharded_tensor::empty(chunk_spec(0, placements({2, 3})), {10, 20}, with_rrefs());
    expect_shards(st, stacked(placements({2, 3}), 5, 20));
    EXPECT_EQ(st.local_shards().size(), rank() >= 2 ? 1U : 0U);
    expect_remote(st, {2, 3}, 1, stacked(placements({2, 3}), 5, 20));
    EXPECT_EQ(st.remote_shards().size(), rank() >= 2 ? 1U : 2U);
  });
}

SHARD_RANKS_TEST(ShardedTensorChunked, ST021_new_group) {
  with_comms([&] {
    const ProcessGroupPtr group = new_group({1, 2, 3});
    const ShardedTensor st = sharded_tensor::empty(chunk_spec(0, placements({2, 3})), {10, 20}, with_rrefs(group));
    expect_shards(st, stacked(placements({2, 3}), 5, 20));
    EXPECT_EQ(st.local_shards().size(), rank() >= 2 ? 1U : 0U);
    expect_remote(st, {2, 3}, 1, stacked(placements({2, 3}), 5, 20));
    EXPECT_EQ(st.remote_shards().size(), rank() >= 2 ? 1U : 2U);
  });
}

SHARD_RANKS_TEST(ShardedTensorChunked, ST022_multiple_local_shards) {
  with_comms([&] {
    const ShardedTensor st =
        sharded_tensor::empty(chunk_spec(0, placements({0, 1, 2, 3, 0, 1, 2, 3})), {16, 20}, with_rrefs());
    const std::vector<ShardMetadata> shards = stacked(placements({0, 1, 2, 3, 0, 1, 2, 3}), 2, 20);
    expect_shards(st, shards);
    EXPECT_EQ(st.local_shards().size(), 2U);
    expect_remote(st, {0, 1, 2, 3}, 2, shards);
  });
}

SHARD_RANKS_TEST(ShardedTensorChunked, ST024_TR04_TR09_TR10_invalid_sharding) {
  init_pg();
  const auto empty = [&](std::int64_t dim, const RemoteDevice& place, const CreateOptions& options = {}) {
    return sharded_tensor::empty(chunk_spec(dim, {place}), {10, 20}, options);
  };
  SHARD_EXPECT_THROW(ChunkShardingSpec("H", {placement(1)}), c10::NotImplementedError,
                     "does not support named dimension");
  for (const std::int64_t dim : {2, 3, 4, -3, -4, -5}) {
    SHARD_EXPECT_THROW(empty(dim, placement(1)), c10::ValueError, "Invalid sharding dim");
  }
  SHARD_EXPECT_THROW(empty(0, RemoteDevice(5, device(1))), c10::ValueError,
                     "Global rank 5 does not exist in input process group");

  const ShardedTensor st = empty(0, placement(0));
  try {
    at::add(st.as_tensor(), at::empty({10, 20}));
    ADD_FAILURE() << "at::add took a ShardedTensor";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what_without_backtrace(), testing::EndsWith("not supported for ShardedTensor!"));
  }

  SHARD_EXPECT_THROW(empty(0, placement(0), {.layout = at::kSparse}), c10::ValueError,
                     "Only torch.strided layout is currently supported");
  SHARD_EXPECT_THROW(empty(0, placement(0), {.memory_format = at::MemoryFormat::ChannelsLast}), c10::ValueError,
                     "Only torch.contiguous_format memory_format is currently supported");
  SHARD_EXPECT_THROW(empty(0, worker_placement(0)), c10::Error, "RPC framework needs to be initialized");
  SHARD_EXPECT_THROW(empty(0, placement(0), with_rrefs()), c10::Error, "RPC Framework needs to be initialized");
  EXPECT_EQ(registered_sharded_tensors(), 0U);
  SHARD_EXPECT_THROW(st.remote_shards(), c10::Error, "ShardedTensor created with init_rrefs=False");

  init_rpc();
  const RemoteDevice nobody("workerfoo/" + device(1).str());
  SHARD_EXPECT_THROW(empty(0, nobody, with_rrefs()), c10::ValueError, "Invalid worker name");
  destroy_comms();
}

SHARD_RANKS_TEST(ShardedTensorChunked, ST025_TR11_invalid_pg_rpc_ranks) {
  init_pg();
  const int rpc_rank = (rank() + 1) % 4;
  init_rpc({rpc_rank, "worker" + std::to_string(rpc_rank)});
  SHARD_EXPECT_THROW(sharded_tensor::empty(chunk_spec(0, placements({1})), {10, 20}, with_rrefs()), c10::ValueError,
                     "Default ProcessGroup and RPC ranks must be the same");
  EXPECT_EQ(registered_sharded_tensors(), 0U);
  destroy_comms();
}

SHARD_RANKS_TEST(ShardedTensorChunked, ST032_TR11_cleanup) {
  with_comms([&] {
    {
      const ShardedTensor st1 = sharded_tensor::empty(rows(), {10, 20}, with_rrefs());
      const ShardedTensor st2 = sharded_tensor::empty(rows(), {10, 20});
      EXPECT_EQ(registered_sharded_tensors(), 1U);
    }
    EXPECT_EQ(registered_sharded_tensors(), 0U);
  });
}

SHARD_RANKS_TEST(ShardedTensorEnumerable, ST034_grid_sharding) {
  with_comms([&] {
    const std::vector<ShardMetadata> shards = quarters(placements());
    const ShardedTensor st = sharded_tensor::empty(enumerable_spec(shards), {10, 10}, with_rrefs());
    EXPECT_EQ(st.sizes(), at::IntArrayRef({10, 10}));
    expect_shards(st, shards);
    EXPECT_EQ(st.local_shards().size(), 1U);
    expect_remote(st, {0, 1, 2, 3}, 1, shards);
  });
}

SHARD_RANKS_TEST(ShardedTensorEnumerable, ST042_partial_world_size) {
  with_comms([&] {
    const ShardedTensor st =
        sharded_tensor::empty(enumerable_spec(stacked(placements({0, 1}), 5, 5)), {10, 5}, with_rrefs());
    EXPECT_EQ(st.sizes(), at::IntArrayRef({10, 5}));
    expect_shards(st, stacked(placements({0, 1}), 5, 5));
    EXPECT_EQ(st.local_shards().size(), rank() <= 1 ? 1U : 0U);
    expect_remote(st, {0, 1}, 1, stacked(placements({0, 1}), 5, 5));
    EXPECT_EQ(st.remote_shards().size(), rank() <= 1 ? 1U : 2U);
  });
}

SHARD_RANKS_TEST(ShardedTensorEnumerable, ST043_new_group) {
  with_comms([&] {
    const ProcessGroupPtr group = new_group({1, 2, 3});
    const ShardedTensor st =
        sharded_tensor::empty(enumerable_spec(stacked(placements({1, 3}), 5, 5)), {10, 5}, with_rrefs(group));
    EXPECT_EQ(st.sizes(), at::IntArrayRef({10, 5}));
    expect_shards(st, stacked(placements({1, 3}), 5, 5));
    EXPECT_EQ(st.local_shards().size(), rank() % 2 == 1 ? 1U : 0U);
    expect_remote(st, {1, 3}, 1, stacked(placements({1, 3}), 5, 5));
    EXPECT_EQ(st.remote_shards().size(), rank() % 2 == 1 ? 1U : 2U);
  });
}

SHARD_RANKS_TEST(ShardedTensorEnumerable, ST044_with_rpc_names) {
  with_comms([&] {
    std::vector<RemoteDevice> places;
    for (int r = 0; r < 4; ++r) places.push_back(worker_placement(r));
    const std::vector<ShardMetadata> shards = quarters(places);
    const ShardedTensor st = sharded_tensor::empty(enumerable_spec(shards), {10, 10}, with_rrefs());
    EXPECT_EQ(st.sizes(), at::IntArrayRef({10, 10}));
    expect_shards(st, shards);
    ASSERT_EQ(st.local_shards().size(), 1U);
    EXPECT_EQ(st.local_shards()[0].metadata.placement->str(), "worker" + std::to_string(rank()) + "/" + device().str());
    expect_remote(st, {0, 1, 2, 3}, 1, shards);
  });
}

SHARD_RANKS_TEST(ShardedTensorEnumerable, UP03_multiple_local_shards) {
  with_comms([&] {
    const std::vector<ShardMetadata> shards = quarters(placements({0, 1, 0, 1}));
    const ShardedTensor st = sharded_tensor::empty(enumerable_spec(shards), {10, 10}, with_rrefs());
    EXPECT_EQ(st.sizes(), at::IntArrayRef({10, 10}));
    expect_shards(st, shards);
    EXPECT_EQ(st.local_shards().size(), rank() <= 1 ? 2U : 0U);
    expect_remote(st, {0, 1}, 2, shards);
    EXPECT_EQ(st.remote_shards().size(), rank() <= 1 ? 1U : 2U);
  });
}

SHARD_RANKS_TEST(ShardedTensorFromLocalShards, ST048_init_from_local_shards) {
  with_comms([&] {
    const ShardedTensor st = sharded_tensor::init_from_local_shards({own_quarter()}, {10, 10}, nullptr, true);
    EXPECT_EQ(st.sizes(), at::IntArrayRef({10, 10}));
    expect_shards(st, quarters(placements()));
    EXPECT_EQ(st.local_shards().size(), 1U);
    expect_remote(st, {0, 1, 2, 3}, 1, quarters(placements()));
  });
}

SHARD_RANKS_TEST(ShardedTensorFromLocalShards, UP04_init_from_local_shards_and_global_metadata) {
  with_comms([&] {
    const ShardedTensorMetadata metadata{quarters(placements()), {10, 10}, {}};
    const ShardedTensor st =
        ShardedTensor::init_from_local_shards_and_global_metadata({own_quarter()}, metadata, nullptr, true);
    EXPECT_EQ(st.sizes(), at::IntArrayRef({10, 10}));
    expect_shards(st, quarters(placements()));
    EXPECT_EQ(st.local_shards().size(), 1U);
    expect_remote(st, {0, 1, 2, 3}, 1, quarters(placements()));
  });
}

// --- Beyond the table ------------------------------------------------------------------------------------------------

SHARD_RANKS_TEST(ShardedTensorFromLocalShards, RemoteShardsHaveTheOwnersValues) {
  with_comms([&] {
    const at::Tensor whole = at::arange(100.0).reshape({10, 10});
    const ShardMetadata own = quarters(placements())[index(rank())];
    const Shard shard(narrow_tensor(whole, own).clone().to(device()), own);
    const ShardedTensor st = sharded_tensor::init_from_local_shards({shard}, {10, 10}, nullptr, true);
    for (const auto& [owner, shards] : st.remote_shards()) {
      const Shard here = shards.at(0).to_here();
      EXPECT_TRUE(tensors_equal(here.tensor, narrow_tensor(whole, here.metadata))) << owner;
    }
    default_group()->barrier();
  });
}

SHARD_RANKS_TEST(ShardedTensorChunked, EmptyShardsAreRemoteShards) {
  with_comms([&] {
    const ShardedTensor st = sharded_tensor::ones(rows(), {2, 20}, with_rrefs());
    if (rank() != 3) {
      EXPECT_EQ(st.remote_shards().at(3).at(0).to_here().tensor.sizes(), at::IntArrayRef({0, 20}));
    }
    default_group()->barrier();
  });
}

SHARD_RANKS_TEST(ShardedTensorChunked, TensorsThatOutliveRpcAreHarmless) {
  init_comms({});
  const ShardedTensor st = sharded_tensor::ones(rows(), {8, 2}, with_rrefs());
  const int other = (rank() + 1) % 4;
  destroy_comms();
  EXPECT_EQ(st.remote_shards().size(), 3U);
  SHARD_EXPECT_THROW(st.remote_shards().at(other).at(0).to_here(), c10::Error, "RPC was shut down in this process");
}

SHARD_RANKS_TEST(ShardedTensorChunked, TR08_all_placements_are_checked_on_all_ranks_in_their_order) {
  init_pg();
  for (const int place : {0, 1, 2, 3}) {
    std::vector<RemoteDevice> places = placements();
    places[index(place)] = RemoteDevice(7, device());
    places.emplace_back(5, device());
    SHARD_EXPECT_THROW(sharded_tensor::empty(chunk_spec(0, places), {10, 20}), c10::ValueError,
                       "Global rank 7 does not exist in input process group");
  }
  // Devices need not exist.
  EXPECT_EQ(resolve_placement(*default_group(), "rank:3/cuda:77").second, at::Device("cuda:77"));
}

SHARD_RANKS_TEST(ShardedTensorChunked, ClonesHaveRemoteShardsOfTheirOwn) {
  with_comms([&] {
    const ShardedTensor st = sharded_tensor::full(rows(), {10, 20}, 3, with_rrefs());
    const ShardedTensor clone = ShardedTensor::of(at::clone(st.as_tensor()));
    EXPECT_EQ(registered_sharded_tensors(), 2U);
    fill(st, 0);
    expect_remote_values(clone, 3);
  });
}

SHARD_RANKS_TEST(ShardedTensorChunked, MovedTensorsHaveRemoteShardsOfTheirOwn) {
  with_comms([&] {
    const ShardedTensor st = sharded_tensor::full(rows(), {10, 20}, 3, with_rrefs());
    const ShardedTensor doubles = st.to(at::kDouble);
    const ShardedTensor copy = st.to({.device = at::Device(at::kCPU), .copy = true});
    EXPECT_EQ(registered_sharded_tensors(), 3U);
    fill(st, 0);
    expect_remote_values(doubles, 3);
    expect_remote_values(copy, 3);
    EXPECT_EQ(doubles.remote_shards().begin()->second.at(0).to_here().tensor.scalar_type(), at::kDouble);
    default_group()->barrier();
  });
}

SHARD_RANKS_TEST(ShardedTensorChunked, CpuOfATensorOnTheCpuKeepsItsRemoteShards) {
  with_comms([&] {
    const ShardedTensor st = sharded_tensor::full(chunk_spec(0, cpu_placements()), {10, 20}, 3, with_rrefs());
    const ShardedTensor on_cpu = st.cpu();
    EXPECT_TRUE(on_cpu.is_same(st));
    EXPECT_EQ(registered_sharded_tensors(), 1U);
    expect_remote_values(on_cpu, 3);
  });
}

SHARD_RANKS_TEST(ShardedTensorChunked, CpuOfATensorOnGpusHasRemoteShardsOfItsOwn) {
  skip_if_lt_x_gpu(1);
  with_comms([&] {
    set_cuda_device(rank() % cuda_device_count());
    const ShardedTensor st = sharded_tensor::full(chunk_spec(0, cpu_placements()), {10, 20}, 3, with_rrefs()).cuda();
    const ShardedTensor on_cpu = st.cpu();
    EXPECT_EQ(registered_sharded_tensors(), 2U);
    fill(st, 0);
    expect_remote_values(on_cpu, 3);
    for (const auto& [owner, shards] : on_cpu.remote_shards()) {
      EXPECT_EQ(*shards.at(0).to_here().metadata.placement, RemoteDevice(owner, at::kCPU));
    }
    default_group()->barrier();
  });
}

SHARD_RANKS_TEST(ShardedTensorChunked, ShardsOfOtherDevicesArriveOnThisRanksWhereAMapSaysSo) {
  with_comms({.rpc = false}, [&] {
    RpcOptions options{.name = "worker" + std::to_string(rank()), .rank = rank(), .world_size = world_size()};
    for (int owner = 0; owner < world_size(); ++owner) {
      options.device_maps["worker" + std::to_string(owner)] = {{device(owner), device()}};
    }
    ::shard::init_rpc(c10::make_intrusive<c10d::PrefixStore>("mapped", default_store()), options);
    {
      const ShardedTensor st = sharded_tensor::full(rows(), {10, 20}, 3, with_rrefs());
      for (const auto& [owner, shards] : st.remote_shards()) {
        const Shard here = shards.at(0).to_here();
        EXPECT_EQ(here.tensor.device(), device());
        EXPECT_TRUE(here.tensor.eq(3).all().item<bool>());
        EXPECT_EQ(here.metadata.placement, placement(owner)) << "where it lives";
      }
      default_group()->barrier();
    }
    shutdown_rpc();
  });
}

}  // namespace

}  // namespace shard::test
