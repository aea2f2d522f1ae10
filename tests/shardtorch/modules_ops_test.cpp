// Modules with sharded parameters and outputs, custom ops: rows ST-002 to ST-010 and ST-056 to ST-058, and features
// only of C++.

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/container/functional.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>

#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "shardtorch/sharded_tensor/factories.h"
#include "shardtorch/sharded_tensor/functional.h"
#include "shardtorch/sharded_tensor/modules.h"
#include "shardtorch/sharded_tensor/ops.h"
#include "tests/support/distributed/layouts.h"
#include "tests/support/distributed/multi_thread_test.h"
#include "tests/support/distributed/sharded_tensor_test.h"
#include "tests/support/distributed/tensors.h"

namespace shard::test {
namespace {

class WithSpecs : public ShardedTensorTestBase {
 protected:
  ShardingSpecPtr rows() const { return chunk_spec(0, placements()); }
  /// The first placement differs between ranks.
  ShardingSpecPtr own_rank_first() const {
    return chunk_spec(0, {placement(rank()), placement(1), placement(2), placement(3)});
  }
  ShardingSpecPtr two_boxes() const {
    return enumerable_spec({ShardMetadata({0, 0}, {5, 5}, placement(0)), ShardMetadata({5, 0}, {5, 5}, placement(1))});
  }
  std::vector<ShardingSpecPtr> shuffled_specs(const std::vector<std::int64_t>& dims, int seed) const {
    return chunk_sharding_specs_for_test(dims, seed, [this](int of_rank) { return placement(of_rank); });
  }
};

class ShardParameter : public WithSpecs {};

SHARD_RANKS_TEST(ShardParameter, ST002_shard_parameter) {
  with_comms(kNoRpc, [&] {
    torch::nn::Linear fc(12, 12);
    fc->to(device());
    const at::Tensor og = fc->weight.detach().clone();
    shard_parameter(*fc, "weight", fc->weight, rows());
    const ShardedTensor weight = ShardedTensor::of(fc->weight);
    ASSERT_TRUE(weight.defined());
    ASSERT_EQ(weight.local_shards().size(), 1U);
    EXPECT_EQ(weight.local_tensor().sizes(), at::IntArrayRef({3, 12}));
    EXPECT_TRUE(tensors_equal(weight.local_tensor().detach(), og.narrow(0, 3 * rank(), 3)));
  });
}

SHARD_RANKS_TEST(ShardParameter, ST003_shard_parameter_errors) {
  with_comms(kNoRpc, [&] {
    torch::nn::Linear fc(12, 12);
    fc->to(device());
    SHARD_EXPECT_THROW(shard_parameter(*fc, "weight", fc->weight, rows(), rank()), c10::ValueError,
                       "does not match with src_rank");
    SHARD_EXPECT_THROW(shard_parameter(*fc, "foo", fc->weight, rows()), AttributeError,
                       "Linear has no attribute `foo`");
    torch::nn::Linear without_bias(torch::nn::LinearOptions(12, 12).bias(false));
    SHARD_EXPECT_THROW(shard_parameter(*without_bias, "bias", without_bias->bias, rows()), c10::ValueError,
                       "Expected Linear.bias to be a Tensor, but found an undefined one");
    fc->bias.set_data(at::rand({10, 10}, device()).t());
    SHARD_EXPECT_THROW(shard_parameter(*fc, "bias", fc->bias, rows()), c10::ValueError, "not a contiguous Tensor");
    SHARD_EXPECT_THROW(shard_parameter(*fc, "weight", fc->weight, own_rank_first()), c10::ValueError,
                       "does not match with sharding_spec");
    SHARD_EXPECT_THROW(shard_parameter(*fc, "weight", fc->weight, two_boxes()), c10::NotImplementedError,
                       "not implemented yet!");
    EXPECT_FALSE(ShardedTensor::of(fc->weight).defined());
  });
}

SHARD_RANKS_TEST(ShardParameter, OneWrongRankMakesAllThrow) {
  with_comms(kNoRpc, [&] {
    const bool wrong = rank() == 2;
    torch::nn::Linear fc(12, 12);
    fc->to(device());
    SHARD_EXPECT_THROW(shard_parameter(*fc, wrong ? "foo" : "weight", fc->weight, rows()), AttributeError,
                       "Linear has no attribute `foo`");
    SHARD_EXPECT_THROW(shard_parameter(*fc, "weight", wrong ? fc->bias : fc->weight, rows()), c10::ValueError,
                       "Expected the member of Linear.weight, but found another Tensor");
    if (wrong) fc->weight.set_data(at::rand({12, 12}, device()).t());
    SHARD_EXPECT_THROW(shard_parameter(*fc, "weight", fc->weight, rows()), c10::ValueError,
                       "param: weight is not a contiguous Tensor");
    EXPECT_FALSE(ShardedTensor::of(fc->weight).defined());
  });
}

SHARD_RANKS_TEST(ShardParameter, TheModuleKnowsItByNameAndAsAMember) {
  with_comms(kNoRpc, [&] {
    torch::nn::Linear fc(12, 12);
    fc->to(device());
    const ShardedTensor weight = shard_parameter(*fc, "weight", fc->weight, rows());
    EXPECT_TRUE(fc->weight.is_same(weight.as_tensor()));
    EXPECT_TRUE(fc->named_parameters()["weight"].is_same(weight.as_tensor()));
    EXPECT_TRUE(weight.requires_grad());
    EXPECT_TRUE(weight.metadata().tensor_properties.requires_grad);
    EXPECT_TRUE(weight.local_tensor().requires_grad());
    EXPECT_TRUE(weight.local_tensor().is_leaf());
  });
}

SHARD_RANKS_TEST(ShardParameter, OnlyItsOwnMemberAndOnlyOnce) {
  with_comms(kNoRpc, [&] {
    torch::nn::Linear fc(12, 12);
    fc->to(device());
    SHARD_EXPECT_THROW(shard_parameter(*fc, "weight", fc->bias, rows()), c10::ValueError,
                       "Expected the member of Linear.weight, but found another Tensor");
    shard_parameter(*fc, "weight", fc->weight, rows());
    SHARD_EXPECT_THROW(shard_parameter(*fc, "weight", fc->weight, rows()), c10::ValueError,
                       "Expected Linear.weight to be a Tensor, but found ShardedTensor");
  });
}

SHARD_RANKS_TEST(ShardParameter, WhatTorchDoesToParametersThrowsOrLeavesItAlone) {
  with_comms(kNoRpc, [&] {
    torch::nn::Linear fc(12, 12);
    fc->to(device());
    const ShardedTensor weight = shard_parameter(*fc, "weight", fc->weight, rows());
    EXPECT_ANY_THROW(fc->weight.set_data(at::ones({12, 12})));
    std::ostringstream file;
    EXPECT_ANY_THROW(torch::save(fc, file));
    const at::Tensor local = weight.local_tensor(), before = local.detach().clone();
    local.sum().backward();
    EXPECT_FALSE(weight.grad().defined());
    EXPECT_ANY_THROW(fc->weight.grad()) << "the gradient is that of the shards";
    EXPECT_ANY_THROW(fc->zero_grad());
    EXPECT_TRUE(local.grad().eq(1).all().item<bool>());
    EXPECT_ANY_THROW(torch::optim::SGD({fc->weight}, 1.0).step());
    EXPECT_TRUE(local.equal(before));
    torch::optim::SGD({local}, 1.0).step();
    EXPECT_TRUE(tensors_equal(local.detach(), before - 1));
  });
}

class ShardTensor : public WithSpecs {};

SHARD_RANKS_TEST(ShardTensor, ST004_shard_tensor) {
  with_comms(kNoRpc, [&] {
    const at::Tensor tensor = at::rand({12, 12}).to(device());
    const ShardedTensor st = shard_tensor(tensor, rows());
    ASSERT_EQ(st.local_shards().size(), 1U);
    EXPECT_EQ(st.local_tensor().sizes(), at::IntArrayRef({3, 12}));
    EXPECT_TRUE(tensors_equal(st.local_tensor(), tensor.narrow(0, 3 * rank(), 3)));
  });
}

SHARD_RANKS_TEST(ShardTensor, ASpecShardsFromRankZeroOverTheDefaultGroup) {
  with_comms(kNoRpc, [&] {
    const ShardedTensor st = rows()->shard(at::full({4, 2}, rank() + 7, at::TensorOptions(device()).dtype(at::kInt)));
    EXPECT_EQ(st.local_tensor()[0][1].item<int>(), 7);
    EXPECT_EQ(st.process_group(), default_group());
  });
}

SHARD_RANKS_TEST(ShardTensor, ST005_shard_tensor_with_empty_shard) {
  with_comms(kNoRpc, [&] {
    const at::Tensor tensor = at::rand({9, 12}).to(device());
    const ShardedTensor st = shard_tensor(tensor, rows());
    const auto& shards = st.metadata().shards_metadata;
    ASSERT_EQ(shards.size(), 4U);
    const std::vector<std::int64_t> sizes{3, 3, 3, 0};
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(shards[i].shard_offsets, (Sizes{3 * static_cast<std::int64_t>(i), 0}));
      EXPECT_EQ(shards[i].shard_sizes, (Sizes{sizes[i], 12}));
      EXPECT_LE(shards[i].shard_offsets[0] + shards[i].shard_sizes[0], 9);
    }
    ASSERT_EQ(st.local_shards().size(), 1U);
    const at::Tensor local = st.local_tensor();
    EXPECT_EQ(local.sizes(), at::IntArrayRef({rank() == 3 ? 0 : 3, 12}));
    if (rank() < 3) {
      EXPECT_TRUE(tensors_equal(local, tensor.narrow(0, 3 * rank(), 3)));
    }
  });
}

SHARD_RANKS_TEST(ShardTensor, ST006_shard_tensor_errors) {
  with_comms(kNoRpc, [&] {
    const at::Tensor tensor = at::rand({12, 12}, device());
    SHARD_EXPECT_THROW(shard_tensor(tensor, rows(), rank()), c10::ValueError, "does not match with src_rank");
    SHARD_EXPECT_THROW(shard_tensor(at::rand({12, 12}, device()).t(), rows()), c10::ValueError,
                       "not a contiguous Tensor");
    SHARD_EXPECT_THROW(shard_tensor(tensor, own_rank_first()), c10::ValueError, "does not match with sharding_spec");
    SHARD_EXPECT_THROW(shard_tensor(tensor, two_boxes()), c10::NotImplementedError, "not implemented yet!");
  });
}

/// Its output is always the same tensor.
template <class Output>
class Source : public torch::nn::Module {
 public:
  explicit Source(Output output) : output_(std::move(output)) {}
  Output forward() { return output_; }

