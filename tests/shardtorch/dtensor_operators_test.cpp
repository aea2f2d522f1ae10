// Operators on DTensors: placements as recorded from torch 2.11, and elements and gradients of one process.
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/init.h>
#include <torch/optim/sgd.h>

#include <fstream>
#include <sstream>

#include "tests/shardtorch/dtensor_calls.h"
#include "tests/shardtorch/dtensor_fixture.h"

namespace shard::test {
namespace {

using dtensor::DeviceMeshPtr;
using dtensor::distribute_tensor;
using dtensor::init_device_mesh;
using dtensor::placements_of_gradient;

/// A line of operators.txt.
struct RecordedCall {
  std::string line, name, result;
  std::vector<std::string> shapes;
  std::vector<Placements> placements;
};

dtensor::Placement placement_from(const std::string& text) {
  if (text.starts_with("S(")) return CutBy{std::stoll(text.substr(2))};
  if (text == "P(sum)") return Partial();
  if (text == "P(avg)") return Partial{ReduceOp::kMean};
  if (text == "P(max)") return Partial{ReduceOp::kMax};
  if (text == "P(min)") return Partial{ReduceOp::kMin};
  EXPECT_EQ(text, "R");
  return Replicate();
}

Placements placements_from(const std::string& text) {
  std::istringstream words(text);
  Placements placements;
  for (std::string word; std::getline(words, word, ',');) placements.push_back(placement_from(word));
  return placements;
}

std::vector<RecordedCall> recorded_calls() {
  std::ifstream file(SHARD_TEST_DATA "/dtensor/operators.txt");
  std::vector<RecordedCall> calls;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    RecordedCall& call = calls.emplace_back();
    call.line = line;
    words >> call.name;
    std::string word;
    while (words >> word && word != ":") call.shapes.push_back(word);
    while (words >> word && word != ":") call.placements.push_back(placements_from(word));
    words >> call.result;
  }
  return calls;
}

/// A tensor with that shape; whole numbers below 4 if the text ends in "i". Sums of its elements are exact.
at::Tensor tensor_of(const std::string& text, std::int64_t seed) {
  Sizes shape;
  if (text != "scalar") {
    std::istringstream words(text);
    for (std::string word; std::getline(words, word, 'x');) shape.push_back(std::stoll(word));
  }
  const at::Tensor order = at::arange(c10::multiply_integers(shape), at::kLong).mul(7).add(3 * seed).view(shape);
  if (text.ends_with('i')) return order.remainder(4);
  return order.remainder(23).add(1).sub(11.5 * static_cast<double>(seed % 2)).to(at::kDouble) / 8;
}

DTensor placed(const at::Tensor& whole, const DeviceMeshPtr& mesh, const Placements& placements, bool requires_grad) {
  const at::Tensor part = obvious_part(whole, mesh->shape(), placements, *mesh->index());
  at::Tensor local = obvious_term(part, mesh->shape(), placements, *mesh->index()).clone();
  if (whole.is_floating_point()) local.set_requires_grad(requires_grad);
  return DTensor::from_local(local, mesh, placements, {.shape = whole.sizes().vec()});
}

class DTensorOperators : public MultiThreadedTestCase {
 protected:
  DeviceMeshPtr square() const { return init_device_mesh(at::kCPU, {2, 2}); }
};

/// The whole of a gradient at a local tensor; undefined if there is none.
at::Tensor whole_gradient(const DTensor& tensor) {
  const at::Tensor gradient = tensor.local().grad();
  if (!gradient.defined()) return {};
  const Placements placements = placements_of_gradient(tensor.placements());
  return DTensor::from_local(gradient, tensor.device_mesh(), placements, {.shape = tensor.sizes().vec()}).full_tensor();
}

void expect_close(const at::Tensor& found, const at::Tensor& expected, const std::string& what) {
  ASSERT_EQ(found.sizes(), expected.sizes()) << what;
  ASSERT_EQ(found.scalar_type(), expected.scalar_type()) << what;
  EXPECT_TRUE(at::allclose(found.to(at::kDouble), expected.to(at::kDouble), 1e-6, 1e-9)) << what << '\n'
                                                                                         << found << '\n'
                                                                                         << expected;
}

/// Runs the call on whole tensors and on DTensors; compares the results, and with `requires_grad` the gradients.
void expect_same(const RecordedCall& call, const DeviceMeshPtr& mesh, bool requires_grad) {
  const auto run = calls_of_operators().at(call.name);
  std::vector<at::Tensor> wholes;
  std::vector<DTensor> parts;
  Tensors handles;
  for (std::size_t i = 0; i < call.shapes.size(); ++i) {
    const at::Tensor whole = tensor_of(call.shapes[i], static_cast<std::int64_t>(i));
    parts.push_back(placed(whole, mesh, call.placements[i], requires_grad));
    wholes.push_back(whole.clone());
    if (whole.is_floating_point()) wholes.back().set_requires_grad(requires_grad);
    handles.push_back(parts.back());
  }
  const at::Tensor expected = run(wholes);
  const DTensor result = DTensor::of(run(handles));
  ASSERT_TRUE(result.defined()) << call.line;
  EXPECT_EQ(to_string(result.placements()), to_string(placements_from(call.result))) << call.line;
  const at::Tensor found = result.full_tensor();
  expect_close(found, expected.detach(), call.line);
  if (!requires_grad || !expected.requires_grad()) return;
  const at::Tensor weights =
      tensor_of("30000", 2).slice(0, 0, expected.numel()).view(expected.sizes()).to(expected.scalar_type());
  (expected * weights).sum().backward();
  (found * weights).sum().backward();
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const at::Tensor gradient = whole_gradient(parts[i]);
    ASSERT_EQ(gradient.defined(), wholes[i].grad().defined()) << call.line;
    if (gradient.defined()) expect_close(gradient, wholes[i].grad(), call.line + ", gradient " + std::to_string(i));
  }
}

