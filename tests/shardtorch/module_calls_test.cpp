// torch::nn's functions on modules with sharded parameters. The tests named TorchNn are the rows of the table in
// docs/training.md: each function works, or throws before it changes anything, unless the table states otherwise.
#include <torch/nn/cloneable.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/nn/utils/convert_parameters.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>

#include <cmath>
#include <memory>
#include <sstream>

#include "shardtorch/dtensor/dtensor.h"
#include "shardtorch/parallel/cross_entropy.h"
#include "shardtorch/parallel/embedding.h"
#include "shardtorch/parallel/linear.h"
#include "shardtorch/sharded_tensor/collectives.h"
#include "shardtorch/sharded_tensor/modules.h"
#include "shardtorch/sharded_tensor/ops.h"
#include "tests/shardtorch/parallel_fixture.h"
#include "tests/support/distributed/sharded_tensor_test.h"

namespace shard::test {
namespace {

constexpr const char* kOwnGradient =
    "a sharded parameter has no gradient of its own: clip with "
    "shard::parallel::clip_grad_norm_, give shard::parallel::local_parameters";

/// Layers of parallel/ among those of torch, with a buffer of integers.
struct ModelImpl : torch::nn::Cloneable<ModelImpl> {
  ModelImpl() { reset(); }
  void reset() override {
    table = register_module("table", parallel::Embedding(7, 4));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({4})));
    up = register_module("up", parallel::ColumnLinear(4, 5));
    down = register_module("down", parallel::RowLinear(5, 3));
    steps = register_buffer("steps", at::full({1}, 7, at::kLong));
  }
  at::Tensor forward(const at::Tensor& indices) {
    return down->forward(at::gelu(up->forward(norm->forward(table->forward(indices)))));
  }
  parallel::Embedding table = nullptr;
  torch::nn::LayerNorm norm = nullptr;
  parallel::ColumnLinear up = nullptr;
  parallel::RowLinear down = nullptr;
  at::Tensor steps;
};
TORCH_MODULE(Model);

/// torch's layer, one of whose parameters was sharded later.
torch::nn::Linear sharded_linear() {
  torch::nn::Linear layer(4, 6);
  shard_parameter(*layer, "weight", layer->weight, chunk_spec(0));
  return layer;
}

const at::Tensor kTokens = whole_numbers({2, 3}, {0, 1, 6, 3, 3, 5});

void run_backward(Model& model) { model->forward(kTokens).sum().backward(); }

std::vector<at::Tensor> values_of(const torch::nn::Module& module) {
  std::vector<at::Tensor> values;
  for (const at::Tensor& each : parallel::local_parameters(module)) values.push_back(each.detach().clone());
  return values;
}

void expect_values(const torch::nn::Module& module, const std::vector<at::Tensor>& values) {
  const auto found = parallel::local_parameters(module);
  ASSERT_EQ(found.size(), values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(found[i].scalar_type(), values[i].scalar_type());
    EXPECT_TRUE(found[i].equal(values[i])) << i;
  }
}

void expect_dtype(const torch::nn::Module& module, at::ScalarType dtype) {
  for (const auto& each : module.named_parameters()) EXPECT_EQ(each.value().scalar_type(), dtype) << each.key();
  for (const parallel::LocalParameter& each : parallel::named_local_parameters(module)) {
    EXPECT_EQ(each.tensor.scalar_type(), dtype) << each.name;
    EXPECT_TRUE(each.tensor.is_leaf() && each.tensor.requires_grad()) << each.name;
    EXPECT_TRUE(!each.sharded.defined() || each.sharded.dtype() == dtype) << each.name;
  }
}

/// Trains one step with `optimizer`, which was made before the module changed.
void expect_trains(Model& model, torch::optim::Optimizer& optimizer) {
  const auto before = values_of(*model);
  optimizer.zero_grad();
  run_backward(model);
  optimizer.step();
  const auto after = parallel::local_parameters(*model);
  for (std::size_t i = 0; i < before.size(); ++i) {
    EXPECT_TRUE(before[i].numel() == 0 || !after[i].grad().any().item<bool>() || !after[i].equal(before[i])) << i;
  }
}

