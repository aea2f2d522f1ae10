// State dicts as values and as files: what comes back, what is refused, keys of modules. Ranks are threads.

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "libshard/torch/sharded_tensor/factories.h"
#include "libshard/torch/sharded_tensor/modules.h"
#include "libshard/torch/state/dtypes.h"
#include "libshard/torch/state/state_dict.h"
#include "tests/support/distributed/multi_thread_test.h"
#include "tests/support/distributed/sharded_tensor_test.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace shard::test {
namespace {

StateDict state_of(const c10::IValue& value) {
  StateDict state;
  state.insert("a", value);
  return state;
}

c10::IValue there_and_back(const c10::IValue& value) { return load_state(save_state(state_of(value)))["a"]; }

at::Tensor tensor_there_and_back(const at::Tensor& tensor) { return there_and_back(tensor).toTensor(); }

TEST(State, ScalarsComeBack) {
  EXPECT_TRUE(there_and_back(c10::IValue()).isNone());
  EXPECT_TRUE(there_and_back(true).toBool());
  EXPECT_EQ(there_and_back(-3).toInt(), -3);
  EXPECT_EQ(there_and_back(std::int64_t{1} << 40).toInt(), std::int64_t{1} << 40);
  EXPECT_EQ(there_and_back(0.1).toDouble(), 0.1);
  EXPECT_EQ(there_and_back("naïve").toStringRef(), "naïve");
  EXPECT_EQ(there_and_back(c10::complex<double>(1, -2)).toComplexDouble(), c10::complex<double>(1, -2));
}

TEST(State, ListsAndTuplesComeBack) {
  const auto tuple = c10::ivalue::Tuple::create(std::vector<c10::IValue>{1, "x"});
  const c10::IValue list = there_and_back(c10::List<std::int64_t>({4, 5}));
  ASSERT_TRUE(list.isList());
  EXPECT_EQ(list.toListRef()[1].toInt(), 5);
  const c10::IValue pair = there_and_back(tuple);
  ASSERT_TRUE(pair.isTuple());
  EXPECT_EQ(pair.toTupleRef().elements()[1].toStringRef(), "x");
}

TEST(State, DictsKeepTheirOrderAndTheirKindsOfKeys) {
  c10::impl::GenericDict dict(c10::AnyType::get(), c10::AnyType::get());
  dict.insert("z", 1);
  dict.insert(5, at::ones({2}));
  dict.insert("a", c10::IValue());
  std::vector<c10::IValue> keys;
  const c10::IValue loaded = there_and_back(dict);
  for (const auto& entry : loaded.toGenericDict()) keys.push_back(entry.key());
  ASSERT_EQ(keys.size(), 3);
  EXPECT_EQ(keys[0].toStringRef(), "z");
  EXPECT_EQ(keys[1].toInt(), 5);
  EXPECT_EQ(keys[2].toStringRef(), "a");
}

TEST(State, NamesKeepTheirOrder) {
  StateDict state;
  for (const char* name : {"z", "a", "m.n"}) state.insert(name, 1);
  EXPECT_EQ(load_state(save_state(state)).keys(), (std::vector<std::string>{"z", "a", "m.n"}));
}

TEST(State, TensorsOfAllElementTypesComeBack) {
  for (const at::ScalarType type :
       {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kLong, at::kInt, at::kShort, at::kChar, at::kByte,
        at::kBool, at::kComplexFloat, at::kComplexDouble, at::kUInt16, at::kUInt32, at::kUInt64, at::kFloat8_e4m3fn}) {
    const at::Tensor tensor = at::arange(6).reshape({2, 3}).to(type);
    const at::Tensor loaded = tensor_there_and_back(tensor);
    EXPECT_EQ(loaded.scalar_type(), type);
    EXPECT_TRUE(at::equal(loaded.to(at::kComplexDouble), tensor.to(at::kComplexDouble))) << c10::toString(type);
  }
}

TEST(State, ElementTypesHaveOneNameEach) {
  EXPECT_EQ(dtype_of(at::kBFloat16), DType::kBfloat16);
  EXPECT_EQ(scalar_type_of(DType::kFloat8E5m2), at::kFloat8_e5m2);
  expect_error(ErrorCode::kUnsupported, "float6_e2m3fn", [] { scalar_type_of(DType::kFloat6E2m3fn); });
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    const bool is_ours = dtype == DType::kFloat6E2m3fn || dtype == DType::kFloat6E3m2fn || dtype == DType::kBcomplex32;
    if (is_ours) continue;
    EXPECT_EQ(dtype_of(scalar_type_of(dtype)), dtype) << dtype_name(dtype);
  }
}

