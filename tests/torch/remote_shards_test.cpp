// Shards of other ranks, over RPC: the rows of the conformance table that make tensors with init_rrefs.
#include <ATen/ATen.h>

#include <numeric>

#include "libshard/torch/sharded_tensor/factories.h"
#include "tests/support/distributed/sharded_tensor_test.h"

namespace shard::test {

namespace {

class RemoteShardsTest : public ShardedTensorTestBase {
 protected:
  static CreateOptions with_rrefs(ProcessGroupPtr group = nullptr) {
    return {.process_group = std::move(group), .init_rrefs = true};
  }
  static std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

  /// The four quarters of a (10, 10) tensor, row by row, at these places.
  static std::vector<ShardMetadata> grid(const std::vector<RemoteDevice>& places) {
    return {{{0, 0}, {5, 5}, places[0]},
            {{0, 5}, {5, 5}, places[1]},
            {{5, 0}, {5, 5}, places[2]},
            {{5, 5}, {5, 5}, places[3]}};
  }
  /// Shards of (5, width) below each other, as many as there are ranks to hold them.
  std::vector<ShardMetadata> fives(const std::vector<int>& ranks, std::int64_t width) const {
    std::vector<ShardMetadata> shards;
    for (const int rank : ranks) {
      shards.emplace_back(Sizes{5 * static_cast<std::int64_t>(shards.size()), 0}, Sizes{5, width}, placement(rank));
    }
    return shards;
  }

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