TEST(TorchNn, ToConvertsAllAndKeepsParametersOfOptimizers) {
  as_ranks(2, [](int) {
    Model model;
    torch::optim::SGD optimizer(parallel::local_parameters(*model), 0.5);
    const auto before = values_of(*model);
    model->to(at::kDouble);
    expect_dtype(*model, at::kDouble);
    std::vector<at::Tensor> expected;
    for (const at::Tensor& each : before) expected.push_back(each.to(at::kDouble));
    expect_values(*model, expected);
    EXPECT_EQ(ShardedTensor::of(model->up->weight).metadata().tensor_properties.dtype, at::kDouble);
    EXPECT_EQ(ShardedTensor::of(model->up->weight).full_tensor().scalar_type(), at::kDouble);
    const at::Tensor text = kTokens;
    EXPECT_EQ(model->forward(text).scalar_type(), at::kDouble);
    expect_trains(model, optimizer);
    model->to(at::kCPU, at::kFloat);
    expect_dtype(*model, at::kFloat);
    torch::nn::Linear layer = sharded_linear();
    layer->to(at::kDouble);
    expect_dtype(*layer, at::kDouble);
  });
}

TEST(TorchNn, ParallelToKeepsIntegersAndMovesGradients) {
  as_ranks(2, [](int) {
    Model model;
    torch::optim::SGD optimizer(parallel::local_parameters(*model), 0.5);
    run_backward(model);
    const at::Tensor gradient = ShardedTensor::of(model->up->weight).local_tensor().grad();
    parallel::to(*model, at::kCPU, at::kDouble);
    expect_dtype(*model, at::kDouble);
    EXPECT_EQ(model->steps.scalar_type(), at::kLong);
    const at::Tensor moved = ShardedTensor::of(model->up->weight).local_tensor().grad();
    EXPECT_TRUE(moved.equal(gradient.to(at::kDouble)));
    expect_trains(model, optimizer);
    parallel::to(*model, std::nullopt, at::kBFloat16);
    expect_dtype(*model, at::kBFloat16);
    parallel::to(*model, std::nullopt);
    expect_dtype(*model, at::kBFloat16);
  });
}

/// One rank's error, or a difference between ranks, leaves all unchanged.
TEST(TorchNn, ParallelToIsAllOrNothingOnAllRanks) {
  as_ranks(3, [](int rank) {
    Model model;
    const auto before = values_of(*model);
    SHARD_EXPECT_THROW(parallel::to(*model, std::nullopt, rank == 1 ? at::kDouble : at::kHalf), c10::ValueError,
                       "dtype=Double on rank: 1");
    SHARD_EXPECT_THROW(parallel::to(*model, std::nullopt, rank == 1 ? at::kLong : at::kHalf), c10::TypeError,
                       "only be converted to floating-point or complex dtypes, but got Long");
    if (!at::hasCUDA()) {
      EXPECT_ANY_THROW(parallel::to(*model, at::kCUDA, at::kHalf));
    }
    const auto mesh = dtensor::init_device_mesh(at::kCPU, {3});
    const at::Tensor other = dtensor::zeros({2}, mesh, {dtensor::Replicate()}).as_tensor();
    if (rank == 1) model->register_parameter("other", other, /*requires_grad=*/false);
    SHARD_EXPECT_THROW(parallel::to(*model, std::nullopt, at::kHalf), c10::NotImplementedError,
                       "cannot move the parameter 'other': it is a DTensor");
    if (rank != 1) expect_values(*model, before);
    EXPECT_EQ(model->up->weight.scalar_type(), at::kFloat);
    EXPECT_EQ(model->norm->weight.scalar_type(), at::kFloat);
  });
}

TEST(TorchNn, CloneCopiesLayers) {
  as_ranks(2, [](int) {
    Model model;
    const auto before = values_of(*model);
    Model copy(std::dynamic_pointer_cast<ModelImpl>(model->clone()));
    expect_values(*copy, before);
    {
      const at::NoGradGuard no_grad;
      for (at::Tensor& each : parallel::local_parameters(*copy)) each.fill_(9);
    }
    expect_values(*model, before);
    EXPECT_FALSE(copy->up->weight.is_same(model->up->weight));
    EXPECT_TRUE(copy->up->weight.is_same(copy->up->named_parameters()["weight"]));
    expect_dtype(*copy, at::kFloat);
    const auto alone = std::dynamic_pointer_cast<parallel::RowLinearImpl>(model->down->clone());
    EXPECT_TRUE(equal(ShardedTensor::of(alone->weight), ShardedTensor::of(model->down->weight)));
    EXPECT_TRUE(alone->bias.equal(model->down->bias));
    EXPECT_FALSE(alone->bias.is_same(model->down->bias));
  });
}

TEST(TorchNn, CloneOfATorchLayerThrowsWithTheCallToUse) {
  as_ranks(2, [](int) {
    torch::nn::Linear layer = sharded_linear();
    const auto before = values_of(*layer);
    SHARD_EXPECT_THROW(layer->clone(), c10::Error, "shard the parameter in reset(), or create a second module");
    expect_values(*layer, before);
  });
}

