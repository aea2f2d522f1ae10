// State dicts of modules with ShardedTensors, on four processes.

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <string>

#include "libshard/torch/state/state_dict.h"
#include "tests/support/distributed/sharded_tensor_test.h"

namespace shard::test {
namespace {

class ShardedTensorChunked : public ShardedTensorTestBase {
 protected:
  ShardingSpecPtr rows() const { return chunk_spec(0, placements()); }
};

void expect_equal(const MyShardedModel1& a, const MyShardedModel1& b) {
  EXPECT_TRUE(at::equal(a.sharded_tensor1.as_tensor(), b.sharded_tensor1.as_tensor()));
  EXPECT_TRUE(at::equal(a.submodule->sharded_tensor2.as_tensor(), b.submodule->sharded_tensor2.as_tensor()));
}

void expect_keys(const MyShardedModel1& module) {
  const StateDict state = state_dict(module);
  EXPECT_TRUE(state.contains("sharded_tensor1"));
  EXPECT_TRUE(state.contains("submodule.sharded_tensor2"));
}

SHARD_RANKS_TEST(ShardedTensorChunked, ST028_state_dict) {
  with_comms([&] {
    const MyShardedModel1 module(rows());
    expect_keys(module);
    MyShardedModel1 loaded;
    load_state_dict(loaded, load_state(save_state(state_dict(module))), false);
    expect_keys(loaded);
    expect_equal(module, loaded);
  });
}

SHARD_RANKS_TEST(ShardedTensorChunked, TR27_loading_runs_the_exchange_of_remote_shards_again) {
  with_comms([&] {
    const MyShardedModel2 module(rows());
    module.sharded_tensor2.local_tensor().fill_(rank());
    const std::string bytes = save_state(state_dict(module));
    module.sharded_tensor2.local_tensor().fill_(-1);
    MyShardedModel2 loaded;
    load_state_dict(loaded, load_state(bytes), false);
    EXPECT_TRUE(loaded.sharded_tensor2.init_rrefs());
    EXPECT_EQ(registered_sharded_tensors(), 2U);
    ASSERT_EQ(loaded.sharded_tensor2.remote_shards().size(), 3U);
    for (const auto& [owner, shards] : loaded.sharded_tensor2.remote_shards()) {
      ASSERT_EQ(shards.size(), 1U);
      EXPECT_TRUE(shards[0].to_here().tensor.eq(owner).all().item<bool>());
    }
    default_group()->group().barrier();  // Shards can be fetched while their owner's tensor lives.
  });
}

SHARD_RANKS_TEST(ShardedTensorChunked, ST029_state_dict_new_group) {
  with_comms([&] {
    const ProcessGroupPtr group = new_group({2, 3});
    const MyShardedModel1 module(chunk_spec(0, placements({2, 3, 2, 3})), group);
    const std::string bytes = save_state(state_dict(module));
    MyShardedModel1 loaded;
    {
      const LoadWithProcessGroup scope(group);
      load_state_dict(loaded, load_state(bytes), false);
    }
    expect_equal(module, loaded);
    EXPECT_EQ(loaded.sharded_tensor1.process_group(), group);
  });
}

SHARD_RANKS_TEST(ShardedTensorChunked, ST030_state_dict_no_sharded_tensors) {
  with_comms({.rpc = false}, [&] {
    const torch::nn::Linear module(10, 10);
    StateDict before = state_dict(*module), after = before;
    state_dict_hook(*module, after);
    EXPECT_EQ(before.keys(), after.keys());
    torch::nn::Linear loaded(10, 10);
    load_state_dict(*loaded, load_state(save_state(after)), false);
    EXPECT_TRUE(tensors_equal(loaded->weight, module->weight));
    EXPECT_TRUE(tensors_equal(loaded->bias, module->bias));
  });
}

SHARD_RANKS_TEST(ShardedTensorChunked, ST031_load_state_dict_errors) {
  with_comms([&] {
    const std::string bytes = save_state(state_dict(MyShardedModel1(rows())));
    const ProcessGroupPtr group = new_group({0, 2, 3});
    {
      const LoadWithProcessGroup scope(group);
      SHARD_EXPECT_THROW(load_state(bytes), c10::Error,
                         rank() == 0 ? "Local world size at save time was" : "Local rank at save time was");
    }
    const ProcessGroupPtr world = default_group();
    world->group().barrier();
    destroy_process_group();
    SHARD_EXPECT_THROW(load_state(bytes), c10::Error, "Need to initialize default process group");
    init_pg();
  });
}

}  // namespace
}  // namespace shard::test