 private:
  Output output_;
};

class ModuleHooks : public WithSpecs {
 protected:
  /// All of it, on every rank: gathered to each, one after the other.
  at::Tensor gathered_everywhere(const ShardedTensor& st) const {
    const at::Tensor whole = at::empty(st.sizes(), at::TensorOptions(device()).dtype(st.dtype()));
    for (int dst = 0; dst < world_size(); ++dst) {
      st.gather(dst, rank() == dst ? std::optional(whole) : std::nullopt);
    }
    return whole;
  }
};

SHARD_RANKS_TEST(ModuleHooks, ST007_reshard_output) {
  with_comms(kNoRpc, [&] {
    const auto specs = shuffled_specs({0, 1}, 5);
    auto module = std::make_shared<Source<ShardedTensor>>(sharded_tensor::rand(specs[0], {24, 12}));
    const ShardedTensor st = module->forward();
    const at::Tensor whole = gathered_everywhere(st);
    std::vector<Shard> copies;
    for (const auto& shard : st.local_shards()) copies.emplace_back(shard.tensor.clone(), shard.metadata);
    ShardedTensor compare = ShardedTensor::init_from_local_shards(copies, st.sizes(), default_group());
    compare.set_sharding_spec(specs[0]);
    compare.reshard(specs[1]);
    const ShardedTensor resharded = reshard_output(module, specs[1])->forward();
    EXPECT_TRUE(resharded.is_same(st));
    EXPECT_TRUE(tensors_equal(resharded.local_tensor(), compare.local_tensor()));
    EXPECT_EQ(resharded.local_tensor().sizes(), at::IntArrayRef({24, 3}));
    const std::vector<std::int64_t> first_columns{9, 6, 0, 3};  // By rank: the owners are 2, 3, 1, 0.
    const std::int64_t first = first_columns[static_cast<std::size_t>(rank())];
    EXPECT_EQ(resharded.local_shards()[0].metadata.shard_offsets, (Sizes{0, first}));
    EXPECT_TRUE(tensors_equal(resharded.local_tensor(), whole.narrow(1, first, 3)));
  });
}

SHARD_RANKS_TEST(ModuleHooks, ST008_collect_local_shard) {
  with_comms(kNoRpc, [&] {
    auto module = std::make_shared<Source<ShardedTensor>>(sharded_tensor::rand(shuffled_specs({0}, 5)[0], {23, 15}));
    const at::Tensor local = module->forward().local_tensor();
    EXPECT_EQ(local.size(0), rank() == 2 ? 5 : 6);
    const at::Tensor output = collect_local_shard(module)->forward();
    EXPECT_FALSE(ShardedTensor::of(output).defined());
    EXPECT_TRUE(tensors_equal(output, local));
  });
}

SHARD_RANKS_TEST(ModuleHooks, TR34_a_local_size_of_one_is_squeezed_away) {
  with_comms(kNoRpc, [&] {
    const auto rows_of_four = std::make_shared<Source<ShardedTensor>>(sharded_tensor::rand(rows(), {4, 16}));
    EXPECT_EQ(collect_local_shard(rows_of_four)->forward().sizes(), at::IntArrayRef({16}));
    const ShardedTensor columns = sharded_tensor::rand(chunk_spec(-1, placements()), {1, 8});
    EXPECT_EQ(collect_local_shard(columns).sizes(), at::IntArrayRef({1, 2}));
    const ShardedTensor boxes = sharded_tensor::rand(enumerable_spec(stacked(placements(), 1, 4)), {4, 4});
    EXPECT_EQ(collect_local_shard(boxes).sizes(), at::IntArrayRef({1, 4})) << "only chunks are";
  });
}

SHARD_RANKS_TEST(ModuleHooks, TensorsInOutputsAreFound) {
  with_comms(kNoRpc, [&] {
    const at::Tensor plain = at::rand({2, 2});
    const auto ordinary = std::make_shared<Source<at::Tensor>>(plain);
    EXPECT_TRUE(collect_local_shard(ordinary)->forward().is_same(plain));
    EXPECT_TRUE(reshard_output(ordinary, rows())->forward().is_same(plain));
    const ShardedTensor st = sharded_tensor::rand(rows(), {8, 4});
    const auto sharded = std::make_shared<Source<at::Tensor>>(st.as_tensor());
    EXPECT_TRUE(collect_local_shard(sharded)->forward().is_same(st.local_tensor()));
    EXPECT_TRUE(reshard_output(sharded, chunk_spec(1, placements()))->forward().is_same(st.as_tensor()));
    EXPECT_EQ(st.local_tensor().sizes(), at::IntArrayRef({8, 1}));
  });
}

/// Returns its input, sharded by rows, and can be cloned.
struct CutRowsImpl : torch::nn::Cloneable<CutRowsImpl> {
  explicit CutRowsImpl(ShardingSpecPtr own_spec) : spec(std::move(own_spec)) { reset(); }
  void reset() override { scale = register_parameter("scale", at::full({1}, 2.0)); }
  at::Tensor forward(const at::Tensor& input) { return shard_tensor(input * scale.detach(), spec).as_tensor(); }
  ShardingSpecPtr spec;
  at::Tensor scale;
};

SHARD_RANKS_TEST(ModuleHooks, FitIntoSequentialAndAreCloned) {
  with_comms(kNoRpc, [&] {
    const auto hooked =
        collect_local_shard(reshard_output(std::make_shared<CutRowsImpl>(rows()), chunk_spec(1, placements())));
    torch::nn::Sequential chain(hooked, torch::nn::Functional(at::relu));
    const at::Tensor input = at::arange(64, at::kFloat).view({8, 8}).to(device());
    const at::Tensor own = (input * 2).narrow(1, 2 * rank(), 2);
    hooked->to(device());
    EXPECT_TRUE(tensors_equal(chain->forward(input), own));
    const auto copy = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(chain->clone());
    EXPECT_TRUE(tensors_equal(copy->forward(input), own));
    EXPECT_FALSE(copy->parameters()[0].is_same(chain->parameters()[0]));
    EXPECT_EQ(copy->named_parameters().keys(), chain->named_parameters().keys());
  });
}

SHARD_RANKS_TEST(ModuleHooks, GradientsFlowBackThroughThem) {
  with_comms(kNoRpc, [&] {
    const ShardedTensor weights = shard_tensor(at::arange(64, at::kDouble).view({8, 8}).to(device()), rows());
    requires_grad_(weights);
    const at::Tensor leaf = weights.local_tensor();
    const at::Tensor columns = collect_local_shard(reshard_output(clone(weights), chunk_spec(1, placements())));
    EXPECT_FALSE(columns.is_leaf());
    // Each element is weighed by its place in the whole.
    const at::Tensor whole = at::arange(64, at::kDouble).view({8, 8}).to(device());
    (columns * whole.narrow(1, 2 * rank(), 2)).sum().backward();
    EXPECT_TRUE(tensors_equal(leaf.grad(), whole.narrow(0, 2 * rank(), 2)));
  });
}

SHARD_RANKS_TEST(ModuleHooks, AParameterThatIsReshardedWithoutGradientsStaysALeaf) {
  with_comms(kNoRpc, [&] {
    ShardedTensor weight = shard_tensor(at::ones({8, 8}, device()), rows());
    requires_grad_(weight);
    {
      const at::NoGradGuard no_grad;
      weight.reshard(chunk_spec(1, placements()));
    }
    EXPECT_TRUE(weight.local_tensor().is_leaf() && weight.local_tensor().requires_grad());
  });
}

class LocalTensor : public WithSpecs {};

SHARD_RANKS_TEST(LocalTensor, ST009_local_tensor) {
  with_comms(kNoRpc, [&] {
    const ShardedTensor st = sharded_tensor::rand(rows(), {24, 12});
    EXPECT_EQ(st.local_tensor().sizes(), at::IntArrayRef({6, 12}));
    EXPECT_TRUE(tensors_equal(st.local_tensor(), st.local_tensor()));
    EXPECT_TRUE(st.local_tensor().is_same(st.local_tensor()));
  });
}

SHARD_RANKS_TEST(LocalTensor, ST010_local_tensor_error) {
  with_comms(kNoRpc, [&] {
    const ShardedTensor st = sharded_tensor::rand(chunk_spec(0, placements({0, 0, 1, 1, 1, 2, 2, 2, 3, 3})), {24, 12});
    SHARD_EXPECT_THROW(st.local_tensor(), c10::NotImplementedError, "Only single local shard is supported.");
  });
}

class CustomOps : public WithSpecs {};

SHARD_RANKS_TEST(CustomOps, ST056_custom_op) {
  with_comms(kNoRpc, [&] {
    const auto local_asin = [](std::string_view, at::ArrayRef<c10::IValue> args, const ProcessGroupPtr&) {
      return at::asin(ShardedTensor::of(args[0].toTensor()).local_shards()[0].tensor);
    };
    const auto registration = custom_sharded_op_impl("asin", local_asin);
    const ShardedTensor st = sharded_tensor::rand(rows(), {10, 10});
    EXPECT_TRUE(tensors_equal(at::asin(st.as_tensor()), at::asin(st.local_shards()[0].tensor)));
  });
}

SHARD_RANKS_TEST(CustomOps, ST057_custom_op_override) {
  with_comms(kNoRpc, [&] {
    const at::Tensor t = at::rand({10, 10}, device());
    const auto constant = [t](std::string_view, at::ArrayRef<c10::IValue>, const ProcessGroupPtr&) { return t; };
    const auto registration = custom_sharding_spec_op("ChunkShardingSpec", "linear", constant);
    torch::nn::Linear module(32, 16);
    module->to(device());
    shard_parameter(*module, "weight", module->weight, rows());
    EXPECT_TRUE(tensors_equal(module->forward(at::rand({15, 32}, device())), t));
  });
}

/// A column-parallel layer as an op: each rank computes its rows of the weight, and the outputs are concatenated.
c10::IValue column_linear(std::string_view, at::ArrayRef<c10::IValue> args, const ProcessGroupPtr& group) {
  const auto weight = ShardedTensor::of(args[1].toTensor());
  const at::Tensor own = at::linear(args[0].toTensor(), weight.local_tensor());
  const at::Tensor all = functional::all_gather(own, -1, functional::Losses::kReplicated, group);
  return args[2].isNone() ? all : all + args[2].toTensor();
}

SHARD_RANKS_TEST(CustomOps, AnUnchangedLinearRunsTheRegisteredOpWithInputsOfAnyShape) {
  with_comms(kNoRpc, [&] {
    const auto registration = custom_sharded_op_impl("linear", column_linear);
    for (const bool has_bias : {true, false}) {
      torch::nn::Linear plain(torch::nn::LinearOptions(6, 8).bias(has_bias)),
          sharded(torch::nn::LinearOptions(6, 8).bias(has_bias));
      {
        const at::NoGradGuard no_grad;
        for (const auto& parameter : plain->named_parameters()) {
          broadcast(parameter.value(), 0);
          sharded->named_parameters()[parameter.key()].copy_(parameter.value());
        }
      }
      plain->to(device());
      sharded->to(device());
      shard_parameter(*sharded, "weight", sharded->weight, rows());
      for (const std::vector<std::int64_t>& shape : {std::vector<std::int64_t>{5, 6}, {2, 5, 6}, {6}}) {
        const at::Tensor input = at::arange(c10::multiply_integers(shape), at::kFloat).view(shape).to(device());
        const at::Tensor expected = plain->forward(input), actual = sharded->forward(input);
        EXPECT_TRUE(tensors_equal(actual, expected)) << at::IntArrayRef(shape);
        plain->zero_grad();
        expected.sum().backward();
        actual.sum().backward();
        const auto weight = ShardedTensor::of(sharded->weight);
        const at::Tensor grad = weight.local_tensor().grad();
        EXPECT_TRUE(tensors_equal(grad, narrow_tensor(plain->weight.grad(), weight.local_shards()[0].metadata)));
        weight.local_tensor().mutable_grad().reset();
      }
    }
  });
}

SHARD_RANKS_TEST(CustomOps, WithoutThatOpALinearIsRefused) {
  with_comms(kNoRpc, [&] {
    torch::nn::Linear module(32, 16);
    module->to(device());
    shard_parameter(*module, "weight", module->weight, rows());
    SHARD_EXPECT_THROW(module->forward(at::rand({15, 32}, device())), c10::Error, "torch function 't'");
  });
}

TEST(CustomOpSignature, ST058_custom_op_errors) {
  const auto right = [](std::string_view, at::ArrayRef<c10::IValue>, const ProcessGroupPtr&) { return c10::IValue(); };
  const auto five = [](int, std::string_view, at::ArrayRef<c10::IValue>, const ProcessGroupPtr&, int) {
    return c10::IValue();
  };
  const auto one = [](std::string_view) { return c10::IValue(); };
  static_assert(ShardedOpHandler<decltype(right)>);
  static_assert(!ShardedOpHandler<decltype(five)>);
  static_assert(!ShardedOpHandler<decltype(one)>);
  SHARD_EXPECT_THROW((void)custom_sharded_op_impl("linear", ShardedOp()), c10::TypeError, "expects signature");
}

class OneAttribute : public torch::nn::Module, public ShardedAttributes {
 public:
  explicit OneAttribute(const std::vector<std::string>& names) {
    for (const auto& name : names) register_sharded_tensor(name, member);
  }
  ShardedTensor member;
};

TEST(ShardedAttributes, NamesAreUniqueWordsWithoutDots) {
  OneAttribute module({"a", "b"});
  ASSERT_EQ(module.sharded_attributes().size(), 2U);
  EXPECT_EQ(module.sharded_attributes()[0].name, "a");
  EXPECT_EQ(module.sharded_attributes()[1].tensor, &module.member);
  SHARD_EXPECT_THROW(OneAttribute({"a", "a"}), c10::ValueError, "'a' already");
  SHARD_EXPECT_THROW(OneAttribute({""}), c10::ValueError, "must not be empty");
  SHARD_EXPECT_THROW(OneAttribute({"a.b"}), c10::ValueError, "'a.b'");
}

}  // namespace
}  // namespace shard::test
