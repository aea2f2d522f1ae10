#include "shardtorch/parallel/linear.h"

#include <ATen/ATen.h>

#include <type_traits>

#include "shardtorch/parallel/layer.h"
#include "shardtorch/sharded_tensor/functional.h"

namespace shard::parallel {

template <class Self>
CutLinear<Self>::CutLinear(const torch::nn::LinearImpl& whole, bool is_whole, ProcessGroupPtr group,
                           const ParameterOptions& parameters)
    : group_(group_or_default(std::move(group))), is_whole_(is_whole) {
  constexpr bool kColumn = std::is_same_v<Self, ColumnLinearImpl>;
  weight = this->register_parameter("weight", cut_parameter(whole.weight, kColumn ? 0 : 1, group_, parameters));
  if (whole.bias.defined()) {
    bias = kColumn ? cut_parameter(whole.bias, 0, group_, parameters) : same_parameter(whole.bias, group_, parameters);
  }
  this->register_parameter("bias", bias, bias.defined());
}

template <class Self>
void CutLinear<Self>::bind_parameters() {
  weight = this->parameters_["weight"];
  bias = this->parameters_["bias"];
}

template <class Self>
void CutLinear<Self>::pretty_print(std::ostream& stream) const {
  const bool is_column = std::is_same_v<Self, ColumnLinearImpl>;
  print_start(stream, is_column ? "ColumnLinear" : "RowLinear", weight, "out_features", "in_features");
  stream << ", bias=" << (bias.defined() ? "true" : "false") << ')';
}

template class CutLinear<ColumnLinearImpl>;
template class CutLinear<RowLinearImpl>;

at::Tensor ColumnLinearImpl::forward(const at::Tensor& input) {
  const at::Tensor output = at::linear(functional::replicated(input, group_), local_of(weight),
                                       bias.defined() ? local_of(bias) : at::Tensor());
  return is_whole_ ? gather_last(output, weight.size(0), group_) : output;
}

at::Tensor RowLinearImpl::forward(const at::Tensor& input) {
  const at::Tensor own = is_whole_ ? split_last(input, group_) : input;
  const at::Tensor sum =
      functional::all_reduce(at::linear(own, local_of(weight)), functional::Losses::kReplicated, group_);
  return bias.defined() ? sum + bias : sum;
}

}  // namespace shard::parallel