/// A module that shards in reset() can be cloned.
struct ShardsInResetImpl : torch::nn::Cloneable<ShardsInResetImpl> {
  ShardsInResetImpl() { reset(); }
  void reset() override {
    weight = register_parameter("weight", at::randn({6, 4}));
    shard_parameter(*this, "weight", weight, chunk_spec(0));
  }
  at::Tensor weight;
};

TEST(TorchNn, CloneOfAModuleThatShardsInResetWorks) {
  as_ranks(2, [](int) {
    const auto module = std::make_shared<ShardsInResetImpl>();
    const auto copy = std::dynamic_pointer_cast<ShardsInResetImpl>(module->clone());
    EXPECT_TRUE(equal(ShardedTensor::of(copy->weight), ShardedTensor::of(module->weight)));
    EXPECT_FALSE(
        ShardedTensor::of(copy->weight).local_tensor().is_same(ShardedTensor::of(module->weight).local_tensor()));
  });
}

TEST(TorchNn, ZeroGradClearsLayersAndRefusesTorchLayers) {
  as_ranks(2, [](int) {
    Model model;
    run_backward(model);
    const at::Tensor local = ShardedTensor::of(model->up->weight).local_tensor();
    EXPECT_TRUE(local.grad().defined());
    model->zero_grad(/*set_to_none=*/false);
    EXPECT_FALSE(local.grad().any().item<bool>());
    model->zero_grad();
    EXPECT_FALSE(local.grad().defined());
    torch::nn::Linear layer = sharded_linear();
    layer->zero_grad();
    const at::Tensor weight = ShardedTensor::of(layer->weight).local_tensor();
    weight.sum().backward();
    SHARD_EXPECT_THROW(layer->zero_grad(), c10::Error, kOwnGradient);
    EXPECT_TRUE(weight.grad().eq(1).all().item<bool>());
  });
}

TEST(TorchNn, PrintingAModuleNamesItsLayers) {
  as_ranks(2, [](int) {
    std::ostringstream text;
    text << *Model();
    EXPECT_THAT(text.str(), ::testing::HasSubstr("(table): shard::parallel::Embedding(num_embeddings=7, "
                                                 "embedding_dim=4)"));
    EXPECT_THAT(text.str(),
                ::testing::HasSubstr("(up): shard::parallel::ColumnLinear(out_features=5, in_features=4, bias=true)"));
    EXPECT_THAT(text.str(),
                ::testing::HasSubstr("(down): shard::parallel::RowLinear(out_features=3, in_features=5, bias=true)"));
    std::ostringstream layer;
    layer << *sharded_linear();
    EXPECT_EQ(layer.str(), "torch::nn::Linear(in_features=4, out_features=6, bias=true)");
  });
}

TEST(TorchNn, PrintingAParameterThrowsAndItsShardedTensorPrints) {
  as_ranks(2, [](int) {
    parallel::ColumnLinear layer(4, 5);
    std::ostringstream text;
    EXPECT_ANY_THROW(text << layer->weight);
    text.str("");
    text << ShardedTensor::of(layer->weight);
    EXPECT_THAT(text.str(), ::testing::HasSubstr("ShardedTensor(ShardedTensorMetadata("));
  });
}

TEST(TorchNn, ClippingOfTorchThrowsAndClipsNothing) {
  as_ranks(2, [](int) {
    Model model;
    EXPECT_EQ(torch::nn::utils::clip_grad_norm_(model->parameters(), 0.001), 0) << "without gradients";
    run_backward(model);
    const double norm = parallel::grad_norm(*model);
    SHARD_EXPECT_THROW(torch::nn::utils::clip_grad_norm_(model->parameters(), 0.001), c10::Error, kOwnGradient);
    SHARD_EXPECT_THROW(torch::nn::utils::clip_grad_value_(model->up->parameters(), 0.001), c10::Error, kOwnGradient);
    EXPECT_EQ(parallel::grad_norm(*model), norm);
    EXPECT_EQ(parallel::clip_grad_norm_(*model, 0.001), norm);
    EXPECT_NEAR(parallel::grad_norm(*model), 0.001, 1e-5);
  });
}