/// Operators that change leaves record no gradients, nor do products, maxima and minima of sharded dimensions.
bool has_gradients(const RecordedCall& call) {
  static const std::vector<std::string> kWithout{"max", "min", "amax_1", "amin_0", "maximum"};
  return !call.name.ends_with("_in_place") && std::ranges::find(kWithout, call.name) == kWithout.end();
}

SHARD_RANKS_TEST(DTensorOperators, HaveThePlacementsOfTorchAndTheValuesOfOneProcess) {
  const DeviceMeshPtr mesh = square();
  const std::vector<RecordedCall> calls = recorded_calls();
  ASSERT_GT(calls.size(), 1000U);
  for (const RecordedCall& call : calls) {
    if (call.result == "refused") continue;
    try {
      expect_same(call, mesh, has_gradients(call));
    } catch (const c10::NotImplementedError&) {  // The gradient of a maximum of terms.
      expect_same(call, mesh, false);
    } catch (const c10::Error& error) {
      ADD_FAILURE() << call.line << ": " << error.what_without_backtrace();
      return;  // This rank may have left a collective.
    }
    if (::testing::Test::HasFatalFailure()) return;
  }
}

SHARD_RANKS_TEST(DTensorOperators, WithoutARuleAreRefusedByNameWithTheWayAround) {
  const DTensor tensor = distribute_tensor(numbered({4, 8}), square(), {CutBy{0}, Replicate()});
  EXPECT_THAT([&] { at::sort(tensor); },
              RefusesWith<c10::Error>("aten::sort is not supported for DTensor! Compute on local() of each rank"));
  EXPECT_THAT(
      [&] {
        at::add(tensor, numbered({4, 8}));
      },
      RefusesWith<c10::Error>("aten::add.Tensor: got mixed at::Tensor and DTensor"));
  EXPECT_THAT([&] { at::relu_out(const_cast<at::Tensor&>(tensor.as_tensor()), tensor); },
              RefusesWith<c10::Error>("with `out` is not supported for DTensor!"));
  const DTensor terms = DTensor::from_local(at::ones({4, 8}), tensor.device_mesh(), {Partial(), Replicate()});
  EXPECT_THAT([&] { terms.as_tensor().normal_(); }, RefusesWith<c10::Error>("is not supported yet!"));
  EXPECT_THAT([&] { terms.as_tensor().relu_(); },
              RefusesWith<c10::Error>("in-place operations that require placement changes are not supported"));
}

