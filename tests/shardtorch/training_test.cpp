// Training with sharded parameters: local parameters, norms of gradients, optimizers and their states in checkpoints.
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <limits>

#include "shardtorch/parallel/embedding.h"
#include "shardtorch/parallel/linear.h"
#include "shardtorch/parallel/optimizer_state.h"
#include "tests/shardtorch/parallel_fixture.h"
#include "tests/support/distributed/sharded_tensor_test.h"

namespace shard::test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

struct WholeNet : torch::nn::Module {
  WholeNet()
      : table(register_module("table", torch::nn::Embedding(7, 4))),
        norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({4})))),
        up(register_module("up", torch::nn::Linear(4, 6))),
        down(register_module("down", torch::nn::Linear(6, 4))) {}
  at::Tensor forward(const at::Tensor& indices) {
    const at::Tensor rows = table->forward(indices);
    return rows + down->forward(at::gelu(up->forward(norm->forward(rows))));
  }
  torch::nn::Embedding table;
  torch::nn::LayerNorm norm;
  torch::nn::Linear up, down;
};

struct Net : torch::nn::Module {
  explicit Net(const WholeNet& whole)
      : table(*whole.table),
        norm(std::dynamic_pointer_cast<torch::nn::LayerNormImpl>(whole.norm->clone())),
        up(*whole.up),
        down(*whole.down) {
    register_module("table", table);
    register_module("norm", norm);
    register_module("up", up);
    register_module("down", down);
  }
  at::Tensor forward(const at::Tensor& indices) {
    const at::Tensor rows = table->forward(indices);
    return rows + down->forward(at::gelu(up->forward(norm->forward(rows))));
  }
  parallel::Embedding table;
  torch::nn::LayerNorm norm;
  parallel::ColumnLinear up;
  parallel::RowLinear down;
};

std::shared_ptr<WholeNet> whole_net() {
  Numbers numbers(5);
  return filled(std::make_shared<WholeNet>(), numbers);
}

std::shared_ptr<WholeNet> whole_net_on(at::Device device) {
  const auto net = whole_net();
  net->to(device);
  return net;
}

const at::Tensor kIndices = whole_numbers({2, 3}, {0, 1, 6, 3, 3, 5});

template <class Module>
void backward(Module& net) {
  net.zero_grad();
  loss_of(net.forward(kIndices)).backward();
}

TEST(LocalParameters, StandForWhatTheRankHas) {
  as_ranks(2, [](int rank) {
    Net net(*whole_net());
    std::vector<std::string> names;
    for (const parallel::LocalParameter& each : parallel::named_local_parameters(net)) {
      names.push_back(each.name);
      EXPECT_TRUE(each.tensor.is_leaf() && each.tensor.requires_grad());
      EXPECT_TRUE(each.name != "table.weight" || each.tensor.size(0) == (rank == 0 ? 4 : 3));
    }
    EXPECT_THAT(names, ElementsAre("table.weight", "norm.weight", "norm.bias", "up.weight", "up.bias", "down.weight",
                                   "down.bias"));
    // A parameter of two names comes once.
    net.register_module("again", net.up.ptr());
    EXPECT_EQ(parallel::local_parameters(net).size(), names.size());
  });
}

TEST(GradNorm, CountsShardsAndPlainParametersOnce) {
  for (int ranks = 1; ranks <= 4; ++ranks) {
    as_ranks(ranks, [](int) {
      const auto whole = whole_net();
      Net net(*whole);
      backward(net);
      backward(*whole);
      std::vector<at::Tensor> gradients;
      for (const at::Tensor& each : whole->parameters()) gradients.push_back(each.grad().reshape(-1));
      for (const double p : {1.0, 2.0, 3.0, std::numeric_limits<double>::infinity()}) {
        const double expected = at::linalg_vector_norm(at::cat(gradients), p).item<double>();
        EXPECT_NEAR(parallel::grad_norm(net, p), expected, 1e-9 * expected) << p;
      }
      SHARD_EXPECT_THROW(parallel::grad_norm(net, 0), c10::ValueError, "above 0");
    });
  }
}

TEST(GradNorm, IsCutDownToItsMost) {
  as_ranks(3, [](int) {
    const auto whole = whole_net();
    Net net(*whole);
    backward(net);
    const double norm = parallel::grad_norm(net);
    EXPECT_EQ(parallel::clip_grad_norm_(net, 2 * norm), norm);
    EXPECT_EQ(parallel::grad_norm(net), norm);
    EXPECT_EQ(parallel::clip_grad_norm_(net, norm / 4), norm);
    EXPECT_NEAR(parallel::grad_norm(net), norm / 4, 1e-5);
    net.norm->weight.mutable_grad().fill_(std::nan(""));
    SHARD_EXPECT_THROW(parallel::clip_grad_norm_(net, 1, 2, true), c10::Error, "non-finite");
  });
}

using MakeOptimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)>;

std::vector<std::pair<std::string, MakeOptimizer>> optimizers() {
  namespace optim = torch::optim;
  return {{"adam", [](auto tensors) { return std::make_unique<optim::Adam>(tensors, optim::AdamOptions(0.01)); }},
          {"amsgrad",
           [](auto tensors) { return std::make_unique<optim::Adam>(tensors, optim::AdamOptions(0.01).amsgrad(true)); }},
          {"adamw", [](auto tensors) { return std::make_unique<optim::AdamW>(tensors, optim::AdamWOptions(0.01)); }},
          {"sgd", [](auto tensors) { return std::make_unique<optim::SGD>(tensors, optim::SGDOptions(0.01)); }},
          {"momentum", [](auto tensors) {
             return std::make_unique<optim::SGD>(tensors, optim::SGDOptions(0.01).momentum(0.9).dampening(0.1));
           }}};
}

template <class Module>
void train(Module& net, torch::optim::Optimizer& optimizer, int steps, const at::Tensor& indices = kIndices) {
  for (int i = 0; i < steps; ++i) {
    optimizer.zero_grad();
    loss_of(net.forward(indices)).backward();
    optimizer.step();
  }
}

class TrainingState : public Checkpoint {};

TEST_F(TrainingState, GoesOnOnOtherRanksAsIfNothingHadHappened) {
  for (const auto& [name, make] : optimizers()) {
    SCOPED_TRACE(name);
    const auto whole = whole_net();
    const auto optimizer = make(whole->parameters());
    train(*whole, *optimizer, 3);
    as_ranks(3, [&, &make = make, &name = name](int) {
      Net net(*whole_net());
      const auto own = make(parallel::local_parameters(net));
      train(net, *own, 3);
      expect_same_parameters(net, *whole, false);
      own->param_groups()[0].options().set_lr(0.02);
      checkpoint::save(parallel::training_state(net, *own), path(name), nullptr, as("dcp"));
    });
    optimizer->param_groups()[0].options().set_lr(0.02);
    train(*whole, *optimizer, 2);
    for (const int ranks : {1, 2, 4}) {
      as_ranks(ranks, [&, &make = make, &name = name](int) {
        Net net(*whole_net());
        const auto own = make(parallel::local_parameters(net));
        EXPECT_THAT(parallel::load_training_state(net, *own, path(name)).unexpected, IsEmpty());
        EXPECT_EQ(own->param_groups()[0].options().get_lr(), 0.02);
        train(net, *own, 2);
        expect_same_parameters(net, *whole, false);
      });
    }
  }
}

TEST_F(TrainingState, NamesWhatTheOptimizersAre) {
  as_ranks(2, [](int) {
    Net net(*whole_net());
    torch::optim::Adam adam(parallel::local_parameters(net), torch::optim::AdamOptions(0.5));
    const auto dict = [&] { return parallel::optimizer_state(net, adam).toGenericDict(); };
    EXPECT_TRUE(dict().at("state").toGenericDict().empty());
    train(net, adam, 2);
    const c10::impl::GenericDict up = dict().at("state").toGenericDict().at("up.weight").toGenericDict();
    EXPECT_EQ(up.at("step").toTensor().item<double>(), 2);
    EXPECT_EQ(up.at("step").toTensor().scalar_type(), at::kFloat);
    const ShardedTensor average = ShardedTensor::of(up.at("exp_avg").toTensor());
    EXPECT_EQ(average.sizes(), at::IntArrayRef({6, 4}));
    EXPECT_FALSE(average.requires_grad());
    const c10::impl::GenericDict group = dict().at("param_groups").toList().get(0).toGenericDict();
    EXPECT_EQ(group.at("lr").toDouble(), 0.5);
    EXPECT_EQ(group.at("params").toList().get(0).toStringRef(), "table.weight");
    EXPECT_FALSE(group.at("decoupled_weight_decay").toBool());
    const torch::optim::AdamW adamw(parallel::local_parameters(net));
    const auto other = parallel::optimizer_state(net, adamw).toGenericDict().at("param_groups").toList().get(0);
    EXPECT_TRUE(other.toGenericDict().at("decoupled_weight_decay").toBool());
  });
}

