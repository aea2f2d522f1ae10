// Gradients through DTensors are those of one process with the whole tensor.
#include <torch/csrc/autograd/autograd.h>

#include "tests/shardtorch/dtensor_fixture.h"

namespace shard::test {
namespace {

using dtensor::DeviceMeshPtr;
using dtensor::distribute_tensor;
using dtensor::init_device_mesh;

class DTensorGradients : public MultiThreadedTestCase {
 protected:
  DeviceMeshPtr line() const { return init_device_mesh(at::kCPU, {world_size()}); }
  DeviceMeshPtr square() const { return init_device_mesh(at::kCPU, {2, 2}); }
};

SHARD_RANKS_TEST(DTensorGradients, ThroughAnyRedistribution) {
  RandomCases random(30);
  for (int i = 0; i < 30; ++i) {
    const Sizes shape = random.shape();
    const DeviceMeshPtr mesh = i % 2 == 0 ? line() : square();
    const Placements before = random.placements(mesh->ndim(), shape.size());
    const Placements after = random.placements(mesh->ndim(), shape.size());
    const at::Tensor whole = numbered(shape).requires_grad_();
    const at::Tensor factors = numbered(shape).add(3);  // The placements of the differentiated sum.
    const DTensor tensor = distribute_tensor(whole, mesh, before);
    const at::Tensor moved = tensor.redistribute(after).local();
    // Each rank's share of the sum: replicas have the whole gradient each, as in Python.
    (moved * obvious_part(factors, mesh->shape(), after, *mesh->index())).sum().backward();
    const at::Tensor expected = obvious_part(factors, mesh->shape(), before, *mesh->index());
    EXPECT_TRUE(tensor.local().grad().equal(expected)) << to_string(before) << " to " << to_string(after);
  }
}

SHARD_RANKS_TEST(DTensorGradients, MoveAsTheDtypeThatIsAskedForAndComeBackAsTheTensors) {
  const at::Tensor whole = (numbered({8, 2}) / 3).requires_grad_();
  const DTensor tensor = distribute_tensor(whole, line(), {CutBy{0}});
  const DTensor moved = tensor.redistribute({CutBy{1}}, {.forward_dtype = at::kFloat, .backward_dtype = at::kHalf});
  EXPECT_EQ(moved.dtype(), at::kFloat);
  const at::Tensor own = obvious_part(whole.detach(), {4}, {CutBy{1}}, rank());
  EXPECT_TRUE(moved.local().equal(own.to(at::kFloat)));
  (moved.local() * own.to(at::kFloat)).sum().backward();
  const at::Tensor expected = obvious_part(whole.detach(), {4}, {CutBy{0}}, rank()).to(at::kFloat);
  EXPECT_TRUE(tensor.local().grad().equal(expected.to(at::kHalf).to(at::kDouble)));
}

SHARD_RANKS_TEST(DTensorGradients, MoveAsTheTensorsDtypeUnlessAnotherIsAskedFor) {
  const DTensor tensor = distribute_tensor(numbered({8}).requires_grad_(), line(), {CutBy{0}});
  const DTensor converted = tensor.redistribute({CutBy{0}}, {.forward_dtype = at::kHalf});
  EXPECT_EQ(converted.dtype(), at::kHalf) << "also where nothing moves";
  EXPECT_EQ(converted.placements(), tensor.placements());
  EXPECT_TRUE(tensor.redistribute({CutBy{0}}, {.forward_dtype = at::kDouble}).is_same(tensor));
  converted.local().sum().backward();
  EXPECT_EQ(tensor.local().grad().scalar_type(), at::kDouble);
  EXPECT_TRUE(tensor.local().grad().eq(1).all().item<bool>());
}

SHARD_RANKS_TEST(DTensorGradients, OfAFullTensorAreCutLikeTheTensor) {
  const at::Tensor whole = numbered({6, 3}).requires_grad_();
  const DTensor tensor = distribute_tensor(whole, line(), {CutBy{0}});
  const at::Tensor full = tensor.full_tensor();
  (full * full).sum().backward();
  EXPECT_TRUE(tensor.local().grad().equal(tensor.local().detach() * 2));
}

SHARD_RANKS_TEST(DTensorGradients, TermsOfReplicasAreSummed) {
  const DTensor weight = distribute_tensor(at::ones({3}, at::kDouble).requires_grad_(), line(), {Replicate()});
  // Each rank uses the weight for different inputs.
  (weight.to_local(Placements{Partial()}) * static_cast<double>(rank() + 1)).sum().backward();
  EXPECT_TRUE(weight.local().grad().eq(10).all().item<bool>());
  const DTensor shard = distribute_tensor(at::ones({8}, at::kDouble).requires_grad_(), line(), {CutBy{0}});
  (shard.full_tensor(Placements{Partial()}) * static_cast<double>(rank() + 1)).sum().backward();
  EXPECT_TRUE(shard.local().grad().equal(at::full({2}, 10, at::kDouble)));
}

SHARD_RANKS_TEST(DTensorGradients, OfTermsAreThoseOfTheirSum) {
  const at::Tensor local = at::full({4, 2}, static_cast<double>(rank()), at::kDouble).requires_grad_();
  const DTensor terms = DTensor::from_local(local, line(), {Partial()});
  const at::Tensor sum = terms.full_tensor();
  EXPECT_TRUE(sum.eq(6).all().item<bool>());
  (sum * numbered({4, 2})).sum().backward();
  EXPECT_TRUE(local.grad().equal(numbered({4, 2})));
  local.mutable_grad() = at::Tensor();
  const DTensor shards = terms.redistribute({CutBy{0}});
  (shards.local() * static_cast<double>(rank() + 1)).sum().backward();
  EXPECT_TRUE(local.grad().equal(at::tensor({1., 2., 3., 4.}).to(at::kDouble).view({4, 1}).expand({4, 2})));
}

/// Each rank's term has the gradient of the element, even if a different term is the maximum, as in torch 2.11.
SHARD_RANKS_TEST(DTensorGradients, OfMaximaMinimaAndProductsAreThoseOfTheElement) {
  for (const ReduceOp op : {ReduceOp::kMax, ReduceOp::kMin, ReduceOp::kProduct}) {
    for (const dtensor::Placement& target : {dtensor::Placement(Replicate()), dtensor::Placement(CutBy{0})}) {
      const at::Tensor local = at::full({4, 2}, static_cast<double>(rank() + 1), at::kDouble).requires_grad_();
      const DTensor terms = DTensor::from_local(local, line(), {Partial{op}});
      const DTensor moved = DTensor::of(at::clone(terms)).redistribute({target});
      const double value = op == ReduceOp::kMax ? 4 : op == ReduceOp::kMin ? 1 : 24;
      EXPECT_TRUE(moved.local().eq(value).all().item<bool>()) << moved;
      const at::Tensor factors = numbered({4, 2}).add(1);
      (moved.local() * obvious_part(factors, {4}, {target}, rank())).sum().backward();
      EXPECT_TRUE(local.grad().equal(factors)) << moved;
    }
  }
}

SHARD_RANKS_TEST(DTensorGradients, AreDifferentiableThemselves) {
  const at::Tensor whole = numbered({4}).requires_grad_();
  const DTensor tensor = distribute_tensor(whole, line(), {CutBy{0}});
  const at::Tensor full = tensor.full_tensor();
  const at::Tensor cubes = (full * full * full).sum();
  const auto first = torch::autograd::grad({cubes}, {tensor.local()}, {}, std::nullopt, /*create_graph=*/true);
  const auto second = torch::autograd::grad({first[0].sum()}, {tensor.local()});
  EXPECT_TRUE(first[0].equal(tensor.local() * tensor.local() * 3));
  EXPECT_TRUE(second[0].equal(tensor.local() * 6));
}

/// A linear layer sharded by columns, then one by rows, as in tensor parallelism: output and gradients are the same as
/// in one process.
SHARD_RANKS_TEST(DTensorGradients, OfTwoLinearLayersAreThoseOfOneProcess) {
  const at::Tensor input = numbered({5, 6}) / 30;
  const at::Tensor up = (numbered({8, 6}) / 48).requires_grad_(), down = (numbered({3, 8}) / 24).requires_grad_();
  const at::Tensor expected = at::linear(at::relu(at::linear(input, up)), down);
  expected.pow(2).sum().backward();

  const DeviceMeshPtr mesh = line();
  const DTensor up_part = distribute_tensor(up.detach().clone().requires_grad_(), mesh, {CutBy{0}});
  const DTensor down_part = distribute_tensor(down.detach().clone().requires_grad_(), mesh, {CutBy{1}});
  const DTensor whole_input = distribute_tensor(input.clone().requires_grad_(), mesh, {Replicate()});
  const at::Tensor hidden = at::relu(at::linear(whole_input.to_local(Placements{Partial()}), up_part.local()));
  const DTensor terms = DTensor::from_local(at::linear(hidden, down_part.local()), mesh, {Partial()});
  const at::Tensor output = terms.redistribute({Replicate()}).local();
  EXPECT_TRUE(at::allclose(output, expected, 1e-12, 1e-12));
  output.pow(2).sum().backward();
  EXPECT_TRUE(at::allclose(up_part.local().grad(), up.grad().chunk(4, 0)[static_cast<std::size_t>(rank())], 1e-12));
  EXPECT_TRUE(at::allclose(down_part.local().grad(), down.grad().chunk(4, 1)[static_cast<std::size_t>(rank())], 1e-12));
  EXPECT_TRUE(whole_input.local().grad().defined());
}

}  // namespace
}  // namespace shard::test
