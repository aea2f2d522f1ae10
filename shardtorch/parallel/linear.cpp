#include "shardtorch/parallel/linear.h"

#include <ATen/ATen.h>

#include <utility>

#include "shardtorch/parallel/layer.h"
#include "shardtorch/sharded_tensor/functional.h"

namespace shard::parallel {

ColumnLinearImpl::ColumnLinearImpl(const torch::nn::LinearImpl& whole, bool gather_output, ProcessGroupPtr group)
    : group_(group_or_default(std::move(group))), gather_output_(gather_output) {
  weight = register_parameter("weight", cut_parameter(whole.weight, 0, group_));
  bias = whole.bias.defined() ? cut_parameter(whole.bias, 0, group_) : at::Tensor();
  register_parameter("bias", bias, bias.defined());
}

ColumnLinearImpl::ColumnLinearImpl(const torch::nn::LinearOptions& options, bool gather_output, ProcessGroupPtr group)
    : ColumnLinearImpl(torch::nn::LinearImpl(options), gather_output, std::move(group)) {}

at::Tensor ColumnLinearImpl::forward(const at::Tensor& input) {
  const at::Tensor output = at::linear(functional::replicated(input, group_), local_of(weight),
                                       bias.defined() ? local_of(bias) : at::Tensor());
  return gather_output_ ? gather_last(output, weight.size(0), group_) : output;
}

RowLinearImpl::RowLinearImpl(const torch::nn::LinearImpl& whole, bool split_input, ProcessGroupPtr group)
    : group_(group_or_default(std::move(group))), split_input_(split_input) {
  weight = register_parameter("weight", cut_parameter(whole.weight, 1, group_));
  bias = whole.bias.defined() ? same_parameter(whole.bias, group_) : at::Tensor();
  register_parameter("bias", bias, bias.defined());
}

RowLinearImpl::RowLinearImpl(const torch::nn::LinearOptions& options, bool split_input, ProcessGroupPtr group)
    : RowLinearImpl(torch::nn::LinearImpl(options), split_input, std::move(group)) {}

at::Tensor RowLinearImpl::forward(const at::Tensor& input) {
  const at::Tensor own = split_input_ ? split_last(input, group_) : input;
  const at::Tensor sum =
      functional::all_reduce(at::linear(own, local_of(weight)), functional::Losses::kReplicated, group_);
  return bias.defined() ? sum + bias : sum;
}

}  // namespace shard::parallel
