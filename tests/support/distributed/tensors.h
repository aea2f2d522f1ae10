/// \file
/// Tensors in tests: comparing them, and inputs that several tests share.
///
/// Source: torch/testing/_internal/{common_utils,common_distributed}.py (torch 2.11).
#pragma once

#include <ATen/ATen.h>
#include <c10/util/Logging.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace shard::test {

/// Values are compared, not devices: both are moved to the CPU. Sizes and dtypes must be equal. Tolerances (relative,
/// absolute): float 1.3e-6, 1e-5; double 1e-7, 1e-7; half 1e-3, 1e-5; bfloat16 1.6e-2, 1e-5; complex as their parts;
/// integers and bool exact. NaN equals NaN. Use: EXPECT_TRUE(tensors_equal(a, b)).
::testing::AssertionResult tensors_equal(const at::Tensor& actual, const at::Tensor& expected);

/// Inputs of one rank and their expected sum over all ranks: pairs of tensor lists, for 1, 2, 3 sparse dimensions with
/// no dense one, then for 1, 2, 3 dense ones with one sparse.
using SparseReduceTest = std::pair<std::vector<at::Tensor>, std::vector<at::Tensor>>;
std::vector<SparseReduceTest> simple_sparse_reduce_tests(int rank, int world_size, int num_inputs = 1);

/// Inputs that modules saw, by module.
using ForwardInputs = std::map<const torch::nn::Module*, at::Tensor>;

/// Linear(100, 100) that records its input. `inputs` must outlive it.
class SaveForwardInputsModule : public torch::nn::Module {
 public:
  SaveForwardInputsModule(ForwardInputs& inputs, bool cast_forward_inputs);
  at::Tensor forward(const at::Tensor& x);

 private:
  torch::nn::Linear layer_;
  ForwardInputs& inputs_;
  bool cast_forward_inputs_;
};

/// Two of those, one after the other: c1, c2.
class SaveForwardInputsModel : public torch::nn::Module {
 public:
  SaveForwardInputsModel(ForwardInputs& inputs, bool cast_forward_inputs);
  at::Tensor forward(const at::Tensor& x);

  std::shared_ptr<SaveForwardInputsModule> c1, c2;

 private:
  ForwardInputs& inputs_;
};

/// The record of a logger of distributed training must contain "iteration", "has_error" and, in "error", the first line
/// of `expected` (up to "\nException raised from "): c10d's Logger (get_ddp_logging_data), or any map.
::testing::AssertionResult verify_ddp_error_logged(const std::map<std::string, std::string>& logged,
                                                   const std::string& expected);
::testing::AssertionResult verify_ddp_error_logged(const c10::DDPLoggingData& logged, const std::string& expected);

}  // namespace shard::test