/// The parts of some ranks would fit.
SHARD_RANKS_TEST(DTensorOperators, OnTensorsOfDifferentSizesAreRefusedByAllRanks) {
  const DeviceMeshPtr line = init_device_mesh(at::kCPU, {4});
  const auto sharded = [&](const Sizes& shape, std::int64_t dim) { return dtensor::ones(shape, line, {CutBy{dim}}); };
  EXPECT_THAT(
      [&] {
        at::mm(sharded({4, 5}, 1), sharded({6, 4}, 0));
      },
      RefusesWith<c10::Error>("aten::mm: cannot multiply tensors of the sizes [4, 5] and [6, 4]"));
  EXPECT_THAT(
      [&] {
        at::mm(sharded({4}, 0), sharded({4, 4}, 0));
      },
      RefusesWith<c10::Error>("aten::mm: cannot multiply tensors of the sizes [4] and [4, 4]"));
  EXPECT_THAT(
      [&] {
        at::bmm(sharded({4, 2, 3}, 0), sharded({5, 3, 2}, 0));
      },
      RefusesWith<c10::Error>("aten::bmm: cannot multiply tensors of the sizes [4, 2, 3] and [5, 3, 2]"));
  const DTensor left = dtensor::ones({4, 3}, line, {Replicate()});
  EXPECT_THAT(
      [&] {
        at::addmm(sharded({6}, 0), left, sharded({3, 5}, 1));
      },
      RefusesWith<c10::Error>("The size of tensor a (6) must match the size of tensor b (5)"));
  EXPECT_THAT(
      [&] {
        at::addmm(sharded({2, 4, 5}, 2), left, sharded({3, 5}, 1));
      },
      RefusesWith<c10::Error>("cannot add a tensor of the size [2, 4, 5] to a product of the size [4, 5]"));
  const std::string differ = "the tensors have different sizes: ";
  EXPECT_THAT(
      [&] {
        at::cat({sharded({2, 3}, 1), sharded({2, 4}, 1)}, 0);
      },
      RefusesWith<c10::Error>("aten::cat: " + differ + "[2, 3] and [2, 4]"));
  EXPECT_THAT(
      [&] {
        at::stack({sharded({3}, 0), sharded({4}, 0)});
      },
      RefusesWith<c10::Error>("aten::stack: " + differ + "[3] and [4]"));
}

SHARD_RANKS_TEST(DTensorOperators, OnDifferentMeshesAreRefused) {
  const DTensor one = dtensor::ones({4}, square(), {CutBy{0}, Replicate()});
  const DTensor other = dtensor::ones({4}, init_device_mesh(at::kCPU, {4}), {CutBy{0}});
  EXPECT_THAT([&] { at::add(one, other); }, RefusesWith<c10::ValueError>("the tensors are on different meshes"));
}

SHARD_RANKS_TEST(DTensorOperators, GiveNumbersOfTheWhole) {
  const DTensor tensor = distribute_tensor(numbered({4, 8}), square(), {CutBy{0}, CutBy{1}});
  EXPECT_EQ(at::sum(tensor).item<double>(), 31 * 16);
  EXPECT_TRUE(at::equal(tensor, at::clone(tensor)));
  const at::Tensor changed = at::clone(tensor);
  at::Tensor local = DTensor::of(changed).local();
  if (rank() == 3) local.add_(1);
  EXPECT_FALSE(at::equal(tensor, changed));
}

SHARD_RANKS_TEST(DTensorOperators, RefuseGradientsOfMaximaOfShardedDimensions) {
  const DTensor tensor = distribute_tensor(numbered({4, 8}).requires_grad_(), square(), {CutBy{0}, Replicate()});
  const std::string refusal = "the gradient of P(max) is not supported for DTensor!";
  EXPECT_THAT([&] { at::amax(tensor, 0); }, RefusesWith<c10::NotImplementedError>("aten::amax: " + refusal));
  EXPECT_THAT([&] { at::max(tensor); }, RefusesWith<c10::NotImplementedError>("aten::max: " + refusal));
  EXPECT_EQ(to_string(DTensor::of(at::amax(tensor, 1)).placements()), "[S(0), R]");
}

