// ShardedTensors in states: modules on four processes, and the ranks recorded in files; these ranks are threads.

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <vector>

#include "shardtorch/c10d/gloo.h"
#include "shardtorch/checkpoint/async_save.h"
#include "shardtorch/rpc/rpc.h"
#include "shardtorch/sharded_tensor/collectives.h"
#include "shardtorch/sharded_tensor/factories.h"
#include "shardtorch/sharded_tensor/ops.h"
#include "shardtorch/state/state_dict.h"
#include "tests/support/distributed/layouts.h"
#include "tests/support/distributed/multi_thread_test.h"
#include "tests/support/distributed/sharded_tensor_test.h"

namespace shard::test {
namespace {

class ShardedTensorChunked : public ShardedTensorTestBase {
 protected:
  ShardingSpecPtr rows() const { return chunk_spec(0, placements()); }
  static ShardingSpecPtr rows_on_cpu() { return chunk_spec(0, cpu_placements()); }
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
    default_group()->barrier();  // Shards can be fetched while their owner's tensor lives.
  });
}

SHARD_RANKS_TEST(ShardedTensorChunked, ST029_state_dict_new_group) {
  with_comms([&] {
    const ProcessGroupPtr group = new_group({2, 3});
    const MyShardedModel1 module(chunk_spec(0, {other_placement(2), other_placement(3), placement(2), placement(3)}),
                                 group);
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
    for (const auto& item : before) EXPECT_TRUE(after[item.key()].is(item.value())) << item.key();
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

/// Shards with the content of `whole`, on the ranks' devices.
ShardedTensor cut(const at::Tensor& whole, const ShardingSpecPtr& spec) {
  const ShardedTensor tensor = sharded_tensor::empty(spec, whole.sizes());
  for (const Shard& shard : tensor.local_shards()) shard.tensor.copy_(narrow_tensor(whole, shard.metadata));
  return tensor;
}

SHARD_RANKS_TEST(ShardedTensorChunked, CheckpointsAreSavedFromAndLoadedIntoTheRanksDevices) {
  with_comms({.rpc = false}, [&] {
    const at::Tensor whole = at::arange(70, at::kFloat).view({10, 7}), ones = at::ones({5}, device());
    const ShardedTensor saved = cut(whole, rows());
    StateDict state;
    state.insert("sharded", saved.as_tensor());
    state.insert("plain", ones.clone());
    const auto expect_loaded = [&](const std::string& path) {
      const ShardedTensor columns = cut(at::zeros({10, 7}), chunk_spec(1, placements({2, 0, 3, 1})));
      const at::Tensor plain = at::zeros({5}, device());
      StateDict loaded;
      loaded.insert("sharded", columns.as_tensor());
      loaded.insert("plain", plain);
      checkpoint::load(loaded, path);
      EXPECT_EQ(columns.local_tensor().device(), device());
      EXPECT_TRUE(tensors_equal(columns.local_tensor(), narrow_tensor(whole, columns.local_shards()[0].metadata)));
      EXPECT_TRUE(plain.equal(ones));
    };
    checkpoint::save(state, file_name() + ".saved");
    expect_loaded(file_name() + ".saved");
    const checkpoint::AsyncSave save = checkpoint::async_save(state, file_name() + ".async");
    saved.local_tensor().zero_();
    state["plain"].toTensor().zero_();
    save.wait();
    expect_loaded(file_name() + ".async");
  });
}

/// A group that the program has made by itself.
ProcessGroupPtr wrapped_gloo(const std::string& file, int rank, int ranks) {
  auto options = c10d::ProcessGroupGloo::Options::create(std::chrono::seconds(30));
  options->devices.push_back(gloo_device(true));
  const auto store = c10::make_intrusive<c10d::FileStore>(file, ranks);
  return wrap_process_group(c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, ranks, options), "mine", at::kCPU);
}

SHARD_RANKS_TEST(ShardedTensorChunked, AGroupOfTheProgramIsTheDefaultOfAllProcesses) {
  const ProcessGroupPtr mine = wrapped_gloo(file_name() + ".gloo", rank(), world_size());
  init_process_group(mine, c10::make_intrusive<c10d::FileStore>(file_name() + ".world", world_size()));
  EXPECT_EQ(default_group(), mine);
  const ShardedTensor saved = shard_tensor(at::arange(40.).view({10, 4}), chunk_spec(0, cpu_placements({3, 2, 1, 0})));
  StateDict state;
  state.insert("w", saved.as_tensor());
  const StateDict loaded = load_state(save_state(state));
  EXPECT_TRUE(equal(ShardedTensor::of(loaded["w"].toTensor()), saved));
  EXPECT_TRUE(saved.full_tensor().equal(at::arange(40.).view({10, 4})));
  const ProcessGroupPtr odd = new_group({1, 3});
  EXPECT_EQ(odd->rank(), rank() % 2 == 0 ? -1 : rank() / 2);
  if (odd->is_member()) {
    const at::Tensor sum = at::full({2}, rank());
    all_reduce(sum, ReduceOp::kSum, odd);
    EXPECT_TRUE(sum.eq(4).all().item<bool>());
  }
  init_rpc();
  {
    const ShardedTensor shared = sharded_tensor::full(rows_on_cpu(), {8, 2}, rank(), {.init_rrefs = true});
    EXPECT_EQ(shared.remote_shards().size(), 3U);
    for (const auto& [owner, shards] : shared.remote_shards()) {
      EXPECT_TRUE(shards.at(0).to_here().tensor.eq(owner).all().item<bool>());
    }
    mine->group().barrier();
  }
  shutdown_rpc();
  destroy_process_group();
}

// --- Ranks as threads -----------------------------------------------------------------------------------------------

class FourRanks : public MultiThreadedTestCase {};

StateDict state_of(const ShardedTensor& tensor) {
  StateDict state;
  state.insert("a", tensor.as_tensor());
  return state;
}

ShardedTensor tensor_in(const StateDict& state) { return ShardedTensor::of(state["a"].toTensor()); }

ShardedTensor sharded_there_and_back(const ShardedTensor& tensor) {
  return tensor_in(load_state(save_state(state_of(tensor))));
}

void expect_same(const ShardedTensor& loaded, const ShardedTensor& saved) {
  ASSERT_TRUE(loaded.defined());
  EXPECT_EQ(loaded.metadata(), saved.metadata());
  EXPECT_EQ(loaded.sharding_spec()->str(), saved.sharding_spec()->str());
  EXPECT_EQ(loaded.process_group(), saved.process_group());
  EXPECT_EQ(loaded.sizes(), saved.sizes());
  EXPECT_EQ(loaded.dtype(), saved.dtype());
  EXPECT_EQ(loaded.requires_grad(), saved.requires_grad());
  ASSERT_EQ(loaded.local_shards().size(), saved.local_shards().size());
  for (std::size_t i = 0; i < loaded.local_shards().size(); ++i) {
    EXPECT_EQ(loaded.local_shards()[i].metadata, saved.local_shards()[i].metadata);
    EXPECT_TRUE(at::equal(loaded.local_shards()[i].tensor, saved.local_shards()[i].tensor));
  }
}

SHARD_RANKS_TEST(FourRanks, ChunksRoundTrip) {
  const auto spec = chunk_spec(-1, cpu_placements({2, 0, 3, 1}));
  const ShardedTensor saved = sharded_tensor::full(spec, {3, 9}, rank(), {.dtype = at::kDouble});
  expect_same(sharded_there_and_back(saved), saved);
}

SHARD_RANKS_TEST(FourRanks, RanksWithSeveralOrNoShardsRoundTrip) {
  const auto spec = chunk_spec(0, cpu_placements({2, 3, 2, 3}));
  const ShardedTensor saved = sharded_tensor::full(spec, {10, 2}, rank(), {.requires_grad = true});
  EXPECT_EQ(saved.local_shards().size(), rank() < 2 ? 0 : 2);
  expect_same(sharded_there_and_back(saved), saved);
}

SHARD_RANKS_TEST(FourRanks, BoxesRoundTrip) {
  std::vector<ShardMetadata> boxes;
  for (int i = 0; i < 4; ++i) boxes.emplace_back(Sizes{i / 2 * 5, i % 2 * 5}, Sizes{5, 5}, cpu_placements({3 - i})[0]);
  const ShardedTensor saved = sharded_tensor::full(enumerable_spec(boxes), {10, 10}, rank());
  expect_same(sharded_there_and_back(saved), saved);
}

/// Ranks that are threads share the load group: they load one after the other.
StateDict load_within(const ProcessGroupPtr& group, const std::string& bytes) {
  static std::mutex mutex;
  const std::scoped_lock lock(mutex);
  const LoadWithProcessGroup scope(group);
  return load_state(bytes);
}

SHARD_RANKS_TEST(FourRanks, TR07_ranks_outside_of_a_group_load_as_they_saved) {
  const ProcessGroupPtr group = new_group({2, 3});
  const auto spec = chunk_spec(0, cpu_placements({2, 3, 2, 3}));
  const ShardedTensor saved = sharded_tensor::full(spec, {10, 2}, rank(), {.process_group = group});
  const std::string bytes = save_state(state_of(saved));
  expect_same(tensor_in(load_within(group, bytes)), saved);
}

std::string saved_chunks(const std::vector<int>& ranks) {
  return save_state(state_of(sharded_tensor::ones(chunk_spec(0, cpu_placements(ranks)), {8, 2})));
}

SHARD_RANKS_TEST(FourRanks, TR26_the_rank_in_the_group_is_checked_before_its_size) {
  const std::string bytes = saved_chunks({0, 1, 2, 3});
  const ProcessGroupPtr group = new_group({0, 2, 3});
  const char* expected[] = {"Local world size at save time was 4, but at load time was 3",
                            "Local rank at save time was 1, but at load time was -1",
                            "Local rank at save time was 2, but at load time was 1",
                            "Local rank at save time was 3, but at load time was 2"};
  SHARD_EXPECT_THROW(load_within(group, bytes), c10::Error, expected[rank()]);
}

/// Runs `body` as the rank of a second world of threads.
void in_world(const std::shared_ptr<World>& world, const std::function<void()>& body) {
  std::thread([&] {
    init_thread_process_group(world);
    body();
    destroy_process_group();
  }).join();
}

TEST(Worlds, TR26_the_rank_in_the_world_is_checked_before_its_size) {
  std::string of_zero, of_one;
  in_world(make_thread_worlds(1)[0], [&] { of_zero = saved_chunks({0}); });
  const auto worlds = make_thread_worlds(2);
  in_world(worlds[1], [&] {
    const ProcessGroupPtr alone = new_group({1}, {.local_synchronization = true});
    SHARD_EXPECT_THROW(load_within(alone, of_zero), c10::Error,
                       "Global rank at save time was 0, but at load time was 1");
  });
  in_world(worlds[0], [&] {
    const ProcessGroupPtr alone = new_group({0}, {.local_synchronization = true});
    SHARD_EXPECT_THROW(load_within(alone, of_zero), c10::Error,
                       "Global world size at save time was 1, but at load time was 2");
  });
}

TEST(Worlds, TR26_without_a_default_group_nothing_is_loaded) {
  std::string bytes;
  in_world(make_thread_worlds(1)[0], [&] { bytes = saved_chunks({0}); });
  SHARD_EXPECT_THROW(
      load_state(bytes), c10::Error,
      "Need to initialize default process group using \"init_process_group\" before loading ShardedTensor");
}

// --- Files of Python ------------------------------------------------------------------------------------------------

/// The whole tensors of a state that two ranks of this torch saved, by name.
std::map<std::string, at::Tensor> golden_state(const std::string& torch, const std::string& name) {
  std::map<std::string, at::Tensor> wholes;
  spawn_threads_and_init_comms(2, [&](int rank) {
    const std::string file = c10::str(SHARD_TEST_DATA "/golden/", torch, "/", name, "/rank_", rank, ".pt");
    for (const auto& item : load_state_file(file)) {
      const auto tensor = ShardedTensor::of(item.value().toTensor());
      std::optional<at::Tensor> out;
      if (rank == 0) out = wholes[item.key()] = at::zeros(tensor.sizes(), tensor.dtype());
      tensor.gather(0, out);
    }
  });
  return wholes;
}

TEST(StatesOfPython, AreTheSameFromEveryTorch) {
  for (const std::string name : {"ranks_sharded_r2", "ranks_columns_r2", "ranks_blocks_r2"}) {
    const auto expected = golden_state("2.11.0", name);
    EXPECT_GE(expected.size(), 2U);
    for (const std::string torch : {"1.13.1", "2.0.1", "2.2.2", "2.4.1", "2.8.0", "2.15.0"}) {
      const auto found = golden_state(torch, name);
      ASSERT_EQ(found.size(), expected.size()) << torch;
      for (const auto& [key, whole] : expected) EXPECT_TRUE(at::equal(found.at(key), whole)) << torch << " " << key;
    }
  }
}

}  // namespace
}  // namespace shard::test
