// Dispatch of torch's operators on a ShardedTensor; its built-in operators; access to memory never succeeds.

#include "shardtorch/sharded_tensor/ops.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/init.h>

#include <functional>
#include <optional>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "shardtorch/sharded_tensor/factories.h"
#include "tests/support/distributed/layouts.h"
#include "tests/support/distributed/multi_thread_test.h"
#include "tests/support/distributed/sharded_tensor_test.h"

namespace shard::test {
namespace {

ShardingSpecPtr rows_of_one() { return chunk_spec(0, cpu_placements({0})); }

auto answer(c10::IValue value) {
  return [value](std::string_view, at::ArrayRef<c10::IValue>, const ProcessGroupPtr&) { return value; };
}

/// One rank: the registrations of a test are separate.
class Dispatch : public MultiThreadedTestCase {
 public:
  int world_size() const override { return 1; }

 protected:
  ShardedTensor zeros() const { return sharded_tensor::zeros(rows_of_one(), {10, 20}); }
};

/// The result of at::asin: the number of the op that ran; 0 if none did.
int asin_of(const ShardedTensor& tensor) {
  try {
    return at::asin(tensor.as_tensor()).item<int>();
  } catch (const c10::Error&) {
    return 0;
  }
}

SHARD_RANKS_TEST(Dispatch, TR23_the_users_op_then_the_specs_then_the_built_in_one) {
  const ShardedTensor st = zeros();
  EXPECT_TRUE(at::equal(st.as_tensor(), st.as_tensor()));
  {
    const auto of_spec = custom_sharding_spec_op("ChunkShardingSpec", "equal", answer(false));
    EXPECT_FALSE(at::equal(st.as_tensor(), st.as_tensor()));
    const auto of_user = custom_sharded_op_impl("equal", answer(true));
    EXPECT_TRUE(at::equal(st.as_tensor(), st.as_tensor()));
  }
  const auto of_others = custom_sharding_spec_op("EnumerableShardingSpec", "equal", answer(false));
  EXPECT_TRUE(at::equal(st.as_tensor(), st.as_tensor()));
}

SHARD_RANKS_TEST(Dispatch, TR24_registrations_nest) {
  const ShardedTensor st = zeros();
  {
    const auto outer = custom_sharded_op_impl("asin", answer(at::scalar_tensor(1)));
    {
      const auto inner = custom_sharded_op_impl("asin", answer(at::scalar_tensor(2)));
      EXPECT_EQ(asin_of(st), 2);
    }
    EXPECT_EQ(asin_of(st), 1);
  }
  EXPECT_EQ(asin_of(st), 0);
}

SHARD_RANKS_TEST(Dispatch, RegistrationsEndInAnyOrder) {
  const ShardedTensor st = zeros();
  std::optional outer(custom_sharded_op_impl("asin", answer(at::scalar_tensor(1))));
  std::optional inner(custom_sharded_op_impl("asin", answer(at::scalar_tensor(2))));
  outer.reset();
  EXPECT_EQ(asin_of(st), 2);
  *inner = custom_sharded_op_impl("asin", answer(at::scalar_tensor(3)));
  EXPECT_EQ(asin_of(st), 3);
  inner.reset();
  EXPECT_EQ(asin_of(st), 0);
}

SHARD_RANKS_TEST(Dispatch, ASpecsOpsAreKnownByItsClass) {
  const auto registration = custom_sharding_spec_op("ChunkShardingSpec", "linear", answer(1));
  EXPECT_TRUE(has_custom_op(*rows_of_one(), "linear"));
  EXPECT_FALSE(has_custom_op(*rows_of_one(), "asin"));
}

SHARD_RANKS_TEST(Dispatch, ASpecsOpRunsForTheSpecOrAnErrorNamesIt) {
  const auto registration = custom_sharding_spec_op("ChunkShardingSpec", "linear", answer(7));
  EXPECT_EQ(dispatch_custom_op(*rows_of_one(), "linear", {}, nullptr).toInt(), 7);
  SHARD_EXPECT_THROW(dispatch_custom_op(*rows_of_one(), "asin", {}, nullptr), c10::Error,
                     "Custom op: asin not registered for ChunkShardingSpec");
  const auto boxes = enumerable_spec({ShardMetadata({0}, {4}, RemoteDevice(0, at::kCPU))});
  SHARD_EXPECT_THROW(dispatch_custom_op(*boxes, "linear", {}, nullptr), c10::Error,
                     "Custom op: linear not registered for EnumerableShardingSpec");
}

SHARD_RANKS_TEST(Dispatch, HandlersGetNameArgumentsWithDefaultsAndGroup) {
  const ShardedTensor st = zeros();
  std::string op;
  std::vector<c10::IValue> args;
  ProcessGroupPtr group;
  const auto keep = [&](std::string_view name, at::ArrayRef<c10::IValue> values, const ProcessGroupPtr& of) {
    op = name;
    args = values.vec();
    group = of;
    return at::ones({1});
  };
  const auto registration = custom_sharded_op_impl("add", keep);
  at::add(at::ones({10, 20}), st.as_tensor());
  EXPECT_EQ(op, "add");
  ASSERT_EQ(args.size(), 3U);
  EXPECT_TRUE(ShardedTensor::of(args[1].toTensor()).is_same(st));
  EXPECT_EQ(args[2].toScalar().toInt(), 1);
  EXPECT_EQ(group, default_group());
}

SHARD_RANKS_TEST(Dispatch, UnsupportedOpsThrowTheCompleteMessage) {
  const at::Tensor st = zeros().as_tensor(), plain = at::ones({10, 20});
  const std::vector<std::int64_t> dims{0, 1};
  const auto text_of = [](const auto& action) {
    try {
      action();
    } catch (const c10::Error& error) {
      return std::string(error.what_without_backtrace());
    }
    return std::string("nothing was thrown");
  };
  EXPECT_EQ(text_of([&] { at::add(st, plain); }),
            "torch function 'add', with args: (ShardedTensor(size=[10, 20], dtype=Float), "
            "Tensor(size=[10, 20], dtype=Float)) and kwargs: {'alpha': 1} not supported for ShardedTensor!");
  EXPECT_EQ(text_of([&] { at::sum(st, dims, true, at::kInt); }),
            "torch function 'sum', with args: (ShardedTensor(size=[10, 20], dtype=Float), [0, 1], True) and kwargs: "
            "{'dtype': 3} not supported for ShardedTensor!");
  EXPECT_EQ(text_of([&] { plain.clone().copy_(st); }),
            "torch function 'copy_', with args: (Tensor(size=[10, 20], dtype=Float), "
            "ShardedTensor(size=[10, 20], dtype=Float), False) and kwargs: {} not supported for ShardedTensor!");
}

SHARD_RANKS_TEST(Dispatch, TensorsInsideOfArgumentsAreFound) {
  const at::Tensor st = zeros().as_tensor(), plain = at::ones({10, 20});
  SHARD_EXPECT_THROW(at::cat({plain, st}), c10::Error,
                     "'cat', with args: ([Tensor(size=[10, 20], dtype=Float), Sharded");
  SHARD_EXPECT_THROW(at::index(plain, {std::nullopt, st}), c10::Error, "torch function 'index'");
  SHARD_EXPECT_THROW(
      call_op("f", {c10::ivalue::Tuple::create({1, std::vector<at::Tensor>{st}})}), c10::Error,
      "torch function 'f', with args: ((1, [ShardedTensor(size=[10, 20], dtype=Float)])) and kwargs: {} not");
  c10::Dict<std::string, at::Tensor> dict;
  dict.insert("weight", st);
  SHARD_EXPECT_THROW(call_op("f", {dict}), c10::Error,
                     "with args: ({weight: ShardedTensor(size=[10, 20], dtype=Float)})");
  const auto registration = custom_sharded_op_impl("stack", answer(at::scalar_tensor(5)));
  EXPECT_EQ(at::stack({plain, st}).item<int>(), 5);
}

SHARD_RANKS_TEST(Dispatch, SeveralResultsAreATuple) {
  const at::Tensor st = zeros().as_tensor(), values = at::ones({1}), indices = at::zeros({1}, at::kLong);
  {
    const auto registration = custom_sharded_op_impl("max", answer(std::make_tuple(values, indices)));
    const auto [maxima, where] = at::max(st, 0);
    EXPECT_TRUE(maxima.is_same(values));
    EXPECT_TRUE(where.is_same(indices));
  }
  const auto registration = custom_sharded_op_impl("max", answer(values));
  SHARD_EXPECT_THROW(at::max(st, 0), c10::TypeError, "'max' has 2 results: its handler must return a tuple");
}

SHARD_RANKS_TEST(Dispatch, AnOpIsCalledByItsName) {
  const ShardedTensor st = zeros();
  EXPECT_TRUE(call_op("equal", {st.as_tensor(), st.as_tensor()}).toBool());
  declare_op("my_own");
  const auto registration = custom_sharded_op_impl("my_own", answer(7));
  EXPECT_EQ(call_op("my_own", {st.as_tensor()}).toInt(), 7);
  SHARD_EXPECT_THROW(call_op("linear", {}), c10::ValueError, " No input for 'linear'!");
  SHARD_EXPECT_THROW(call_op("linear", {at::ones({2})}), c10::TypeError,
                     "torch function 'linear', with args: (Tensor(size=[2], dtype=Float)) and kwargs: {} are called "
                     "without any distributed tensor!");
  SHARD_EXPECT_THROW(call_op("asin", {st.as_tensor()}), c10::Error, "not supported for ShardedTensor!");
}

SHARD_RANKS_TEST(Dispatch, TheBaseClassHasNoOps) {
  const auto base =
      ShardedTensorBase::init_from_local_shards_and_global_metadata({}, {{{{0}, {4}, "rank:0/cpu"}}, {4}, {}});
  SHARD_EXPECT_THROW(at::relu(base.as_tensor()), c10::Error,
                     "A ShardedTensorBase object is being used from c++ while calling relu but there is no custom "
                     "__torch_dispatch__ implementation for it.");
}

SHARD_RANKS_TEST(Dispatch, LikeFunctionsUseSpecSizeAndGroup) {
  const ProcessGroupPtr group = new_group({0});
  const ShardedTensor st =
      sharded_tensor::zeros(chunk_spec(0, {"rank:0/cpu"}), {4, 3}, {.dtype = at::kDouble, .process_group = group});
  const auto like = ShardedTensor::of(torch::ones_like(st.as_tensor(), torch::requires_grad()));
  EXPECT_EQ(like.process_group(), group);
  EXPECT_EQ(like.sharding_spec(), st.sharding_spec());
  EXPECT_EQ(like.dtype(), at::kFloat) << "the default, as Python's";
  EXPECT_TRUE(like.requires_grad() && like.metadata().tensor_properties.requires_grad);
  for (const Shard& shard : like.local_shards()) EXPECT_TRUE(shard.tensor.requires_grad());
  EXPECT_EQ(ShardedTensor::of(at::zeros_like(st.as_tensor(), st.as_tensor().options())).dtype(), at::kDouble);
  SHARD_EXPECT_THROW(at::zeros_like(st.as_tensor(), at::TensorOptions(at::kMeta)), c10::TypeError, "takes no device");
}

SHARD_RANKS_TEST(Dispatch, InitializersOfTorchFillLocalShards) {
  const ShardedTensor st = sharded_tensor::zeros(chunk_spec(0, {"rank:0/cpu"}), {4, 3}), other = clone(st);
  const auto same = [&] { return at::equal(st.as_tensor(), other.as_tensor()); };
  at::manual_seed(7);
  torch::nn::init::uniform_(st.as_tensor(), -2, 3);
  at::manual_seed(7);
  init::uniform_(other, -2, 3);
  EXPECT_TRUE(same());
  at::manual_seed(8);
  torch::nn::init::normal_(st.as_tensor(), 1, 0.5);
  at::manual_seed(8);
  init::normal_(other, 1, 0.5);
  EXPECT_TRUE(same());
  torch::nn::init::constant_(st.as_tensor(), 4.5);
  init::constant_(other, 4.5);
  EXPECT_TRUE(same());
  torch::nn::init::zeros_(st.as_tensor());
  EXPECT_TRUE(at::equal(st.as_tensor(), sharded_tensor::zeros_like(st).as_tensor()));
  at::manual_seed(9);
  torch::nn::init::kaiming_uniform_(st.as_tensor());
  at::manual_seed(9);
  init::kaiming_uniform_(other);
  EXPECT_TRUE(same()) << "on one rank the shard is the whole";
}

SHARD_RANKS_TEST(Dispatch, NamesThatNothingHasAreRefused) {
  SHARD_EXPECT_THROW((void)custom_sharded_op_impl("liner", answer(1)), c10::ValueError,
                     "cannot register the op 'liner': torch has no operator of this name");
  SHARD_EXPECT_THROW((void)custom_sharding_spec_op("ChunkSpec", "linear", answer(1)), c10::ValueError,
                     "cannot register an op for the class 'ChunkSpec'");
  declare_spec_class("SpecOfThisTest");
  (void)custom_sharding_spec_op("SpecOfThisTest", "linear", answer(1));
}

SHARD_RANKS_TEST(Dispatch, AnOpForAClassOfSpecsMayNameTheClassAsAType) {
  const auto registration = custom_sharding_spec_op<ChunkShardingSpec>("asin", answer(3));
  EXPECT_EQ(call_op("asin", {zeros().as_tensor()}).toInt(), 3);
  EXPECT_TRUE(has_custom_op(*zeros().sharding_spec(), "asin"));
}

// --- Warnings -------------------------------------------------------------------------------------------------------

/// Torch's warnings while `body` runs, including those that appear once per process.
std::vector<std::string> warnings_of(const std::function<void()>& body) {
  struct Keeper final : c10::WarningHandler {
    void process(const c10::Warning& warning) override { texts.push_back(warning.msg()); }
    std::vector<std::string> texts;
  } keeper;
  const c10::WarningUtils::WarningHandlerGuard handler(&keeper);
  const c10::WarningUtils::WarnAlways always;
  body();
  return keeper.texts;
}

SHARD_RANKS_TEST(Dispatch, DeprecatedFunctionsWarn) {
  ShardedTensor st = zeros();
  const std::vector<std::string> once{
      "PyTorch deprecates ShardedTensor: new code should use shard::dtensor::DTensor (shardtorch/dtensor/dtensor.h)."};
  const auto deprecated = ::testing::ElementsAreArray(rank() == 0 ? once : std::vector<std::string>());
  EXPECT_THAT(warnings_of([&] { at::equal(st.as_tensor(), st.as_tensor()); }), deprecated);
  EXPECT_THAT(warnings_of([&] { st.reshard(rows_of_one()); }), deprecated);
  EXPECT_THAT(warnings_of([&] {
                ShardedTensor::init_from_local_tensor(st.local_tensor(), rows_of_one(), {10, 20});
              }),
              deprecated);
  EXPECT_THAT(warnings_of([&] {
                st.gather(0, at::empty({10, 20}), {.enforce_dtype = true});
              }),
              ::testing::ElementsAre("`enforce_dtype` is deprecated. Please use `dtype` instead."));
  EXPECT_THAT(warnings_of([&] { zeros().gather(0, at::empty({10, 20})); }), ::testing::IsEmpty());
}

// --- Never memory ---------------------------------------------------------------------------------------------------

SHARD_RANKS_TEST(Dispatch, TheWrapperNeverGivesMemory) {
  const at::Tensor st = zeros().as_tensor();
  EXPECT_ANY_THROW(st.data_ptr());
  EXPECT_ANY_THROW(st.const_data_ptr());
  EXPECT_ANY_THROW(st.mutable_data_ptr<float>());
  EXPECT_ANY_THROW((st.accessor<float, 2>()));
  EXPECT_ANY_THROW(st.storage());
  EXPECT_ANY_THROW(st.item());
  EXPECT_ANY_THROW(st.item<float>());
  EXPECT_ANY_THROW(st[0]);
  EXPECT_ANY_THROW(st.index({at::indexing::Slice()}));
  EXPECT_ANY_THROW(st.contiguous().data_ptr());
  EXPECT_ANY_THROW(st.view({200}));
  EXPECT_ANY_THROW(st.to(at::kHalf).data_ptr());
  EXPECT_ANY_THROW(st.cpu().item());
  EXPECT_ANY_THROW(st.t());
}

SHARD_RANKS_TEST(Dispatch, ItsVariableDataGivesNoMemory) {
  const at::Tensor st = zeros().as_tensor();
  EXPECT_ANY_THROW(st.variable_data().data_ptr());
  EXPECT_ANY_THROW(st.variable_data().item());
  EXPECT_ANY_THROW(at::ones({10, 20}).set_data(st));
}

SHARD_RANKS_TEST(Dispatch, TheWrapperPrintsAsAShardedTensorOrNotAtAll) {
  const ShardedTensor st = zeros();
  std::ostringstream out;
  EXPECT_ANY_THROW(out << st.as_tensor());
  EXPECT_EQ(out.str().find("0"), std::string::npos);
  out << st;
  EXPECT_NE(out.str().find("ShardedTensor(ShardedTensorMetadata("), std::string::npos);
}

}  // namespace
}  // namespace shard::test