/// Shards over one rank do not nest. The result is that of torch 2.11.
SHARD_RANKS_TEST(DTensorOperators, CountNoCostOfNestingOverOneRank) {
  const DeviceMeshPtr mesh = init_device_mesh(at::kCPU, {4, 1});
  const DTensor input = placed(tensor_of("3x5", 0), mesh, {CutBy{1}, Partial()}, false);
  const DTensor weight = placed(tensor_of("8x5", 1), mesh, {CutBy{1}, CutBy{1}}, false);
  const DTensor bias = placed(tensor_of("8", 2), mesh, {Partial{ReduceOp::kMin}, CutBy{0}}, false);
  const DTensor found = DTensor::of(at::linear(input, weight, static_cast<const at::Tensor&>(bias)));
  EXPECT_EQ(to_string(found.placements()), "[S(1), S(1)]");
}

/// Ranks without elements have no maximum of their own.
SHARD_RANKS_TEST(DTensorOperators, FindMaximaWhereRanksHaveNoElements) {
  const at::Tensor whole = numbered({1, 3});
  const DTensor tensor = distribute_tensor(whole, square(), {CutBy{0}, CutBy{1}});
  EXPECT_EQ(DTensor::of(at::max(tensor)).full_tensor().item<double>(), 2);
  EXPECT_TRUE(DTensor::of(at::amin(tensor, 0)).full_tensor().equal(whole[0]));
  EXPECT_TRUE(DTensor::of(at::amax(tensor, {0, 1}, true)).full_tensor().equal(at::full({1, 1}, 2, at::kDouble)));
}

/// An axis after the first one may have too many ranks for the first part: it becomes a replica, as in torch.
SHARD_RANKS_TEST(DTensorOperators, SplitNestedShards) {
  const DeviceMeshPtr mesh = init_device_mesh(at::kCPU, {1, 4});
  const DTensor tensor = distribute_tensor(numbered({8}), mesh, {CutBy{0}, CutBy{0}});
  const DTensor view = DTensor::of(tensor.as_tensor().view({2, 4}));
  EXPECT_EQ(to_string(view.placements()), "[S(0), R]");
  EXPECT_TRUE(view.full_tensor().equal(numbered({2, 4})));
}

SHARD_RANKS_TEST(DTensorOperators, FlattenNoUnevenShards) {
  const DTensor uneven = distribute_tensor(numbered({3, 4}), init_device_mesh(at::kCPU, {4}), {CutBy{0}});
  const auto refuses = RefusesWith<c10::Error>("Attempted to flatten an unevenly sharded dimension (dimension 0 of");
  EXPECT_THAT([&] { static_cast<void>(uneven.as_tensor().view({12})); }, refuses);
  EXPECT_THAT([&] { static_cast<void>(uneven.as_tensor().reshape({12})); }, refuses);
}

SHARD_RANKS_TEST(DTensorOperators, FillTermsOfOneValue) {
  for (const ReduceOp op : {ReduceOp::kMax, ReduceOp::kMin, ReduceOp::kMean}) {
    const DTensor terms = DTensor::from_local(at::zeros({2, 3}), init_device_mesh(at::kCPU, {4}), {Partial{op}});
    terms.as_tensor().fill_(3);
    EXPECT_TRUE(terms.full_tensor().eq(3).all().item<bool>()) << terms;
  }
  const DTensor sum = DTensor::from_local(at::zeros({2, 3}), init_device_mesh(at::kCPU, {4}), {Partial()});
  EXPECT_THAT([&] { sum.as_tensor().fill_(3); }, RefusesWith<c10::Error>("is not supported yet!"));
}

/// On the CPU it follows its elementwise operators, unless a normalized dimension is in even shards.
SHARD_RANKS_TEST(DTensorOperators, NormalizeByRootMeanSquares) {
  struct Case {
    Sizes shape;
    Placements before, after;
  };
  const Case cases[] = {{{4, 8}, {Partial(), Replicate()}, {Partial(), Replicate()}},
                        {{4, 8}, {CutBy{0}, CutBy{1}}, {CutBy{0}, Replicate()}},
                        {{4, 7}, {CutBy{0}, CutBy{1}}, {CutBy{0}, CutBy{1}}}};
  for (const Case& each : cases) {
    const at::Tensor whole = tensor_of(each.shape == Sizes{4, 8} ? "4x8" : "4x7", 0).requires_grad_();
    const DTensor tensor = placed(whole.detach(), square(), each.before, true);
    const DTensor found = DTensor::of(at::rms_norm(tensor, {each.shape[1]}));
    EXPECT_EQ(to_string(found.placements()), to_string(each.after));
    const at::Tensor expected = at::rms_norm(whole, {each.shape[1]});
    const at::Tensor full = found.full_tensor();
    expect_close(full.detach(), expected.detach(), to_string(each.before));
    (full * tensor_of("30000", 2).slice(0, 0, full.numel()).view_as(full)).sum().backward();
    (expected * tensor_of("30000", 2).slice(0, 0, full.numel()).view_as(full)).sum().backward();
    expect_close(whole_gradient(tensor), whole.grad(), "gradient, " + to_string(each.before));
  }
}

