// State dicts as values and as files: round trips, refusals, keys of modules. Ranks are threads.

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <string>
#include <vector>

#include "shardtorch/sharded_tensor/factories.h"
#include "shardtorch/sharded_tensor/modules.h"
#include "shardtorch/state/dtypes.h"
#include "shardtorch/state/state_dict.h"
#include "shardtorch/state/values.h"
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
  const bool has_bcomplex32 = c10::getStringToDtypeMap().contains("bcomplex32");  // LibTorch 2.15 has, 2.11 has not.
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    const bool is_ours = dtype == DType::kFloat6E2m3fn || dtype == DType::kFloat6E3m2fn ||
                         (dtype == DType::kBcomplex32 && !has_bcomplex32);
    if (is_ours) {
      expect_error(ErrorCode::kUnsupported, std::string(dtype_name(dtype)), [&] { scalar_type_of(dtype); });
      continue;
    }
    EXPECT_EQ(dtype_of(scalar_type_of(dtype)), dtype) << dtype_name(dtype);
    EXPECT_EQ(static_cast<int>(c10::elementSize(scalar_type_of(dtype))), element_bytes(dtype)) << dtype_name(dtype);
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

TEST(State, StringsThatAreNoUtf8AreRefused) {
  expect_refused("\xff", "not UTF-8");
  StateDict state;
  state.insert("\xff", 1);
  expect_error(ErrorCode::kUnsupported, "not UTF-8", [&] { save_state(state); });
}

TEST(State, IntegersPast64BitsAreRefused) {
  Value two_to_the_64;
  two_to_the_64.kind = ValueKind::kLong;
  two_to_the_64.set_text(std::string_view("\0\0\0\0\0\0\0\0\1", 9));
  expect_error(ErrorCode::kUnsupported, "int of more than 64 bits", [&] { to_ivalue(two_to_the_64); });
}

TEST(State, DTensorsNeedAGroup) {
  SHARD_EXPECT_THROW(load_state_file(SHARD_TEST_DATA "/golden/2.11.0/ranks_dtensor_r2/model_world_size_2_rank_0.pt"),
                     c10::Error, "before loading DTensor");
}

TEST(State, AListThatHoldsItselfIsRefused) {
  c10::impl::GenericList list(c10::AnyType::get());
  list.push_back(list);
  expect_error(ErrorCode::kUnsupported, "contain themselves", [&] { save_state(state_of(list)); });
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

SHARD_RANKS_TEST(OneRank, APrefixIsFollowedByOneDot) {
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

SHARD_RANKS_TEST(OneRank, TheLoadHookIgnoresOtherValues) {
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
  SHARD_EXPECT_THROW(load_state_dict(module, state_of(1)), c10::Error, "Unexpected key(s) in state_dict: \"a\"");
}

SHARD_RANKS_TEST(OneRank, LoadingAnotherSizeFails) {
  Leaf module;
  StateDict state;
  state.insert("weight", at::ones({3}));
  SHARD_EXPECT_THROW(load_state_dict(module, state), c10::Error, "size mismatch for weight");
}

SHARD_RANKS_TEST(OneRank, LoadingPutsTensorsWhereTheMapSays) {
  StateDict state;
  state.insert("plain", at::ones({3}));
  state.insert("sharded", sharded_tensor::ones(chunk_spec(0, {"rank:0/cpu"}), {4}).as_tensor());
  std::vector<at::Device> asked;
  const StateDict loaded = load_state(save_state(state), [&asked](at::Device saved) {
    asked.push_back(saved);
    return at::Device(at::kMeta);
  });
  EXPECT_TRUE(loaded["plain"].toTensor().is_meta());
  EXPECT_EQ(loaded["plain"].toTensor().sizes(), at::IntArrayRef({3}));
  const ShardedTensor sharded = ShardedTensor::of(loaded["sharded"].toTensor());
  EXPECT_TRUE(sharded.local_tensor().is_meta());
  EXPECT_EQ(sharded.metadata().shards_metadata[0].placement, RemoteDevice("rank:0/meta"));
  EXPECT_EQ(as_chunk(*sharded.sharding_spec())->placements()[0], RemoteDevice("rank:0/meta"));
  EXPECT_THAT(asked, ::testing::Each(at::Device(at::kCPU)));
}

struct Pair : torch::nn::Module, ShardedAttributes {
  Pair() {
    register_sharded_tensor("part", part);
    first = register_parameter("first", at::zeros({2}));
    second = register_parameter("second", at::zeros({2}));
    third = register_parameter("third", at::zeros({2}));
  }
  ShardedTensor part;
  at::Tensor first, second, third;
};

SHARD_RANKS_TEST(OneRank, LoadingThatFailsChangesNothingAndListsAll) {
  Pair module;
  StateDict state;
  state.insert("first", at::ones({2}));
  state.insert("second", at::ones({3}));
  state.insert("third", "text");
  state.insert("part", sharded_tensor::ones(chunk_spec(0, {"rank:0/cpu"}), {4}).as_tensor());
  state.insert("other", 1);
  for (const std::string words : {"Unexpected key(s) in state_dict: \"other\".", "size mismatch for second",
                                  "third is a String, not a tensor."}) {
    SHARD_EXPECT_THROW(load_state_dict(module, state), c10::Error, words);
  }
  EXPECT_EQ(module.first.sum().item<double>(), 0);
  EXPECT_FALSE(module.part.defined());
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

TEST(Worlds, NoLoadGroupWithoutAGroup) {
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

SHARD_RANKS_TEST(OneRank, LoadingOtherShardsIntoParametersChangesNothing) {
  torch::nn::Linear layer(2, 4);
  shard_parameter(*layer, "weight", layer->weight, chunk_spec(0, {"rank:0/cpu"}));
  const at::Tensor bias = layer->bias.detach().clone();
  StateDict state;
  state.insert("bias", bias + 1);
  state.insert("weight", sharded_tensor::ones(chunk_spec(0, {"rank:0/cpu", "rank:0/cpu"}), {4, 2}).as_tensor());
  SHARD_EXPECT_THROW(load_state_dict(*layer, state), c10::Error, "weight is sharded, and this rank's shards differ");
  *state.find("weight") = at::ones({4, 2});
  SHARD_EXPECT_THROW(load_state_dict(*layer, state), c10::Error, "weight is sharded, and this rank's shards differ");
  EXPECT_TRUE(at::equal(layer->bias, bias));
}

}  // namespace
}  // namespace shard::test
