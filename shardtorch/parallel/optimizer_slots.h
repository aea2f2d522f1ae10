/// \file
/// States and options of torch::optim's Adam, AdamW and SGD, by Python's names. Inside shardtorch/parallel only.
#pragma once

#include <ATen/core/ivalue.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <vector>

namespace shard::parallel {

struct Slot {
  const char* name;    ///< "exp_avg"
  at::Tensor* tensor;  ///< Defined.
};
/// A state's members. Ownership: they are part of the state.
struct Slots {
  std::int64_t* step = nullptr;  ///< Null if the class counts none.
  std::vector<Slot> tensors;
};
/// \throws c10::ValueError  a state of a different class.
Slots slots_of(torch::optim::OptimizerParamState& state);

/// A state before the first step; null if that class and those options have none. \throws c10::ValueError
std::unique_ptr<torch::optim::OptimizerParamState> zero_state(const torch::optim::OptimizerOptions& options,
                                                              const at::Tensor& parameter);

/// Without "params". Options that only Python has are included with their defaults. \throws c10::ValueError
c10::impl::GenericDict dict_of_options(const torch::optim::OptimizerOptions& options);
/// A copy of `options` with the values of `dict`. \throws c10::ValueError  a different class; not a number.
std::unique_ptr<torch::optim::OptimizerOptions> options_of(const torch::optim::OptimizerOptions& options,
                                                           const c10::impl::GenericDict& dict);

/// An int, a double or a tensor of one element. \throws c10::ValueError  any other value.
double number(const c10::IValue& value);

}  // namespace shard::parallel