SHARD_RANKS_TEST(DTensorOperators, OfInitFillLocalTensors) {
  const DTensor weight = dtensor::empty({64, 32}, square(), {CutBy{0}, CutBy{1}}, {.requires_grad = true});
  torch::nn::init::constant_(weight, 3);
  EXPECT_TRUE(weight.local().eq(3).all().item<bool>());
  torch::nn::init::zeros_(weight);
  EXPECT_TRUE(weight.local().eq(0).all().item<bool>());
  torch::nn::init::uniform_(weight, 2, 4);
  EXPECT_TRUE(weight.local().ge(2).logical_and(weight.local().le(4)).all().item<bool>());
  EXPECT_GT(weight.local().std().item<double>(), 0.1);
  torch::nn::init::normal_(weight, 100, 1);
  EXPECT_NEAR(weight.local().mean().item<double>(), 100, 1);
  torch::nn::init::kaiming_uniform_(weight);
  EXPECT_LE(weight.local().abs().max().item<double>(), std::sqrt(6.0 / 32)) << "the fan of the whole tensor";
  EXPECT_TRUE(weight.local().is_leaf() && weight.local().requires_grad());
}

SHARD_RANKS_TEST(DTensorOperators, SetTheFlagOfGradientsOnLocalTensors) {
  const DTensor tensor = dtensor::ones({4}, square(), {CutBy{0}, Replicate()});
  at::Tensor handle = tensor;
  at::_ops::requires_grad_::call(handle, true);
  EXPECT_TRUE(tensor.requires_grad());
  EXPECT_FALSE(DTensor::of(tensor.as_tensor().detach()).requires_grad());
}

SHARD_RANKS_TEST(DTensorOperators, FindPaddingAndForeignRowsOfAShardedEmbedding) {
  const at::Tensor whole = numbered({6, 2}).requires_grad_(), indices = at::tensor({0, 5, 3, 3, 1, 2}, at::kLong);
  const DeviceMeshPtr mesh = square();
  const DTensor weight = distribute_tensor(whole, mesh, {CutBy{0}, Replicate()});
  const DTensor found =
      DTensor::of(at::embedding(weight, distribute_tensor(indices, mesh, {Replicate(), CutBy{0}}), /*padding_idx=*/3));
  EXPECT_EQ(to_string(found.placements()), "[P(sum), S(0)]");
  const at::Tensor expected = at::embedding(whole, indices, 3);
  expect_close(found.full_tensor(), expected.detach(), "elements");
  (found.full_tensor() * numbered({6, 2})).sum().backward();
  (expected * numbered({6, 2})).sum().backward();
  expect_close(whole_gradient(weight), whole.grad(), "gradient");
}

SHARD_RANKS_TEST(DTensorOperators, WeighTheLossByTheTargetsThatCount) {
  const DeviceMeshPtr mesh = square();
  const at::Tensor whole = tensor_of("8x4", 0).requires_grad_();
  const at::Tensor targets = at::tensor({-100, -100, 1, -100, 0, 3, 2, -100}, at::kLong);
  const DTensor logits = distribute_tensor(whole, mesh, {CutBy{0}, CutBy{0}});
  const DTensor loss =
      DTensor::of(at::cross_entropy_loss(logits, distribute_tensor(targets, mesh, {CutBy{0}, CutBy{0}})));
  const at::Tensor expected = at::cross_entropy_loss(whole, targets);
  expect_close(loss.full_tensor().detach(), expected.detach(), "loss");
  loss.full_tensor().backward();
  expected.backward();
  expect_close(whole_gradient(logits), whole.grad(), "gradient");
}