/// Plain parameters that precede a sharded one are changed before the call throws, as the table states. With
/// local_parameters the calls work.
TEST(TorchNn, FunctionsOverParametersStopAtTheFirstShardedOne) {
  as_ranks(2, [](int) {
    torch::nn::LayerNorm norm(torch::nn::LayerNormOptions({4}));
    parallel::ColumnLinear layer(4, 6);
    const torch::nn::Sequential chain(norm, layer);
    layer->forward(norm->forward(at::arange(8.0).view({2, 4}).to(at::kFloat))).pow(2).sum().backward();
    const at::Tensor bias = norm->bias.grad().clone();
    SHARD_EXPECT_THROW(torch::nn::utils::clip_grad_value_(chain->parameters(), 1e-6), c10::Error, kOwnGradient);
    EXPECT_LE(norm->bias.grad().abs().max().item<double>(), 1e-6) << "clipped already";
    torch::nn::utils::clip_grad_value_(parallel::local_parameters(*chain), 1e-6);
    EXPECT_LE(ShardedTensor::of(layer->weight).local_tensor().grad().abs().max().item<double>(), 1e-6);
    EXPECT_ANY_THROW(torch::nn::utils::vector_to_parameters(at::full({38}, 5.0), chain->parameters()));
    EXPECT_TRUE(norm->weight.eq(5).all().item<bool>()) << "filled already";

    torch::nn::Linear sharded = sharded_linear();
    const auto outer = std::make_shared<torch::nn::Module>();
    outer->register_module("norm", norm.ptr());
    outer->register_parameter("weight", sharded->weight);
    ShardedTensor::of(sharded->weight).local_tensor().sum().backward();
    SHARD_EXPECT_THROW(outer->zero_grad(), c10::Error, kOwnGradient);
    EXPECT_FALSE(norm->bias.grad().defined()) << "cleared already";
  });
}

TEST(TorchNn, OptimizersOverParametersThrowAtTheStep) {
  as_ranks(2, [](int) {
    parallel::ColumnLinear layer(4, 6);
    torch::optim::SGD wrong(layer->parameters(), 0.5), right(parallel::local_parameters(*layer), 0.5);
    const auto before = values_of(*layer);
    layer->forward(at::ones({2, 4})).sum().backward();
    SHARD_EXPECT_THROW(wrong.step(), c10::Error, kOwnGradient);
    expect_values(*layer, before);
    right.step();
    EXPECT_FALSE(parallel::local_parameters(*layer)[0].equal(before[0]));
  });
}

TEST(TorchNn, ArchivesOfTorchAreRefused) {
  as_ranks(2, [](int) {
    Model model;
    std::stringstream file;
    SHARD_EXPECT_THROW(torch::save(model, file), c10::NotImplementedError, "use shard::checkpoint::save");
    EXPECT_EQ(file.str(), "");
    EXPECT_ANY_THROW(torch::load(model->up, file));
  });
}

TEST(TorchNn, ModesNamesAndContainersWork) {
  as_ranks(2, [](int) {
    Model model;
    model->eval();
    EXPECT_FALSE(model->up->is_training());
    int modules = 0;
    model->apply([&](torch::nn::Module&) { ++modules; });
    EXPECT_EQ(modules, 5);
    EXPECT_EQ(model->named_parameters().size(), 7U);
    torch::nn::Sequential chain(parallel::ColumnLinear(4, 5), parallel::RowLinear(5, 3));
    EXPECT_EQ(chain->forward(at::ones({2, 4})).sizes(), (std::vector<std::int64_t>{2, 3}));
  });
}

TEST(TorchNn, InitFillsShardedParameters) {
  as_ranks(2, [](int) {
    parallel::ColumnLinear layer(4, 6);
    torch::nn::Linear sharded = sharded_linear();
    for (const at::Tensor& weight : {layer->weight, sharded->weight}) {
      torch::nn::init::normal_(weight, 100, 1);
      EXPECT_TRUE(ShardedTensor::of(weight).full_tensor().gt(50).all().item<bool>());
      torch::nn::init::kaiming_uniform_(weight);
      EXPECT_LE(ShardedTensor::of(weight).full_tensor().abs().max().item<double>(), std::sqrt(6.0 / 4));
      torch::nn::init::constant_(weight, 3);
      EXPECT_TRUE(ShardedTensor::of(weight).full_tensor().eq(3).all().item<bool>());
      torch::nn::init::uniform_(weight, 5, 6);
      EXPECT_TRUE(ShardedTensor::of(weight).full_tensor().ge(5).all().item<bool>());
    }
  });
}

