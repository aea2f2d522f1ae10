// ShardedTensors from local tensors and shards: rows ST-045 to 047, 049 to 055, 061 to 064, UP-01 and UP-05 to UP-10 of
// the conformance table.
#include <ATen/ATen.h>

#include "tests/support/distributed/layouts.h"
#include "tests/support/distributed/multi_thread_test.h"
#include "tests/support/distributed/sharded_tensor_test.h"

namespace shard::test {
namespace {

class FromLocal : public ShardedTensorTestBase {
 protected:
  /// The quarters of a (10, 10) tensor.
  std::vector<ShardMetadata> quarters() const { return test::quarters(placements()); }
  ShardMetadata own_quarter() const { return quarters()[static_cast<std::size_t>(rank())]; }
  at::Tensor randn(at::IntArrayRef size) const { return at::randn(size, device()); }
  at::Tensor sparse() const {
    const at::Tensor indices = at::tensor({0, 1, 1, 2, 0, 2}, at::kLong).reshape({2, 3});
    return at::sparse_coo_tensor(indices, at::tensor({3.2F, 4.5F, 5.8F}), {5, 5}).to(device());
  }
  /// With remote shards.
  ShardedTensor init(std::vector<Shard> shards, at::IntArrayRef size = {10, 10}) const {
    return sharded_tensor::init_from_local_shards(std::move(shards), size, nullptr, true);
  }
  /// init fails with a ValueError of these words and leaves nothing registered.
  void expect_init_refused(const std::vector<Shard>& shards, const std::string& words,
                           at::IntArrayRef size = {10, 10}) const {
    SHARD_EXPECT_THROW(init(shards, size), c10::ValueError, words);
    EXPECT_EQ(registered_sharded_tensors(), 0U) << words;
  }
};

class ShardedTensorFromLocalTensor : public FromLocal {};

SHARD_RANKS_TEST(ShardedTensorFromLocalTensor, ST045_init_from_local_tensor) {
  with_comms([&] {
    const auto specs = chunk_sharding_specs_for_test({0, 1, 1, 0}, 31, [this](int of) { return placement(of); });
    const std::vector<Sizes> sizes{{20, 10}, {21, 11}, {23, 16}, {44, 16, 8}};
    for (const ShardingSpecPtr& spec : specs) {
      for (const Sizes& size : sizes) {
        const ShardedTensorMetadata metadata = spec->build_metadata(size, {});
        std::map<int, ShardMetadata> by_rank;
        for (const ShardMetadata& shard : metadata.shards_metadata) {
          by_rank[resolve_placement(*default_group(), shard.placement).first] = shard;
        }
        const at::Tensor local = at::rand(by_rank.at(rank()).shard_sizes, device());
        const ShardedTensor st = ShardedTensor::init_from_local_tensor(local, spec, size, nullptr, true);
        EXPECT_EQ(st.sizes(), at::IntArrayRef(size));
        ASSERT_EQ(st.local_shards().size(), 1U);
        EXPECT_TRUE(st.local_tensor().is_same(local));
        EXPECT_EQ(st.local_shards()[0].metadata, by_rank.at(rank()));
        EXPECT_EQ(st.metadata().shards_metadata, metadata.shards_metadata);
        EXPECT_EQ(st.remote_shards().size(), 3U);
        for (const auto& [owner, shards] : st.remote_shards()) {
          ASSERT_EQ(shards.size(), 1U);
          EXPECT_EQ(shards[0].owner().id, owner);
          EXPECT_EQ(shards[0].to_here().tensor.sizes(), at::IntArrayRef(by_rank.at(owner).shard_sizes));
        }
        default_group()->barrier();  // Other ranks fetch shards, so wait before destroying them.
      }
    }
  });
}

SHARD_RANKS_TEST(ShardedTensorFromLocalTensor, ST046_init_from_local_tensor_errors) {
  with_comms(kNoRpc, [&] {
    const at::Tensor local = at::rand({24, 12}, device());
    const ShardingSpecPtr boxes = enumerable_spec({{{0, 0}, {5, 5}, placement(0)}, {{5, 0}, {5, 5}, placement(1)}});
    SHARD_EXPECT_THROW(ShardedTensor::init_from_local_tensor(local, boxes, {24, 12}), c10::ValueError,
                       "do not cover the entire tensor");
    const auto rows = chunk_sharding_specs_for_test({0}, 31, [this](int of) { return placement(of); });
    SHARD_EXPECT_THROW(ShardedTensor::init_from_local_tensor(local.t(), rows[0], {24, 12}), c10::ValueError,
                       "local_tensor is not a contiguous Tensor.");
  });
}

class ShardedTensorFromLocalShards : public FromLocal {};

SHARD_RANKS_TEST(ShardedTensorFromLocalShards, ST047_local_shards) {
  const ShardMetadata own = own_quarter();
  const at::Tensor tensor = randn({5, 5});
  EXPECT_EQ(Shard(tensor, own).metadata, Shard::from_tensor_and_offsets(tensor, own.shard_offsets, rank()).metadata);
  const ShardMetadata wrong(own.shard_offsets, {6, 5}, placement(rank()));
  SHARD_EXPECT_THROW(Shard(tensor, wrong), c10::ValueError, "Shard tensor size does not match");
}

SHARD_RANKS_TEST(ShardedTensorFromLocalShards, ST049_TR20_st_base_init_from_local_shards_and_global_metadata) {
  std::vector<Shard> shards;
  for (int i = 0; i < 4; ++i)
    shards.emplace_back(at::randn({5, 5}, device(i)), quarters()[static_cast<std::size_t>(i)]);
  const ShardedTensorBase st =
      ShardedTensorBase::init_from_local_shards_and_global_metadata(shards, {quarters(), {10, 10}, {}});
  ASSERT_EQ(st.local_shards().size(), 4U);
  EXPECT_EQ(st.local_shards()[0].tensor.device(), device(0));
  EXPECT_EQ(st.local_shards()[0].tensor.sizes(), at::IntArrayRef({5, 5}));
  EXPECT_EQ(st.local_shards()[0].metadata, quarters()[0]);
  EXPECT_EQ(st.metadata().shards_metadata, quarters());
}

SHARD_RANKS_TEST(ShardedTensorFromLocalShards, ST050_init_from_local_shards_new_group) {
  with_comms(kNoRpc, [&] {
    const ProcessGroupPtr group = new_group({1, 2, 3});
    if (rank() == 0) return;
    const std::vector<ShardMetadata> shards = stacked(placements({1, 2, 3}), 5, 5);
    const ShardMetadata& own = shards[static_cast<std::size_t>(rank() - 1)];
    const ShardedTensor st = sharded_tensor::init_from_local_shards({Shard(randn({5, 5}), own)}, {15, 5}, group);
    ASSERT_EQ(st.local_shards().size(), 1U);
    EXPECT_EQ(st.local_tensor().device(), device());
    EXPECT_EQ(st.local_tensor().sizes(), at::IntArrayRef({5, 5}));
    EXPECT_EQ(st.local_shards()[0].metadata, own);
    EXPECT_EQ(st.metadata().shards_metadata, shards);
  });
}

SHARD_RANKS_TEST(ShardedTensorFromLocalShards, ST051_init_from_local_shards_invalid_local_shards) {
  with_comms([&] {
    expect_init_refused({}, "have no local shards on all ranks");
    expect_init_refused({Shard(sparse(), own_quarter())}, "Only torch.strided layout is currently supported");
    expect_init_refused({Shard(randn({5, 5}).t(), own_quarter())},
                        "Only torch.contiguous_format memory_format is currently supported");
    SHARD_EXPECT_THROW(Shard(randn({2, 3}), own_quarter()), c10::ValueError, "Shard tensor size does not match");
    SHARD_EXPECT_THROW(Shard(at::empty({5, 5}, at::kMeta), own_quarter()), c10::ValueError,
                       "Local shard tensor device does not match");
  });
}

SHARD_RANKS_TEST(ShardedTensorFromLocalShards, ST052_init_from_local_shards_invalid_property_cross_ranks) {
  with_comms([&] {
    const bool is_first = rank() == 0;
    const at::Tensor ones = at::ones({5, 5}, device());
    expect_init_refused({Shard(ones, own_quarter())},
                        "ShardedTensor global_size property does not match from different ranks!",
                        is_first ? Sizes{10, 10} : Sizes{10, 5});
    expect_init_refused({Shard(ones.to(is_first ? at::kInt : at::kFloat), own_quarter())},
                        "ShardedTensor dtype property does not match from different ranks!");
    expect_init_refused({Shard(randn({5, 5}).requires_grad_(is_first), own_quarter())},
                        "ShardedTensor requires_grad property does not match from different ranks!");
  });
}

SHARD_RANKS_TEST(ShardedTensorFromLocalShards, ST053_TR41_init_from_local_shards_invalid_pin_memory) {
  skip_if_lt_x_gpu(1);
  with_comms([&] {
    const ShardMetadata own = test::quarters(cpu_placements())[static_cast<std::size_t>(rank())];
    const at::Tensor plain = at::randn({5, 5}), pinned = plain.pin_memory();
    expect_init_refused({Shard(pinned, own), Shard(plain, own)},
                        "Local shards' tensor pin_memory property need to be the same");
    expect_init_refused({Shard(rank() == 0 ? pinned : plain, own)},
                        "ShardedTensor pin_memory property does not match from different ranks!");
  });
}

SHARD_RANKS_TEST(ShardedTensorFromLocalShards, ST054_init_from_local_shards_invalid_shards_overlap) {
  with_comms([&] {
    const std::int64_t side = rank() == 0 ? 6 : 5;
    const ShardMetadata own(own_quarter().shard_offsets, {side, side}, placement(rank()));
    expect_init_refused({Shard(randn({side, side}), own)}, "overlap");
  });
}

SHARD_RANKS_TEST(ShardedTensorFromLocalShards, ST055_init_from_local_shards_invalid_shards_gaps) {
  with_comms([&] {
    const std::int64_t side = rank() == 0 ? 4 : 5;
    const ShardMetadata own(own_quarter().shard_offsets, {side, side}, placement(rank()));
    expect_init_refused({Shard(randn({side, side}), own)}, "does not match tensor volume");
  });
}

SHARD_RANKS_TEST(ShardedTensorFromLocalShards, UP05_init_from_local_shards_and_global_metadata_invalid_shards) {
  with_comms(kNoRpc, [&] {
    const ShardedTensorMetadata metadata{quarters(), {10, 10}, {}};
    const auto init_known = [&](std::vector<Shard> shards) {
      return ShardedTensor::init_from_local_shards_and_global_metadata(std::move(shards), metadata);
    };
    const Shard good(randn({5, 5}), own_quarter());
    const char* const count = "does not match number of local shards metadata";
    SHARD_EXPECT_THROW(init_known({}), c10::Error, count);
    SHARD_EXPECT_THROW(init_known({good, good}), c10::Error, count);
    SHARD_EXPECT_THROW(Shard(randn({2, 3}), own_quarter()), c10::ValueError,
                       "Shard tensor size does not match with metadata.shard_lengths");
    SHARD_EXPECT_THROW(Shard(at::empty({5, 5}, at::kMeta), own_quarter()), c10::ValueError,
                       "Local shard tensor device does not match with local Shard's placement");
    const auto expect_refused = [&](const at::Tensor& tensor, const std::string& words) {
      SHARD_EXPECT_THROW(init_known({Shard(tensor, own_quarter())}), c10::ValueError, words);
    };
    expect_refused(randn({5, 5}).to(at::kInt), "Local shards' tensor dtype property is incompatible with");
    expect_refused(sparse(), "Local shards' tensor layout property is incompatible with");
    expect_refused(randn({5, 5}).requires_grad_(), "Local shards' tensor requires_grad property is incompatible with");
    expect_refused(randn({5, 5}).t(), "Only torch.contiguous_format memory_format is currently supported");
  });
}

SHARD_RANKS_TEST(ShardedTensorFromLocalShards, UP05_TR41_pinned_memory) {
  skip_if_lt_x_gpu(1);
  with_comms(kNoRpc, [&] {
    std::vector<ShardMetadata> all = quarters();
    ShardMetadata& own = all[static_cast<std::size_t>(rank())];
    own.placement = RemoteDevice(rank(), at::kCPU);
    const Shard pinned(at::randn({5, 5}).pin_memory(), own);
    SHARD_EXPECT_THROW(ShardedTensor::init_from_local_shards_and_global_metadata({pinned}, {all, {10, 10}, {}}),
                       c10::ValueError, "Local shards' tensor pin_memory property is incompatible with");
  });
}

SHARD_RANKS_TEST(ShardedTensorFromLocalShards, UP06_recalc_for_metadata) {
  with_comms(kNoRpc, [&] {
    for (const std::int64_t side : {0, 5}) {
      const ShardMetadata own({0, 0}, {side, side}, placement(rank()));
      const ShardedTensor st = sharded_tensor::init_from_local_shards({Shard(randn({side, side}), own)}, std::nullopt);
      EXPECT_EQ(st.sizes(), at::IntArrayRef({4 * side, side}));
      EXPECT_EQ(st.local_shards()[0].metadata.shard_offsets, (Sizes{rank() * side, 0}));
      ASSERT_EQ(st.metadata().shards_metadata.size(), 4U);
      for (int i = 0; i < 4; ++i) {
        EXPECT_EQ(st.metadata().shards_metadata[static_cast<std::size_t>(i)],
                  ShardMetadata({i * side, 0}, {side, side}, placement(i)));
      }
    }
  });
}

SHARD_RANKS_TEST(ShardedTensorFromLocalShards, UP06_a_rank_without_its_one_shard_is_refused_by_all) {
  with_comms(kNoRpc, [&] {
    const ShardMetadata own({0, 0}, {2, 2}, placement(rank()));
    std::vector<Shard> shards{Shard(randn({2, 2}), own)};
    if (rank() == 2) shards.clear();
    SHARD_EXPECT_THROW(sharded_tensor::init_from_local_shards(shards, std::nullopt), c10::Error,
                       "for metadata recalculation, each rank has one local shard, found 0");
  });
}

SHARD_RANKS_TEST(ShardedTensorFromLocalShards, UP07_init_from_local_shards_with_different_glb_size) {
  with_comms(kNoRpc, [&] {
    for (const auto& [step, text] : {std::pair(0, "overlap"), std::pair(5, "exceeds tensor dim")}) {
      const ShardMetadata own({step * rank(), 0}, {5, 5}, placement(rank()));
      const std::vector<Shard> shards{Shard(randn({5, 5}), own)};
      SHARD_EXPECT_THROW(sharded_tensor::init_from_local_shards(shards, at::IntArrayRef({0, 0})), c10::ValueError,
                         text);
    }
  });
}

SHARD_RANKS_TEST(ShardedTensorFromLocalShards, UP08_non_rw_sharded_recalc_for_metadata) {
  with_comms(kNoRpc, [&] {
    const ShardedTensor st =
        sharded_tensor::init_from_local_shards({Shard(randn({5, 5}), own_quarter())}, std::nullopt);
    const ShardMetadata& local = st.local_shards()[0].metadata;
    EXPECT_EQ(local.shard_offsets == own_quarter().shard_offsets, rank() == 0);
    EXPECT_EQ(local.shard_sizes, own_quarter().shard_sizes);
    EXPECT_EQ(local.placement, own_quarter().placement);
  });
}

SHARD_RANKS_TEST(ShardedTensorFromLocalShards, UP09_init_from_local_shards_and_global_metadata_with_all_zeros) {
  with_comms(kNoRpc, [&] {
    std::vector<ShardMetadata> all;
    for (int i = 0; i < 4; ++i) all.emplace_back(Sizes{0, 0}, Sizes{0, 0}, placement(i));
    const Shard own(randn({0, 0}), all[static_cast<std::size_t>(rank())]);
    const ShardedTensor st = ShardedTensor::init_from_local_shards_and_global_metadata({own}, {all, {0, 0}, {}});
    EXPECT_EQ(st.sizes(), at::IntArrayRef({0, 0}));
    EXPECT_EQ(st.metadata().shards_metadata, all);
    ASSERT_EQ(st.local_shards().size(), 1U);
    EXPECT_EQ(st.local_tensor().sizes(), at::IntArrayRef({0, 0}));
    EXPECT_EQ(st.local_tensor().device(), device());
  });
}

SHARD_RANKS_TEST(ShardedTensorFromLocalShards, UP10_init_from_local_shards_and_global_metadata_with_local_view) {
  with_comms(kNoRpc, [&] {
    for (const std::int64_t offset : {0, 1}) {
      std::vector<ShardMetadata> all;
      for (int i = 0; i < 4; ++i) {
        if (i == rank()) {
          all.emplace_back(Sizes{offset, 0}, Sizes{5, 5}, placement(i));
        } else {
          all.emplace_back(Sizes{i < rank() ? 0 : 5, 0}, Sizes{0, 0}, placement(i));
        }
      }
      const Shard own(randn({5, 5}), all[static_cast<std::size_t>(rank())]);
      const auto init = [&] {
        return ShardedTensor::init_from_local_shards_and_global_metadata({own}, {all, {5, 5}, {}});
      };
      if (offset == 0) {
        EXPECT_EQ(init().sizes(), at::IntArrayRef({5, 5}));
        EXPECT_EQ(init().metadata().shards_metadata, all);
      } else {
        SHARD_EXPECT_THROW(init(), c10::ValueError, "exceeds tensor dim");
      }
    }
  });
}

class ShardedTensorSubGroupInit : public MultiThreadedTestCase {
 protected:
  /// Ranks of this rank's parity; only they call it.
  ProcessGroupPtr same_parity() const {
    const ProcessGroupPtr group = new_group({rank() % 2, rank() % 2 + 2}, {.local_synchronization = true});
    group->group().barrier();
    return group;
  }
};

SHARD_RANKS_TEST(ShardedTensorSubGroupInit, ST061_TR39_sub_process_group_sharded_tensor_init) {
  const ProcessGroupPtr group = same_parity();
  const at::Tensor tensor = at::tensor({1, 2, 3}).to(at::kMeta);
  const Shard own(tensor, ShardMetadata({3 * (rank() / 2)}, {3}, RemoteDevice(rank(), at::kMeta)));
  const ShardedTensor st = ShardedTensor::init_from_local_shards({own}, 6, group);
  EXPECT_EQ(st.sizes(), at::IntArrayRef({6}));
}

SHARD_RANKS_TEST(ShardedTensorSubGroupInit, ST062_TR06_sub_process_group_placement_validation) {
  EXPECT_NE(default_group(), nullptr);
  const ProcessGroupPtr group = same_parity();
  for (const int global : group->global_ranks()) {
    const RemoteDevice place("rank:" + std::to_string(global) + "/cuda:" + std::to_string(global % 2));
    EXPECT_EQ(resolve_placement(*group, place).first, global);
  }
}

/// Two halves of a (4, 2) tensor.
ShardedTensorMetadata two_halves() {
  return {{{{0, 0}, {2, 2}, "rank:0/cpu"}, {{2, 0}, {2, 2}, "rank:1/cpu"}}, {4, 2}, {}};
}

TEST(CreateTensorNoProcessGroupMode, ST063_TR20_init_from_local_shards_and_global_metadata) {
  const ShardedTensorMetadata metadata = two_halves();
  std::vector<Shard> shards;
  for (const ShardMetadata& shard : metadata.shards_metadata) shards.emplace_back(at::zeros({2, 2}), shard);
  EXPECT_EQ(ShardedTensorBase::init_from_local_shards_and_global_metadata(shards, metadata).metadata(), metadata);
}

TEST(CreateTensorNoProcessGroupMode, ST064_TR20_non_contiguous_local_shards) {
  const ShardedTensorMetadata metadata = two_halves();
  const at::Tensor whole = at::randn({4, 2}), wide = at::randn({4, 5});
  for (const at::Tensor& from : {whole, wide.narrow(1, 1, 2)}) {
    const std::vector<Shard> shards{{from.narrow(0, 0, 2), metadata.shards_metadata[0]},
                                    {from.narrow(0, 2, 2), metadata.shards_metadata[1]}};
    const ShardedTensorBase st = ShardedTensorBase::init_from_local_shards_and_global_metadata(shards, metadata);
    EXPECT_EQ(st.local_shards()[1].tensor.is_contiguous(), from.is_same(whole));
  }
}

TEST(CreateTensorFromParams, UP01_empty) {
  TensorProperties properties;
  properties.dtype = at::kDouble;
  const at::Tensor tensor = create_tensor({5, 10}, at::kCPU, properties);
  EXPECT_EQ(tensor.sizes(), at::IntArrayRef({5, 10}));
  EXPECT_EQ(tensor.device(), at::Device(at::kCPU));
  EXPECT_EQ(tensor.scalar_type(), at::kDouble);
  EXPECT_EQ(tensor.layout(), at::kStrided);
  EXPECT_FALSE(tensor.requires_grad());
}

}  // namespace
}  // namespace shard::test