/// Parts of 6 rows and of 5 targets on 4 ranks differ in size on rank 2 only.
SHARD_RANKS_TEST(DTensorOperators, RefuseTargetsOfAnotherWholeSizeOnEveryRank) {
  const DeviceMeshPtr mesh = square();
  const DTensor logits = distribute_tensor(tensor_of("6x4", 0), mesh, {CutBy{0}, CutBy{0}});
  const DTensor targets = distribute_tensor(at::zeros({5}, at::kLong), mesh, {CutBy{0}, CutBy{0}});
  for (const auto reduction : {at::Reduction::Mean, at::Reduction::Sum, at::Reduction::None}) {
    EXPECT_THROW(at::nll_loss(logits, targets, {}, reduction), std::exception) << reduction;
  }
}

/// The parameters of a transformer of one block: their shapes, and their placements on a mesh of data and tensor ranks.
struct Parameter {
  std::string shape;
  Placements placements;
};
std::vector<Parameter> transformer_parameters() {
  const Placements rows{Replicate(), CutBy{0}}, columns{Replicate(), CutBy{1}}, whole{Replicate(), Replicate()};
  return {{"16x8", columns}, {"8", whole},      {"8", whole},  {"8x8", rows}, {"8x8", rows},
          {"8x8", rows},     {"8x8", columns},  {"8", whole},  {"8", whole},  {"32x8", rows},
          {"32", rows},      {"8x32", columns}, {"16x8", rows}};
}

/// The loss for 4 sequences of 6 tokens; two heads of attention. On DTensors as on plain tensors.
at::Tensor transformer_loss(const Tensors& w, const at::Tensor& tokens, const at::Tensor& targets) {
  at::Tensor x = at::embedding(w[0], tokens);
  const at::Tensor normed = at::layer_norm(x, {8}, w[1], w[2]);
  const auto heads = [&](std::size_t i) { return at::linear(normed, w[i]).view({4, 6, 2, 4}).transpose(1, 2); };
  const at::Tensor scores = at::matmul(heads(3), heads(4).transpose(2, 3)) / 2;
  const at::Tensor mixed = at::matmul(scores.softmax(-1), heads(5)).transpose(1, 2).reshape({4, 6, 8});
  x = x + at::linear(mixed, w[6]);
  x = x + at::linear(at::gelu(at::linear(at::layer_norm(x, {8}, w[7], w[8]), w[9], w[10])), w[11]);
  return at::cross_entropy_loss(at::linear(x, w[12]).view({24, 16}), targets.view({24}));
}

SHARD_RANKS_TEST(DTensorOperators, TrainATransformerAsOneProcessDoes) {
  const DeviceMeshPtr mesh = square();
  std::vector<at::Tensor> wholes, locals;
  Tensors handles;
  for (const Parameter& each : transformer_parameters()) {
    const at::Tensor whole = tensor_of(each.shape, static_cast<std::int64_t>(wholes.size())) / 4;
    wholes.push_back(whole.clone().requires_grad_());
    const DTensor part = distribute_tensor(whole.clone().requires_grad_(), mesh, each.placements);
    locals.push_back(part.local());
    handles.push_back(part);
  }
  const at::Tensor tokens = at::arange(24).mul(5).remainder(16).view({4, 6}), targets = tokens.add(3).remainder(16);
  const DTensor own_tokens = distribute_tensor(tokens, mesh, {CutBy{0}, Replicate()});
  const DTensor own_targets = distribute_tensor(targets, mesh, {CutBy{0}, Replicate()});
  torch::optim::SGD expected_steps(wholes, 0.1), steps(locals, 0.1);
  double first = 0, last = 0;
  for (int step = 0; step < 4; ++step) {
    const at::Tensor expected = transformer_loss(wholes, tokens, targets);
    const DTensor loss = DTensor::of(transformer_loss(handles, own_tokens, own_targets));
    EXPECT_EQ(to_string(loss.placements()), "[P(avg), R]");
    last = loss.full_tensor().item<double>();
    if (step == 0) first = last;
    EXPECT_NEAR(last, expected.item<double>(), 1e-12) << "step " << step;
    expected_steps.zero_grad();
    steps.zero_grad();
    expected.backward();
    loss.full_tensor().backward();
    expected_steps.step();
    steps.step();
  }
  EXPECT_LT(last, first);
}

}  // namespace
}  // namespace shard::test