  /// The keys of remote_shards() are `owners` without this rank; each has `count` shards of its own, and what is
  /// fetched is what `metadata` says. Ends in a barrier: a tensor that dies withdraws its shards.
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
    default_group()->group().barrier();
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
  Shard own_quarter() const { return {at::randn({5, 5}, device()), grid(placements())[index(rank())]}; }
};

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

SHARD_RANKS_TEST(ShardedTensorChunked, ST020_partial_world_size) {
  with_comms([&] {
    const ShardedTensor st = sharded_tensor::empty(chunk_spec(0, placements({2, 3})), {10, 20}, with_rrefs());
    expect_shards(st, fives({2, 3}, 20));
    EXPECT_EQ(st.local_shards().size(), rank() >= 2 ? 1U : 0U);
    expect_remote(st, {2, 3}, 1, fives({2, 3}, 20));
    EXPECT_EQ(st.remote_shards().size(), rank() >= 2 ? 1U : 2U);
  });
}

SHARD_RANKS_TEST(ShardedTensorChunked, ST021_new_group) {
  with_comms([&] {
    const ProcessGroupPtr group = new_group({1, 2, 3});
    const ShardedTensor st = sharded_tensor::empty(chunk_spec(0, placements({2, 3})), {10, 20}, with_rrefs(group));
    expect_shards(st, fives({2, 3}, 20));
    EXPECT_EQ(st.local_shards().size(), rank() >= 2 ? 1U : 0U);
    expect_remote(st, {2, 3}, 1, fives({2, 3}, 20));
    EXPECT_EQ(st.remote_shards().size(), rank() >= 2 ? 1U : 2U);
  });
}

SHARD_RANKS_TEST(ShardedTensorChunked, ST022_multiple_local_shards) {
  with_comms([&] {
    const ShardedTensor st =
        sharded_tensor::empty(chunk_spec(0, placements({0, 1, 2, 3, 0, 1, 2, 3})), {16, 20}, with_rrefs());
    std::vector<ShardMetadata> shards;
    for (int i = 0; i < 8; ++i) shards.emplace_back(Sizes{2 * i, 0}, Sizes{2, 20}, placement(i % 4));
    expect_shards(st, shards);
    EXPECT_EQ(st.local_shards().size(), 2U);
    expect_remote(st, {0, 1, 2, 3}, 2, shards);
  });
}

SHARD_RANKS_TEST(ShardedTensorChunked, ST024_invalid_sharding) {
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

SHARD_RANKS_TEST(ShardedTensorChunked, ST025_invalid_pg_rpc_ranks) {
  init_pg();
  const int rpc_rank = (rank() + 1) % 4;
  init_rpc({rpc_rank, "worker" + std::to_string(rpc_rank)});
  SHARD_EXPECT_THROW(sharded_tensor::empty(chunk_spec(0, placements({1})), {10, 20}, with_rrefs()), c10::ValueError,
                     "Default ProcessGroup and RPC ranks must be the same");
  EXPECT_EQ(registered_sharded_tensors(), 0U);
  destroy_comms();
}

SHARD_RANKS_TEST(ShardedTensorChunked, ST032_cleanup) {
  with_comms([&] {
    {
      const ShardedTensor st1 = sharded_tensor::empty(chunk_spec(0, placements()), {10, 20}, with_rrefs());
      const ShardedTensor st2 = sharded_tensor::empty(chunk_spec(0, placements()), {10, 20});
      EXPECT_EQ(registered_sharded_tensors(), 1U);
    }
    EXPECT_EQ(registered_sharded_tensors(), 0U);
  });
}

SHARD_RANKS_TEST(ShardedTensorEnumerable, ST034_grid_sharding) {
  with_comms([&] {
    const std::vector<ShardMetadata> shards = grid(placements());
    const ShardedTensor st = sharded_tensor::empty(enumerable_spec(shards), {10, 10}, with_rrefs());
    EXPECT_EQ(st.size(), at::IntArrayRef({10, 10}));
    expect_shards(st, shards);
    EXPECT_EQ(st.local_shards().size(), 1U);
    expect_remote(st, {0, 1, 2, 3}, 1, shards);
  });
}

SHARD_RANKS_TEST(ShardedTensorEnumerable, ST042_partial_world_size) {
  with_comms([&] {
    const ShardedTensor st = sharded_tensor::empty(enumerable_spec(fives({0, 1}, 5)), {10, 5}, with_rrefs());
    EXPECT_EQ(st.size(), at::IntArrayRef({10, 5}));
    expect_shards(st, fives({0, 1}, 5));
    EXPECT_EQ(st.local_shards().size(), rank() <= 1 ? 1U : 0U);
    expect_remote(st, {0, 1}, 1, fives({0, 1}, 5));
    EXPECT_EQ(st.remote_shards().size(), rank() <= 1 ? 1U : 2U);
  });
}

SHARD_RANKS_TEST(ShardedTensorEnumerable, ST043_new_group) {
  with_comms([&] {
    const ProcessGroupPtr group = new_group({1, 2, 3});
    const ShardedTensor st = sharded_tensor::empty(enumerable_spec(fives({1, 3}, 5)), {10, 5}, with_rrefs(group));
    EXPECT_EQ(st.size(), at::IntArrayRef({10, 5}));
    expect_shards(st, fives({1, 3}, 5));
    EXPECT_EQ(st.local_shards().size(), rank() % 2 == 1 ? 1U : 0U);
    expect_remote(st, {1, 3}, 1, fives({1, 3}, 5));
    EXPECT_EQ(st.remote_shards().size(), rank() % 2 == 1 ? 1U : 2U);
  });
}

SHARD_RANKS_TEST(ShardedTensorEnumerable, ST044_with_rpc_names) {
  with_comms([&] {
    std::vector<RemoteDevice> places;
    for (int r = 0; r < 4; ++r) places.push_back(worker_placement(r));
    const std::vector<ShardMetadata> shards = grid(places);
    const ShardedTensor st = sharded_tensor::empty(enumerable_spec(shards), {10, 10}, with_rrefs());
    EXPECT_EQ(st.size(), at::IntArrayRef({10, 10}));
    expect_shards(st, shards);
    ASSERT_EQ(st.local_shards().size(), 1U);
    EXPECT_EQ(st.local_shards()[0].metadata.placement->str(), "worker" + std::to_string(rank()) + "/" + device().str());
    expect_remote(st, {0, 1, 2, 3}, 1, shards);
  });
}

SHARD_RANKS_TEST(ShardedTensorEnumerable, UP03_multiple_local_shards) {
  with_comms([&] {
    const std::vector<ShardMetadata> shards = grid(placements({0, 1, 0, 1}));
    const ShardedTensor st = sharded_tensor::empty(enumerable_spec(shards), {10, 10}, with_rrefs());
    EXPECT_EQ(st.size(), at::IntArrayRef({10, 10}));
    expect_shards(st, shards);
    EXPECT_EQ(st.local_shards().size(), rank() <= 1 ? 2U : 0U);
    expect_remote(st, {0, 1}, 2, shards);
    EXPECT_EQ(st.remote_shards().size(), rank() <= 1 ? 1U : 2U);
  });
}

SHARD_RANKS_TEST(ShardedTensorFromLocalShards, ST048_init_from_local_shards) {
  with_comms([&] {
    const ShardedTensor st = sharded_tensor::init_from_local_shards({own_quarter()}, {10, 10}, nullptr, true);
    EXPECT_EQ(st.size(), at::IntArrayRef({10, 10}));
    expect_shards(st, grid(placements()));
    EXPECT_EQ(st.local_shards().size(), 1U);
    expect_remote(st, {0, 1, 2, 3}, 1, grid(placements()));
  });
}

SHARD_RANKS_TEST(ShardedTensorFromLocalShards, UP04_init_from_local_shards_and_global_metadata) {
  with_comms([&] {
    const ShardedTensorMetadata metadata{grid(placements()), {10, 10}, {}};
    const ShardedTensor st =
        ShardedTensor::init_from_local_shards_and_global_metadata({own_quarter()}, metadata, nullptr, true);
    EXPECT_EQ(st.size(), at::IntArrayRef({10, 10}));
    expect_shards(st, grid(placements()));
    EXPECT_EQ(st.local_shards().size(), 1U);
    expect_remote(st, {0, 1, 2, 3}, 1, grid(placements()));
  });
}

// --- Beyond the table
// -------------------------------------------------------------------------------------------------

SHARD_RANKS_TEST(ShardedTensorFromLocalShards, RemoteShardsHaveTheOwnersValues) {
  with_comms([&] {
    const at::Tensor whole = at::arange(100.0).reshape({10, 10});
    const ShardMetadata own = grid(placements())[index(rank())];
    const Shard shard(narrow_tensor(whole, own).clone().to(device()), own);
    const ShardedTensor st = sharded_tensor::init_from_local_shards({shard}, {10, 10}, nullptr, true);
    for (const auto& [owner, shards] : st.remote_shards()) {
      const Shard here = shards.at(0).to_here();
      EXPECT_TRUE(tensors_equal(here.tensor, narrow_tensor(whole, here.metadata))) << owner;
    }
    default_group()->group().barrier();
  });
}

SHARD_RANKS_TEST(ShardedTensorChunked, EmptyShardsAreRemoteShards) {
  with_comms([&] {
    const ShardedTensor st = sharded_tensor::ones(chunk_spec(0, placements()), {2, 20}, with_rrefs());
    if (rank() != 3) {
      EXPECT_EQ(st.remote_shards().at(3).at(0).to_here().tensor.sizes(), at::IntArrayRef({0, 20}));
    }
    default_group()->group().barrier();
  });
}

SHARD_RANKS_TEST(ShardedTensorChunked, TensorsThatOutliveRpcAreHarmless) {
  init_comms({});
  const ShardedTensor st = sharded_tensor::ones(chunk_spec(0, placements()), {8, 2}, with_rrefs());
  const int other = (rank() + 1) % 4;
  destroy_comms();
  EXPECT_EQ(st.remote_shards().size(), 3U);
  SHARD_EXPECT_THROW(st.remote_shards().at(other).at(0).to_here(), c10::Error, "RPC has been shut down here");
}

}  // namespace

}  // namespace shard::test
