// Layers whose parameters are cut over ranks: outputs and gradients are those of the whole layer.
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>

#include "shardtorch/parallel/cross_entropy.h"
#include "shardtorch/parallel/embedding.h"
#include "shardtorch/parallel/linear.h"
#include "tests/shardtorch/parallel_fixture.h"
#include "tests/support/distributed/sharded_tensor_test.h"

namespace shard::test {
namespace {

using parallel::TableCut;

/// Runs both from equal inputs, and compares outputs, gradients of inputs and parameters.
template <class Parallel, class Whole>
void expect_same_run(Parallel layer, Whole whole, const at::Tensor& input, const std::string& what) {
  SCOPED_TRACE(what);
  const at::Tensor own = input.detach().clone().requires_grad_(), other = input.detach().clone().requires_grad_();
  const at::Tensor found = layer->forward(own), expected = whole->forward(other);
  expect_close(found, expected, "output");
  loss_of(found).backward();
  loss_of(expected).backward();
  expect_close(own.grad(), other.grad(), "input.grad");
  expect_same_parameters(*layer, *whole, true);
}

/// Five hidden features: over four ranks the last one has none.
struct WholeMlp : torch::nn::Module {
  WholeMlp()
      : up(register_module("up", torch::nn::Linear(4, 5))), down(register_module("down", torch::nn::Linear(5, 3))) {}
  at::Tensor forward(const at::Tensor& input) { return down->forward(at::gelu(up->forward(input))); }
  torch::nn::Linear up, down;
};
struct Mlp : torch::nn::Module {
  explicit Mlp(const WholeMlp& whole) : up(*whole.up), down(*whole.down) {
    register_module("up", up);
    register_module("down", down);
  }
  at::Tensor forward(const at::Tensor& input) { return down->forward(at::gelu(up->forward(input))); }
  parallel::ColumnLinear up;
  parallel::RowLinear down;
};

void check_linear_layers() {
  Numbers numbers(1);
  for (const bool has_bias : {true, false}) {
    const auto options = torch::nn::LinearOptions(6, 7).bias(has_bias);
    auto columns = filled(torch::nn::Linear(options), numbers), rows = filled(torch::nn::Linear(options), numbers);
    const at::Tensor input = numbers.normal({2, 3, 6});
    expect_same_run(parallel::ColumnLinear(*columns, /*gather_output=*/true), columns, input, "columns");
    expect_same_run(parallel::RowLinear(*rows, /*split_input=*/true), rows, input, "rows");
  }
  const auto whole = filled(std::make_shared<WholeMlp>(), numbers);
  expect_same_run(std::make_shared<Mlp>(*whole), whole, numbers.normal({3, 4}), "both");
  // Layers fit into a Sequential.
  torch::nn::Sequential chain(parallel::ColumnLinear(*whole->up), torch::nn::GELU(), parallel::RowLinear(*whole->down));
  const at::Tensor input = numbers.normal({3, 4});
  expect_close(chain->forward(input), whole->forward(input), "sequential");
}

void check_new_layers_are_the_same_on_all_ranks() {
  const parallel::ColumnLinear columns(torch::nn::LinearOptions(3, 5), true);
  const parallel::RowLinear rows(torch::nn::LinearOptions(5, 3), true);
  const at::Tensor input = at::ones({1, 3});
  const at::Tensor output =
      parallel::RowLinear(rows)->forward(parallel::ColumnLinear(columns)->forward(input)).detach();
  for (const Bytes& each :
       all_gather(default_group()->group(), std::as_bytes(std::span(output.data_ptr<float>(), 3)))) {
    EXPECT_EQ(std::memcmp(each.data(), output.data_ptr(), each.size()), 0);
  }
  EXPECT_TRUE(ShardedTensor::of(columns->weight).defined());
}

constexpr TableCut kCuts[] = {TableCut::kRows, TableCut::kColumns};

void check_embeddings() {
  for (const TableCut cut : kCuts) {
    for (const auto padding :
         {std::optional<std::int64_t>(), std::optional<std::int64_t>(3), std::optional<std::int64_t>(-1)}) {
      SCOPED_TRACE(c10::str("cut ", static_cast<int>(cut), " padding ", padding.value_or(99)));
      Numbers numbers(2);
      auto options = torch::nn::EmbeddingOptions(5, 6);
      if (padding) options.padding_idx(*padding);
      const auto whole = filled(torch::nn::Embedding(options), numbers);
      parallel::Embedding table(*whole, cut);
      const at::Tensor indices = whole_numbers({2, 3}, {0, 3, 4, 4, 1, 3});
      const at::Tensor found = table->forward(indices), expected = torch::nn::Embedding(whole)->forward(indices);
      expect_close(found, expected, "output");
      loss_of(found).backward();
      loss_of(expected).backward();
      expect_same_parameters(*table, *whole, true);
    }
  }
}

struct BagCase {
  torch::nn::EmbeddingBagMode mode;
  bool has_weights = false;
  std::optional<std::int64_t> padding{};
};

void check_bag(TableCut cut, const BagCase& bag, const at::Tensor& indices, const at::Tensor& offsets) {
  Numbers numbers(3);
  auto options = torch::nn::EmbeddingBagOptions(5, 6).mode(bag.mode);
  if (bag.padding) options.padding_idx(*bag.padding);
  const auto whole = filled(torch::nn::EmbeddingBag(options), numbers);
  parallel::EmbeddingBag table(*whole, cut);
  const at::Tensor own = bag.has_weights ? numbers.leaf(indices.sizes()) : at::Tensor();
  const at::Tensor other = bag.has_weights ? own.detach().clone().requires_grad_() : at::Tensor();
  const at::Tensor found = table->forward(indices, offsets, own);
  const at::Tensor expected = torch::nn::EmbeddingBag(whole)->forward(indices, offsets, other);
  expect_close(found, expected, "output");
  loss_of(found).backward();
  loss_of(expected).backward();
  expect_same_parameters(*table, *whole, true);
  if (bag.has_weights) expect_close(own.grad(), other.grad(), "per_sample_weights.grad");
}

void check_embedding_bags() {
  const at::Tensor matrix = whole_numbers({3, 3}, {0, 3, 4, 4, 1, 3, 3, 3, 3}), flat = matrix.reshape(-1);
  const at::Tensor begins = whole_numbers({4}, {0, 2, 2, 7});  // The second bag is empty.
  for (const TableCut cut : kCuts) {
    for (const BagCase& bag :
         {BagCase{torch::kSum}, BagCase{torch::kMean}, BagCase{torch::kMax}, BagCase{torch::kSum, true},
          BagCase{torch::kSum, true, 3}, BagCase{torch::kMean, false, 3}, BagCase{torch::kMax, false, 3}}) {
      SCOPED_TRACE(
          c10::str("cut ", static_cast<int>(cut), " mode ", bag.mode.index(), " padding ", bag.padding.value_or(99)));
      check_bag(cut, bag, matrix, {});
      check_bag(cut, bag, flat, begins);
    }
  }
}

void check_cross_entropy() {
  using Options = parallel::CrossEntropyOptions;
  namespace F = torch::nn::functional;
  Numbers numbers(4);
  const at::Tensor targets = whole_numbers({2, 3}, {0, 4, -100, 2, 3, 1});
  for (const double smoothing : {0.0, 0.3}) {
    for (const auto reduction : {Options::Reduction::kNone, Options::Reduction::kMean, Options::Reduction::kSum}) {
      SCOPED_TRACE(c10::str(smoothing, ", reduction ", static_cast<int>(reduction)));
      const at::Tensor whole = numbers.normal({2, 3, 5}).mul(30).requires_grad_();
      torch::nn::Linear cutter(torch::nn::LinearOptions(5, 5).bias(false));  // Cuts the last dimension.
      cutter->to(at::kDouble);
      cutter->weight.detach().copy_(at::eye(5));
      const parallel::ColumnLinear layer(*cutter);
      const at::Tensor own = whole.detach().clone().requires_grad_();
      const at::Tensor logits = parallel::ColumnLinear(layer)->forward(own);
      auto options = F::CrossEntropyFuncOptions().label_smoothing(smoothing);
      if (reduction == Options::Reduction::kNone) options.reduction(torch::kNone);
      if (reduction == Options::Reduction::kSum) options.reduction(torch::kSum);
      const at::Tensor expected = F::cross_entropy(whole.view({6, 5}), targets.view(-1), options);
      parallel::CrossEntropyLoss loss(5, Options{.label_smoothing = smoothing, .reduction = reduction});
      const at::Tensor found = loss->forward(logits, targets);
      expect_close(found.reshape(expected.sizes()), expected, "loss");
      loss_of(found.reshape(-1)).backward();
      loss_of(expected.reshape(-1)).backward();
      expect_close(own.grad(), whole.grad(), "gradient");
    }
  }
}

void check_full_tensors() {
  const at::Tensor whole = at::arange(35, at::kDouble).reshape({7, 5});
  const int ranks = default_group()->size();
  for (const ShardingSpecPtr& spec :
       {chunk_spec(0, placements(ranks, 1)), chunk_spec(1, placements(ranks)), grid_spec(7, 5, 3, 2, ranks)}) {
    const at::Tensor full = cut(whole, spec).full_tensor();
    EXPECT_TRUE(full.equal(whole));
    EXPECT_FALSE(full.requires_grad());
  }
}

void check_errors() {
  parallel::Embedding table(4, 2);
  SHARD_EXPECT_THROW(table->forward(whole_numbers({2}, {0, 4})), c10::IndexError, "index out of range");
  SHARD_EXPECT_THROW(parallel::Embedding(torch::nn::EmbeddingOptions(4, 2).max_norm(1.)), c10::NotImplementedError,
                     "max_norm");
  parallel::EmbeddingBag bag(4, 2);
  SHARD_EXPECT_THROW(bag->forward(whole_numbers({2}, {0, 1})), c10::ValueError, "need offsets");
  SHARD_EXPECT_THROW(bag->forward(whole_numbers({1, 2}, {0, 1}), {}, at::ones({1, 2})), c10::ValueError,
                     "for sums only");
  const auto chunk = parallel::ColumnLinear(2, 6)->forward(at::ones({3, 2}));
  SHARD_EXPECT_THROW(parallel::cross_entropy(chunk, whole_numbers({3}, {0, 1, 6}), 6), c10::IndexError,
                     "out of bounds");
  SHARD_EXPECT_THROW(parallel::cross_entropy(chunk, whole_numbers({2}, {0, 1}), 6), c10::ValueError,
                     "targets have the shape");
  SHARD_EXPECT_THROW(parallel::cross_entropy(chunk, whole_numbers({3}, {0, 1, 2}), 60), c10::ValueError, "classes");
}

void on_one_to_four_ranks(void (*body)()) {
  for (int ranks = 1; ranks <= 4; ++ranks) {
    SCOPED_TRACE(c10::str(ranks, " ranks"));
    as_ranks(ranks, [body](int) { body(); });
  }
}

TEST(Parallel, LinearLayersHaveTheGradientsOfTheWhole) { on_one_to_four_ranks(check_linear_layers); }
TEST(Parallel, NewLayersAreTheSameOnAllRanks) { on_one_to_four_ranks(check_new_layers_are_the_same_on_all_ranks); }
TEST(Parallel, EmbeddingsHaveTheGradientsOfTheWhole) { on_one_to_four_ranks(check_embeddings); }
TEST(Parallel, EmbeddingBagsHaveTheGradientsOfTheWhole) { on_one_to_four_ranks(check_embedding_bags); }
TEST(Parallel, CrossEntropyIsThatOfAllClasses) { on_one_to_four_ranks(check_cross_entropy); }
TEST(Parallel, FullTensorsAreWholeOnAllRanks) { on_one_to_four_ranks(check_full_tensors); }
TEST(Parallel, MistakesAreSaid) { on_one_to_four_ranks(check_errors); }

TEST(Parallel, LayersAreForMembersOnly) {
  as_ranks(3, [](int rank) {
    const ProcessGroupPtr pair = new_group({0, 2});
    const torch::nn::Linear whole(2, 4);
    if (rank == 1) {
      SHARD_EXPECT_THROW(parallel::ColumnLinear(*whole, false, pair), c10::ValueError, "is not a member");
    } else {
      EXPECT_EQ(parallel::ColumnLinear(*whole, false, pair)->forward(at::ones({1, 2})).size(1), 2);
    }
  });
}

class ParallelOverGloo : public ShardedTensorTestBase {};

SHARD_RANKS_TEST(ParallelOverGloo, LayersAreThoseOfTheWhole) {
  with_comms({.rpc = false}, [] {
    for (void (*body)() : {check_linear_layers, check_embeddings, check_embedding_bags, check_cross_entropy,
                           check_full_tensors, check_errors}) {
      body();
    }
  });
}

// --- On the CPU, or on GPUs ---

class ParallelOnDevices : public ShardedTensorTestBase {};

SHARD_RANKS_TEST(ParallelOnDevices, EmbeddingBagsSkipPaddingAndFindMaxima) {
  with_comms({.rpc = false}, [&] {
    const at::Tensor indices = whole_numbers({3, 3}, {0, 3, 4, 4, 1, 3, 3, 3, 3}).to(device());
    for (const TableCut cut : kCuts) {
      for (const torch::nn::EmbeddingBagMode& mode :
           {torch::nn::EmbeddingBagMode(torch::kSum), torch::nn::EmbeddingBagMode(torch::kMax)}) {
        Numbers numbers(3);
        auto whole =
            filled(torch::nn::EmbeddingBag(torch::nn::EmbeddingBagOptions(5, 6).mode(mode).padding_idx(3)), numbers);
        whole->to(device());
        parallel::EmbeddingBag table(*whole, cut);
        expect_close(table->forward(indices).detach(), whole->forward(indices).detach(), "output");
      }
    }
  });
}

}  // namespace
}  // namespace shard::test
