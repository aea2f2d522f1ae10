/// \file
/// Common code of the tests of shardtorch/parallel: modules of known elements, and comparisons with the whole module.
/// Bodies are SPMD: they run on ranks that are threads, and on processes over Gloo.
#pragma once

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>

#include <string>

#include "shardtorch/parallel/parameters.h"
#include "tests/shardtorch/checkpoint_fixture.h"

namespace shard::test {

/// Numbers that depend only on the seed, on any thread.
class Numbers {
 public:
  explicit Numbers(std::uint64_t seed) : generator_(at::make_generator<at::CPUGeneratorImpl>(seed)) {}
  at::Tensor normal(at::IntArrayRef shape) { return at::randn(shape, generator_, at::TensorOptions(at::kDouble)); }
  at::Tensor leaf(at::IntArrayRef shape) { return normal(shape).requires_grad_(); }
  at::Tensor below(std::int64_t end, at::IntArrayRef shape) { return at::randint(end, shape, generator_, at::kLong); }

 private:
  at::Generator generator_;
};

inline at::Tensor whole_numbers(at::IntArrayRef shape, std::initializer_list<std::int64_t> values) {
  return at::tensor(at::ArrayRef<std::int64_t>(values), at::kLong).view(shape);
}

/// The module in float64, with elements from `numbers`.
template <class Module>
Module filled(Module module, Numbers& numbers) {
  module->to(at::kDouble);
  const at::NoGradGuard no_grad;
  for (at::Tensor& parameter : module->parameters()) parameter.copy_(numbers.normal(parameter.sizes()));
  return module;
}

inline void expect_close(const at::Tensor& found, const at::Tensor& expected, const std::string& what) {
  ASSERT_TRUE(found.defined() && expected.defined()) << what;
  ASSERT_EQ(found.sizes(), expected.sizes()) << what;
  EXPECT_TRUE(at::allclose(found, expected, 1e-10, 1e-12)) << what << "\n" << found << "\n" << expected;
}

/// The part of `whole` that is a local parameter's.
inline at::Tensor part_of(const at::Tensor& whole, const parallel::LocalParameter& local) {
  if (!local.sharded.defined()) return whole;
  return narrow_tensor(whole, local.sharded.local_shards()[local.local_shard].metadata);
}

/// Every local parameter of `module` and its gradient are those of the parameter of the same name of `whole`.
inline void expect_same_parameters(const torch::nn::Module& module, const torch::nn::Module& whole, bool gradients) {
  const auto expected = whole.named_parameters();
  for (const parallel::LocalParameter& local : parallel::named_local_parameters(module)) {
    const at::Tensor& parameter = expected[local.name];
    expect_close(local.tensor.detach(), part_of(parameter.detach(), local), local.name);
    if (gradients) expect_close(local.tensor.grad(), part_of(parameter.grad(), local), local.name + ".grad");
  }
}

/// A number that depends on every element in a different way.
inline at::Tensor loss_of(const at::Tensor& output) {
  const at::Tensor weights = at::linspace(0.5, 2, output.numel(), output.options()).view(output.sizes());
  return (output * output * weights + output.sin()).sum();
}

}  // namespace shard::test