TEST(State, ViewsShareOneStorageAfterwards) {
  const at::Tensor base = at::arange(12.).reshape({3, 4});
  StateDict state = state_of(base);
  state.insert("columns", base.slice(1, 1, 3));
  const std::string bytes = save_state(state);
  const StateDict loaded = load_state(bytes);
  loaded["a"].toTensor().mul_(2);
  EXPECT_TRUE(at::equal(loaded["columns"].toTensor(), base.slice(1, 1, 3) * 2));
}

TEST(State, OneTensorUnderTwoNamesStaysOne) {
  StateDict state = state_of(at::ones({2}));
  state.insert("b", state["a"]);
  const StateDict loaded = load_state(save_state(state));
  EXPECT_TRUE(loaded["a"].toTensor().is_same(loaded["b"].toTensor()));
}

TEST(State, OneListUnderTwoNamesStaysOne) {
  StateDict state = state_of(c10::List<std::int64_t>({1}));
  state.insert("b", state["a"]);
  const StateDict loaded = load_state(save_state(state));
  EXPECT_TRUE(loaded["a"].is(loaded["b"]));
}

TEST(State, TransposedConjugatedAndEmptyTensorsComeBack) {
  const at::Tensor matrix = at::arange(6.).reshape({2, 3});
  const at::Tensor waves = at::complex(matrix, matrix + 1);
  EXPECT_TRUE(at::equal(tensor_there_and_back(matrix.t()), matrix.t()));
  EXPECT_EQ(tensor_there_and_back(matrix.t()).strides(), (std::vector<std::int64_t>{1, 3}));
  EXPECT_TRUE(at::equal(tensor_there_and_back(waves.conj()), waves.conj()));
  EXPECT_EQ(tensor_there_and_back(at::empty({0, 4})).sizes(), (std::vector<std::int64_t>{0, 4}));
  EXPECT_EQ(tensor_there_and_back(at::scalar_tensor(7.)).item<double>(), 7);
}

TEST(State, RequiresGradComesBack) {
  EXPECT_TRUE(tensor_there_and_back(at::ones({2}).requires_grad_()).requires_grad());
  EXPECT_FALSE(tensor_there_and_back(at::ones({2})).requires_grad());
}

TEST(State, LoadedTensorsDoNotPointIntoTheFile) {
  std::string bytes = save_state(state_of(at::ones({3})));
  const at::Tensor loaded = load_state(bytes)["a"].toTensor();
  bytes.assign(bytes.size(), 'x');
  EXPECT_TRUE(at::equal(loaded, at::ones({3})));
}

TEST(State, FilesHoldTheSameBytes) {
  const TempFolder folder;
  save_state_file(state_of(at::ones({3})), folder / "s.pt");
  EXPECT_EQ(folder.read("s.pt"), save_state(state_of(at::ones({3}))));
  EXPECT_TRUE(at::equal(load_state_file(folder / "s.pt")["a"].toTensor(), at::ones({3})));
}

TEST(State, AFileThatIsThereIsKeptUnlessForced) {
  const TempFolder folder;
  folder.write("s.pt", "old");
  expect_error(ErrorCode::kExists, "", [&] { save_state_file(state_of(1), folder / "s.pt"); });
  EXPECT_EQ(folder.read("s.pt"), "old");
  save_state_file(state_of(1), folder / "s.pt", true);
  EXPECT_EQ(load_state_file(folder / "s.pt")["a"].toInt(), 1);
}

TEST(State, AnAbsentFileIsNotFound) {
  expect_error(ErrorCode::kNotFound, "", [] { load_state_file("/nowhere/s.pt"); });
}

TEST(State, CutBytesAreCorrupt) {
  const std::string bytes = save_state(state_of(at::ones({100})));
  expect_error(ErrorCode::kCorruption, "", [&] { load_state(std::string_view(bytes).substr(0, bytes.size() / 2)); });
}

void expect_refused(const c10::IValue& value, const std::string& words) {
  const c10::IValue pair = c10::ivalue::Tuple::create(std::vector<c10::IValue>{1, value});
  const Error error = error_of([&] { save_state(state_of(pair)); });
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_EQ(error.tensor(), "a.1");
  EXPECT_THAT(error.what() + error.why(), ::testing::HasSubstr(words));
}

TEST(State, WhatFilesCannotHoldIsRefusedByName) {
  expect_refused(at::Tensor(), "undefined");
  expect_refused(at::eye(3).to_sparse(), "layout");
  expect_refused(at::empty({2}, at::kMeta), "no storage");
  expect_refused(at::Device(at::kCPU), "Device");
}

TEST(State, AListThatHoldsItselfIsRefused) {
  c10::impl::GenericList list(c10::AnyType::get());
  list.push_back(list);
  expect_error(ErrorCode::kUnsupported, "hold themselves", [&] { save_state(state_of(list)); });
  list.clear();
}

