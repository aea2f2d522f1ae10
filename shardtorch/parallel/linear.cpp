#include "shardtorch/parallel/linear.h"

#include <ATen/ATen.h>

#include <utility>

#include "shardtorch/parallel/layer.h"
#include "shardtorch/sharded_tensor/functional.h"

namespace shard::parallel {

namespace {

void print_linear(std::ostream& stream, const char* name, const at::Tensor& weight, bool has_bias) {
  print_start(stream, name, weight, "out_features", "in_features");
  stream << ", bias=" << (has_bias ? "true" : "false") << ')';
}

}  // namespace

ColumnLinearImpl::ColumnLinearImpl(const torch::nn::LinearImpl& whole, bool gather_output, ProcessGroupPtr group,
                                   const ParameterOptions& parameters)
    : group_(group_or_default(std::move(group))), gather_output_(gather_output) {
  weight = register_parameter("weight", cut_parameter(whole.weight, 0, group_, parameters));
  bias = whole.bias.defined() ? cut_parameter(whole.bias, 0, group_, parameters) : at::Tensor();
  register_parameter("bias", bias, bias.defined());
}

ColumnLinearImpl::ColumnLinearImpl(const torch::nn::LinearOptions& options, bool gather_output, ProcessGroupPtr group,
                                   const ParameterOptions& parameters)
    : ColumnLinearImpl(torch::nn::LinearImpl(options), gather_output, std::move(group), parameters) {}

void ColumnLinearImpl::bind_parameters() {
  weight = parameters_["weight"];
  bias = parameters_["bias"];
}

void ColumnLinearImpl::pretty_print(std::ostream& stream) const {
  print_linear(stream, "ColumnLinear", weight, bias.defined());
}

at::Tensor ColumnLinearImpl::forward(const at::Tensor& input) {
  const at::Tensor output = at::linear(functional::replicated(input, group_), local_of(weight),
                                       bias.defined() ? local_of(bias) : at::Tensor());
  return gather_output_ ? gather_last(output, weight.size(0), group_) : output;
}

RowLinearImpl::RowLinearImpl(const torch::nn::LinearImpl& whole, bool split_input, ProcessGroupPtr group,
                             const ParameterOptions& parameters)
    : group_(group_or_default(std::move(group))), split_input_(split_input) {
  weight = register_parameter("weight", cut_parameter(whole.weight, 1, group_, parameters));
  bias = whole.bias.defined() ? same_parameter(whole.bias, group_, parameters) : at::Tensor();
  register_parameter("bias", bias, bias.defined());
}

RowLinearImpl::RowLinearImpl(const torch::nn::LinearOptions& options, bool split_input, ProcessGroupPtr group,
                             const ParameterOptions& parameters)
    : RowLinearImpl(torch::nn::LinearImpl(options), split_input, std::move(group), parameters) {}

void RowLinearImpl::bind_parameters() {
  weight = parameters_["weight"];
  bias = parameters_["bias"];
}

void RowLinearImpl::pretty_print(std::ostream& stream) const {
  print_linear(stream, "RowLinear", weight, bias.defined());
}

at::Tensor RowLinearImpl::forward(const at::Tensor& input) {
  const at::Tensor own = split_input_ ? split_last(input, group_) : input;
  const at::Tensor sum =
      functional::all_reduce(at::linear(own, local_of(weight)), functional::Losses::kReplicated, group_);
  return bias.defined() ? sum + bias : sum;
}

}  // namespace shard::parallel