TEST_F(TrainingState, RefusesWhatDoesNotFit) {
  as_ranks(2, [](int) {
    Net net(*whole_net()), other(*whole_net());
    torch::optim::Adam adam(parallel::local_parameters(net)), strange(parallel::local_parameters(other));
    torch::optim::Adagrad adagrad(parallel::local_parameters(net));
    SHARD_EXPECT_THROW(parallel::optimizer_state(net, strange), c10::ValueError, "not a local parameter of the module");
    SHARD_EXPECT_THROW(parallel::optimizer_state(net, adagrad), c10::ValueError, "neither Adam nor AdamW nor SGD");
    train(net, adam, 1);
    const c10::impl::GenericDict state = parallel::optimizer_state(net, adam).toGenericDict().copy();
    train(net, adam, 1);
    c10::impl::GenericDict entries = state.at("state").toGenericDict();
    c10::impl::GenericDict entry = entries.at("up.bias").toGenericDict();
    entry.insert_or_assign("exp_avg", at::zeros({3}));
    SHARD_EXPECT_THROW(parallel::set_optimizer_state(net, adam, state), c10::ValueError,
                       "'up.bias.exp_avg' has a different shape");
    EXPECT_EQ(entries.erase("up.bias"), 1U);
    SHARD_EXPECT_THROW(parallel::set_optimizer_state(net, adam, state), c10::ValueError, "has no entry for 'up.bias'");
    const auto now = parallel::optimizer_state(net, adam).toGenericDict().at("state").toGenericDict();
    EXPECT_EQ(now.at("table.weight").toGenericDict().at("step").toTensor().item<double>(), 2) << "nothing was changed";
  });
}

TEST_F(TrainingState, OfOptionsThatTheOptimizerCannotTakeOverIsRefused) {
  as_ranks(2, [](int) {
    namespace optim = torch::optim;
    Net net(*whole_net());
    const std::vector<at::Tensor> tensors = parallel::local_parameters(net);
    optim::SGD plain(tensors, optim::SGDOptions(0.1)), momentum(tensors, optim::SGDOptions(0.1).momentum(0.9));
    optim::Adam adam(tensors), amsgrad(tensors, optim::AdamOptions().amsgrad(true));
    optim::AdamW adamw(tensors);
    for (optim::Optimizer* each : std::initializer_list<optim::Optimizer*>{&momentum, &adam, &amsgrad, &adamw})
      parallel::init_optimizer_state(*each);
    const auto expect_refused = [&](optim::Optimizer& own, const c10::IValue& state, const std::string& difference) {
      SHARD_EXPECT_THROW(parallel::set_optimizer_state(net, own, state), c10::ValueError,
                         "cannot continue the optimizer's group of 'table.weight': expected " + difference);
    };
    expect_refused(plain, parallel::optimizer_state(net, momentum), "'momentum' 0, found 0.9");
    expect_refused(momentum, parallel::optimizer_state(net, plain), "'momentum' 0.9, found 0");
    expect_refused(adam, parallel::optimizer_state(net, amsgrad), "'amsgrad' 0, found 1");
    expect_refused(amsgrad, parallel::optimizer_state(net, adam), "'amsgrad' 1, found 0");
    expect_refused(adam, parallel::optimizer_state(net, adamw), "'decoupled_weight_decay' 0, found 1");
    const c10::IValue maximizing = parallel::optimizer_state(net, adam);
    maximizing.toGenericDict().at("param_groups").toList().get(0).toGenericDict().insert_or_assign("maximize", true);
    expect_refused(adam, maximizing, "'maximize' 0, found 1");
    const c10::IValue slower = parallel::optimizer_state(net, momentum);
    slower.toGenericDict().at("param_groups").toList().get(0).toGenericDict().insert_or_assign("momentum", 0.5);
    parallel::set_optimizer_state(net, momentum, slower);
    EXPECT_EQ(static_cast<optim::SGDOptions&>(momentum.param_groups()[0].options()).momentum(), 0.5);
  });
}

/// A layer whose weight is sharded by `spec`, and whose optimizer has had a step; each element's gradient is its
/// number.
struct Stepped {
  explicit Stepped(const ShardingSpecPtr& spec, bool has_bias = false)
      : layer(torch::nn::LinearOptions(4, 4).bias(has_bias)) {
    shard_parameter(*layer, "weight", layer->weight, spec);
    const at::Tensor gradients = at::arange(16, at::kFloat).view({4, 4});
    for (const parallel::LocalParameter& each : parallel::named_local_parameters(*layer)) {
      each.tensor.mutable_grad() = each.sharded.defined() ? part_of(gradients, each).clone() : at::ones({4});
    }
    adam = std::make_unique<torch::optim::Adam>(parallel::local_parameters(*layer));
    adam->step();
  }
  c10::impl::GenericDict state() const { return parallel::optimizer_state(*layer, *adam).toGenericDict(); }
  ShardedTensor average() const {
    const c10::IValue of_weight = state().at("state").toGenericDict().at("weight");
    return ShardedTensor::of(of_weight.toGenericDict().at("exp_avg").toTensor());
  }