TEST(State, OneStorageOfTwoElementTypesIsRefused) {
  StateDict state = state_of(at::zeros({4}, at::kInt));
  state.insert("b", state["a"].toTensor().view(at::kFloat));
  EXPECT_EQ(error_of([&] { save_state(state); }).tensor(), "b");
}

// --- Modules --------------------------------------------------------------------------------------------------------

struct Leaf : torch::nn::Module, ShardedAttributes {
  Leaf() {
    register_sharded_tensor("part", part);
    weight = register_parameter("weight", at::ones({2, 2}));
  }
  ShardedTensor part;
  at::Tensor weight;
};

struct Root : torch::nn::Module, ShardedAttributes {
  Root() {
    register_sharded_tensor("whole", whole);
    leaf = register_module("leaf", std::make_shared<Leaf>());
  }
  ShardedTensor whole;
  std::shared_ptr<Leaf> leaf;
};

ShardedTensor on_this_rank() { return sharded_tensor::ones(chunk_spec(0, {"rank:0/cpu"}), {4, 2}); }

class OneRank : public MultiThreadedTestCase {
 public:
  int world_size() const override { return 1; }
};

SHARD_RANKS_TEST(OneRank, TR35_keys_have_no_leading_dot_and_are_dotted_below) {
  Root module;
  module.whole = on_this_rank();
  module.leaf->part = on_this_rank();
  StateDict state;
  state_dict_hook(module, state);
  EXPECT_EQ(state.keys(), (std::vector<std::string>{"whole", "leaf.part"}));
}

SHARD_RANKS_TEST(OneRank, APrefixIsJoinedByOneDot) {
  Leaf module;
  module.part = on_this_rank();
  EXPECT_EQ(state_dict(module, "net").keys(), (std::vector<std::string>{"net.weight", "net.part"}));
  EXPECT_EQ(state_dict(module, "net.").keys(), (std::vector<std::string>{"net.weight", "net.part"}));
}

SHARD_RANKS_TEST(OneRank, EmptyAttributesHaveNoKey) {
  EXPECT_EQ(state_dict(Root()).keys(), std::vector<std::string>{"leaf.weight"});
}

SHARD_RANKS_TEST(OneRank, TR35_the_load_hook_fills_empty_attributes) {
  Root from, to;
  from.whole = on_this_rank();
  from.leaf->part = on_this_rank();
  pre_load_state_dict_hook(to, state_dict(from));
  EXPECT_TRUE(to.whole.is_same(from.whole));
  EXPECT_TRUE(to.leaf->part.is_same(from.leaf->part));
}

SHARD_RANKS_TEST(OneRank, TheLoadHookLeavesWhatIsNoShardedTensor) {
  Leaf module;
  StateDict state;
  state.insert("part", at::ones({2}));
  pre_load_state_dict_hook(module, state);
  EXPECT_FALSE(module.part.defined());
}

SHARD_RANKS_TEST(OneRank, LoadingFindsShardsInAnyLocalOrder) {
  torch::nn::Linear from(2, 4), to(2, 4);
  for (torch::nn::Linear layer : {from, to}) {
    shard_parameter(*layer, "weight", layer->weight, chunk_spec(0, {"rank:0/cpu", "rank:0/cpu"}));
  }
  const ShardedTensor weight = ShardedTensor::of(from->weight);
  const std::vector<Shard> last_first{weight.local_shards()[1], weight.local_shards()[0]};
  StateDict state;
  state.insert("weight",
               ShardedTensor::init_from_local_shards_and_global_metadata(last_first, weight.metadata()).as_tensor());
  load_state_dict(*to, state, false);
  const auto& loaded = ShardedTensor::of(to->weight).local_shards();
  EXPECT_TRUE(at::equal(loaded[0].tensor, weight.local_shards()[0].tensor));
  EXPECT_TRUE(at::equal(loaded[1].tensor, weight.local_shards()[1].tensor));
}

SHARD_RANKS_TEST(OneRank, LoadingCopiesIntoParameters) {
  Leaf module;
  StateDict state;
  state.insert("weight", at::full({2, 2}, 3.));
  const at::Tensor weight = module.weight;
  const LoadStateResult result = load_state_dict(module, state);
  EXPECT_TRUE(at::equal(weight, at::full({2, 2}, 3.)));
  EXPECT_TRUE(result.missing_keys.empty());
}