TEST(TorchNn, VectorsOfParametersAreRefused) {
  as_ranks(2, [](int) {
    parallel::ColumnLinear layer(4, 6);
    const auto before = values_of(*layer);
    EXPECT_ANY_THROW(torch::nn::utils::parameters_to_vector(layer->parameters()));
    EXPECT_ANY_THROW(torch::nn::utils::vector_to_parameters(at::zeros({30}), layer->parameters()));
    expect_values(*layer, before);
  });
}

TEST(TorchNn, SetDataTakesTheSameShardsOnly) {
  as_ranks(2, [](int) {
    parallel::ColumnLinear layer(4, 6), other(4, 6), rows(4, 8);
    const auto before = values_of(*layer);
    EXPECT_ANY_THROW(layer->weight.set_data(at::ones({6, 4})));
    EXPECT_ANY_THROW(layer->weight.set_data(rows->weight));
    SHARD_EXPECT_THROW(at::ones({6, 4}).set_data(layer->weight), c10::Error, "to a plain one");
    expect_values(*layer, before);
    const at::Tensor local = ShardedTensor::of(layer->weight).local_tensor();
    layer->weight.set_data(other->weight);
    EXPECT_TRUE(ShardedTensor::of(layer->weight).local_tensor().is_same(local));
    EXPECT_TRUE(equal(ShardedTensor::of(layer->weight), ShardedTensor::of(other->weight)));
  });
}

/// Two copies of a model that is sharded over two ranks each, on parts of a batch: the whole model on the whole batch.
TEST(DataTimesTensorParallel, IsTheWholeModel) {
  as_ranks(4, [](int) {
    const auto mesh = dtensor::init_device_mesh(at::kCPU, {2, 2}, {"data", "tensor"});
    const ProcessGroupPtr data = mesh->get_group("data"), tensor = mesh->get_group("tensor");
    Numbers numbers(3);
    auto up = filled(torch::nn::Linear(4, 5), numbers), down = filled(torch::nn::Linear(5, 1), numbers);
    torch::nn::Sequential whole(up, torch::nn::GELU(), down),
        model(parallel::ColumnLinear(*up, false, tensor), torch::nn::GELU(), parallel::RowLinear(*down, false, tensor));
    torch::optim::SGD of_whole(whole->parameters(), 0.1), of_model(parallel::local_parameters(*model), 0.1);
    const at::Tensor input = numbers.normal({6, 4}), own = input.chunk(2)[static_cast<std::size_t>(data->rank())];
    for (int step = 0; step < 3; ++step) {
      of_whole.zero_grad();
      of_model.zero_grad();
      at::mse_loss(whole->forward(input), input.sum(1, true)).backward();
      at::mse_loss(model->forward(own), own.sum(1, true)).backward();
      for (const at::Tensor& each : parallel::local_parameters(*model)) all_reduce(each.grad(), ReduceOp::kMean, data);
      const double norm = torch::nn::utils::clip_grad_norm_(whole->parameters(), 0.5);
      EXPECT_NEAR(parallel::clip_grad_norm_(*model, 0.5, 2, false, tensor), norm, 1e-9);
      of_whole.step();
      of_model.step();
      expect_same_parameters(*model, *whole, true);
    }
  });
}

TEST(LayerOptions, GiveDtypeAndDevice) {
  as_ranks(2, [](int) {
    const parallel::ParameterOptions form{.device = at::kCPU, .dtype = at::kBFloat16};
    parallel::ColumnLinear columns(torch::nn::LinearOptions(4, 5), /*gather_output=*/true, nullptr, form);
    parallel::RowLinear rows(torch::nn::LinearOptions(5, 4), /*split_input=*/true, nullptr, form);
    parallel::Embedding table(torch::nn::EmbeddingOptions(7, 4), parallel::TableCut::kColumns, nullptr, form);
    parallel::EmbeddingBag bags(torch::nn::EmbeddingBagOptions(7, 4), parallel::TableCut::kRows, nullptr, form);
    for (const torch::nn::Module* each :
         std::initializer_list<torch::nn::Module*>{columns.get(), rows.get(), table.get(), bags.get()}) {
      expect_dtype(*each, at::kBFloat16);
    }
    EXPECT_EQ(rows->forward(columns->forward(table->forward(kTokens))).scalar_type(), at::kBFloat16);
    // A whole layer is converted too.
    torch::nn::Linear whole(4, 5);
    const parallel::ColumnLinear cut(*whole, false, nullptr, parallel::ParameterOptions{.dtype = at::kDouble});
    EXPECT_EQ(cut->bias.scalar_type(), at::kDouble);
    EXPECT_EQ(whole->weight.scalar_type(), at::kFloat);
  });
}

}  // namespace
}  // namespace shard::test