  torch::nn::Linear layer;
  std::unique_ptr<torch::optim::Adam> adam;
};

TEST_F(TrainingState, HoldsSeveralShardsOfARankUnderOneName) {
  as_ranks(2, [&](int) {
    const Stepped saved(chunk_spec(0, {on(0), on(1), on(1), on(0)}));
    EXPECT_EQ(saved.average().local_shards().size(), 2U);
    const auto group = saved.state().at("param_groups").toList().get(0).toGenericDict();
    EXPECT_EQ(group.at("params").toList().size(), 1U);
    checkpoint::save(parallel::training_state(*saved.layer, *saved.adam), path(), nullptr, as("dcp"));
    Stepped loaded(chunk_spec(1, placements(2, 1)));
    loaded.average().local_tensor().zero_();
    parallel::load_training_state(*loaded.layer, *loaded.adam, path());
    EXPECT_TRUE(at::allclose(loaded.average().full_tensor(), at::arange(16, at::kFloat).view({4, 4}) * 0.1));
  });
}

TEST_F(TrainingState, NamesParametersOfWhichARankHasNoShard) {
  as_ranks(2, [&](int) {
    const ShardingSpecPtr on_last = chunk_spec(0, {on(1)}), columns = chunk_spec(1, placements(2));
    const std::pair<ShardingSpecPtr, ShardingSpecPtr> ways[] = {{on_last, columns}, {columns, on_last}};
    for (const auto& [before, after] : ways) {
      const Stepped saved(before, /*has_bias=*/true);
      const auto group = saved.state().at("param_groups").toList().get(0).toGenericDict();
      EXPECT_EQ(group.at("params").toList().size(), 2U);
      saved.adam->param_groups()[0].options().set_lr(0.25);
      checkpoint::SaveOptions options = as("dcp");
      options.force = true;
      StateDict state = parallel::training_state(*saved.layer, *saved.adam);
      state.insert("optim.state.weights.step", 7);
      checkpoint::save(state, path(), nullptr, options);
      Stepped loaded(after, /*has_bias=*/true);
      const c10::IValue of_bias = loaded.state().at("state").toGenericDict().at("bias");
      of_bias.toGenericDict().at("exp_avg").toTensor().zero_();
      EXPECT_THAT(parallel::load_training_state(*loaded.layer, *loaded.adam, path()).unexpected,
                  ElementsAre("optim.state.weights.step"));
      EXPECT_EQ(loaded.adam->param_groups()[0].options().get_lr(), 0.25);
      EXPECT_TRUE(at::allclose(of_bias.toGenericDict().at("exp_avg").toTensor(), at::full({4}, 0.1)));
    }
  });
}

TEST_F(TrainingState, OfOtherShardsOfTheSameSizeIsRefused) {
  as_ranks(2, [](int) {
    Stepped one(chunk_spec(0, placements(2))), turned(chunk_spec(0, placements(2, 1)));
    const at::Tensor before = turned.average().full_tensor();
    SHARD_EXPECT_THROW(parallel::set_optimizer_state(*turned.layer, *turned.adam, one.state()), c10::ValueError,
                       "'weight.exp_avg' has a different shape or different shards");
    EXPECT_TRUE(turned.average().full_tensor().equal(before));
  });
}

// --- Four processes: on the CPU, or on GPUs
// ---------------------------------------------------------------------------

class TrainingOnDevices : public ShardedTensorTestBase {};

SHARD_RANKS_TEST(TrainingOnDevices, StepsNormsAndCheckpointsAreThoseOfTheWhole) {
  with_comms({.rpc = false}, [&] {
    const auto whole = whole_net_on(device());
    torch::optim::Adam expected(whole->parameters(), torch::optim::AdamOptions(0.01));
    const std::string folder = file_name() + ".step";
    const at::Tensor indices = kIndices.to(device());
    {
      Net net(*whole);
      EXPECT_EQ(ShardedTensor::of(net.up->weight).device(), device());
      torch::optim::Adam own(parallel::local_parameters(net), torch::optim::AdamOptions(0.01));
      train(*whole, expected, 2, indices);
      train(net, own, 2, indices);
      expect_same_parameters(net, *whole, true);
      const double norm = parallel::grad_norm(net);
      EXPECT_NEAR(parallel::clip_grad_norm_(net, norm / 2), norm, 1e-9 * norm);
      checkpoint::save(parallel::training_state(net, own), folder);
    }
    Net again(*whole_net_on(device()));
    torch::optim::Adam own(parallel::local_parameters(again), torch::optim::AdamOptions(0.5));
    parallel::load_training_state(again, own, folder);
    train(*whole, expected, 2, indices);
    train(again, own, 2, indices);
    expect_same_parameters(again, *whole, false);
  });
}

}  // namespace
}  // namespace shard::test