SHARD_RANKS_TEST(OneRank, LoadingNamesMissingAndUnexpectedKeys) {
  Leaf module;
  const LoadStateResult result = load_state_dict(module, state_of(1), false);
  EXPECT_EQ(result.missing_keys, std::vector<std::string>{"weight"});
  EXPECT_EQ(result.unexpected_keys, std::vector<std::string>{"a"});
  SHARD_EXPECT_THROW(load_state_dict(module, state_of(1)), c10::Error, "Unexpected key(s): a");
}

SHARD_RANKS_TEST(OneRank, LoadingAnotherSizeFails) {
  Leaf module;
  StateDict state;
  state.insert("weight", at::ones({3}));
  SHARD_EXPECT_THROW(load_state_dict(module, state), c10::Error, "size mismatch for weight");
}

// --- ShardedTensors -------------------------------------------------------------------------------------------------

class FourRanks : public MultiThreadedTestCase {};

std::vector<RemoteDevice> placements_of(const std::vector<int>& ranks) {
  std::vector<RemoteDevice> placements;
  for (const int rank : ranks) placements.emplace_back(rank, at::Device(at::kCPU));
  return placements;
}

ShardedTensor sharded_there_and_back(const ShardedTensor& tensor) {
  return ShardedTensor::of(tensor_there_and_back(tensor.as_tensor()));
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

SHARD_RANKS_TEST(FourRanks, ChunksComeBack) {
  const auto spec = chunk_spec(-1, placements_of({2, 0, 3, 1}));
  const ShardedTensor saved = sharded_tensor::full(spec, {3, 9}, rank(), {.dtype = at::kDouble});
  expect_same(sharded_there_and_back(saved), saved);
}

SHARD_RANKS_TEST(FourRanks, SeveralAndNoShardsOfARankComeBack) {
  const auto spec = chunk_spec(0, placements_of({2, 3, 2, 3}));
  const ShardedTensor saved = sharded_tensor::full(spec, {10, 2}, rank(), {.requires_grad = true});
  EXPECT_EQ(saved.local_shards().size(), rank() < 2 ? 0 : 2);
  expect_same(sharded_there_and_back(saved), saved);
}

SHARD_RANKS_TEST(FourRanks, BoxesComeBack) {
  std::vector<ShardMetadata> boxes;
  for (int i = 0; i < 4; ++i) boxes.emplace_back(Sizes{i / 2 * 5, i % 2 * 5}, Sizes{5, 5}, placements_of({3 - i})[0]);
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
  const auto spec = chunk_spec(0, placements_of({2, 3, 2, 3}));
  const ShardedTensor saved = sharded_tensor::full(spec, {10, 2}, rank(), {.process_group = group});
  const std::string bytes = save_state(state_of(saved.as_tensor()));
  expect_same(ShardedTensor::of(load_within(group, bytes)["a"].toTensor()), saved);
}

std::string saved_chunks(const std::vector<int>& ranks) {
  return save_state(state_of(sharded_tensor::ones(chunk_spec(0, placements_of(ranks)), {8, 2}).as_tensor()));
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

/// Runs `body` as the rank of another world of threads.
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
    const ProcessGroupPtr alone = new_group({1}, true);
    SHARD_EXPECT_THROW(load_within(alone, of_zero), c10::Error,
                       "Global rank at save time was 0, but at load time was 1");
  });
  in_world(worlds[0], [&] {
    const ProcessGroupPtr alone = new_group({0}, true);
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

SHARD_RANKS_TEST(OneRank, TheLoadGroupIsNotSetTwiceAndClearedAfterwards) {
  const ProcessGroupPtr group = new_group({0});
  {
    const LoadWithProcessGroup scope(group);
    EXPECT_EQ(current_load_group(), group);
    SHARD_EXPECT_THROW(LoadWithProcessGroup again(group), c10::Error,
                       "ProcessGroup already set by previous \"load_with_process_group\" context manager");
    EXPECT_EQ(current_load_group(), group);
  }
  EXPECT_EQ(current_load_group(), default_group());
}

TEST(Worlds, WithoutAnyGroupThereIsNoLoadGroup) {
  SHARD_EXPECT_THROW(current_load_group(), c10::ValueError, "Default process group has not been initialized");
}

SHARD_RANKS_TEST(OneRank, LoadingCopiesIntoShardedParameters) {
  torch::nn::Linear layer(2, 4);
  shard_parameter(*layer, "weight", layer->weight, chunk_spec(0, {"rank:0/cpu"}));
  StateDict state = state_dict(*layer);
  *state.find("weight") = sharded_tensor::full(chunk_spec(0, {"rank:0/cpu"}), {4, 2}, 3).as_tensor();
  load_state_dict(*layer, state);
  EXPECT_TRUE(at::equal(ShardedTensor::of(layer->weight).local_tensor(), at::full({4, 2}, 3.)));
}

}  // namespace
}  // namespace shard::test
