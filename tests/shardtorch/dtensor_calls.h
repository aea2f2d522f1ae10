/// \file
/// The calls of tests/data/dtensor/make.py by name, for the test that replays them.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace shard::test {

using Tensors = std::vector<at::Tensor>;
using OperatorCallOfTest = std::function<at::Tensor(const Tensors&)>;

/// Calls that change their first tensor end in "_in_place".
inline const std::map<std::string, OperatorCallOfTest>& calls_of_operators() {
  using T = const Tensors&;
  static const std::map<std::string, OperatorCallOfTest> calls{
      {"relu", [](T x) { return at::relu(x[0]); }},
      {"exp", [](T x) { return at::exp(x[0]); }},
      {"gelu", [](T x) { return at::gelu(x[0]); }},
      {"tanh", [](T x) { return at::tanh(x[0]); }},
      {"sigmoid", [](T x) { return at::sigmoid(x[0]); }},
      {"silu", [](T x) { return at::silu(x[0]); }},
      {"neg", [](T x) { return -x[0]; }},
      {"mul_scalar", [](T x) { return at::_ops::mul_Scalar::call(x[0], 2); }},
      {"div_scalar", [](T x) { return at::_ops::div_Scalar::call(x[0], 2); }},
      {"add_scalar", [](T x) { return at::_ops::add_Scalar::call(x[0], 1, 1); }},
      {"pow_scalar", [](T x) { return at::pow(x[0], 2); }},
      {"clone", [](T x) { return x[0].clone(); }},
      {"detach", [](T x) { return x[0].detach(); }},
      {"to_float", [](T x) { return x[0].to(at::kFloat); }},
      {"zeros_like", [](T x) { return at::zeros_like(x[0]); }},
      {"ones_like", [](T x) { return at::ones_like(x[0]); }},
      {"full_like", [](T x) { return at::full_like(x[0], 3); }},
      {"new_zeros_same", [](T x) { return x[0].new_zeros(x[0].sizes()); }},
      {"new_ones_other",
       [](T x) {
         return x[0].new_ones({4, 2});
       }},
      {"mul_in_place", [](T x) { return x[0].mul_(2); }},
      {"relu_in_place", [](T x) { return x[0].relu_(); }},
      {"zero_in_place", [](T x) { return x[0].zero_(); }},
      {"add_in_place", [](T x) { return x[0].add_(x[1]); }},
      {"sum", [](T x) { return x[0].sum(); }},
      {"sum_0", [](T x) { return x[0].sum(0); }},
      {"sum_1_kept", [](T x) { return x[0].sum(1, true); }},
      {"sum_of_two",
       [](T x) {
         return x[0].sum(at::IntArrayRef({0, 2}));
       }},
      {"mean", [](T x) { return x[0].mean(); }},
      {"mean_0", [](T x) { return x[0].mean(0); }},
      {"mean_1", [](T x) { return x[0].mean(-1); }},
      {"mean_of_two",
       [](T x) {
         return x[0].mean(at::IntArrayRef({1, 2}));
       }},
      {"max", [](T x) { return x[0].max(); }},
      {"min", [](T x) { return x[0].min(); }},
      {"amax_1", [](T x) { return x[0].amax(1); }},
      {"amin_0", [](T x) { return x[0].amin(0); }},
      {"var_1", [](T x) { return at::var(x[0], at::OptionalIntArrayRef(1), at::Scalar(1)); }},
      {"std", [](T x) { return x[0].std(); }},
      {"logsumexp_1", [](T x) { return x[0].logsumexp(1); }},
      {"cumsum_1", [](T x) { return x[0].cumsum(1); }},
      {"softmax_1", [](T x) { return x[0].softmax(1); }},
      {"softmax_2", [](T x) { return x[0].softmax(-1); }},
      {"log_softmax_0", [](T x) { return x[0].log_softmax(0); }},
      {"t", [](T x) { return x[0].t(); }},
      {"transpose", [](T x) { return x[0].transpose(0, 1); }},
      {"transpose_last", [](T x) { return x[0].transpose(1, 2); }},
      {"permute",
       [](T x) {
         return x[0].permute({1, 0});
       }},
      {"permute_last",
       [](T x) {
         return x[0].permute({2, 0, 1});
       }},
      {"unsqueeze_0", [](T x) { return x[0].unsqueeze(0); }},
      {"unsqueeze_1", [](T x) { return x[0].unsqueeze(1); }},
      {"unsqueeze_2", [](T x) { return x[0].unsqueeze(-1); }},
      {"squeeze", [](T x) { return x[0].squeeze(); }},
      {"squeeze_1", [](T x) { return x[0].squeeze(1); }},
      {"select_0", [](T x) { return x[0].select(0, 1); }},
      {"select_1", [](T x) { return x[0].select(1, 1); }},
      {"slice_1", [](T x) { return x[0].slice(1, 1, 3); }},
      {"slice_all", [](T x) { return x[0].slice(0, 0); }},
      {"narrow_0", [](T x) { return x[0].narrow(0, 1, 2); }},
      {"split_1", [](T x) { return x[0].split(4, 1)[0]; }},
      {"chunk_0", [](T x) { return x[0].chunk(2, 0)[1]; }},
      {"unbind_0", [](T x) { return x[0].unbind(0)[0]; }},
      {"expand",
       [](T x) {
         return x[0].expand({3, x[0].size(0), x[0].size(1)});
       }},
      {"expand_1",
       [](T x) {
         return x[0].expand({4, 3, 8});
       }},
      {"triple",
       [](T x) {
         return at::cat({x[0], x[0], x[0]}, 1);
       }},
      {"view_flat", [](T x) { return x[0].view(-1); }},
      {"view_8_8",
       [](T x) {
         return x[0].view({8, 8});
       }},
      {"view_4_16",
       [](T x) {
         return x[0].view({4, 16});
       }},
      {"view_4_2_2_4",
       [](T x) {
         return x[0].view({4, 2, 2, 4});
       }},
      {"view_2_2_2_8",
       [](T x) {
         return x[0].view({2, 2, 2, 8});
       }},
      {"view_4_1_2_8",
       [](T x) {
         return x[0].view({4, 1, 2, 8});
       }},
      {"reshape_8_8",
       [](T x) {
         return x[0].reshape({8, 8});
       }},
      {"flatten_0", [](T x) { return x[0].flatten(0, 1); }},
      {"add", [](T x) { return at::add(x[0], x[1]); }},
      {"sub", [](T x) { return at::sub(x[0], x[1]); }},
      {"mul", [](T x) { return at::mul(x[0], x[1]); }},
      {"div", [](T x) { return at::div(x[0], x[1]); }},
      {"maximum", [](T x) { return at::maximum(x[0], x[1]); }},
      {"eq", [](T x) { return at::eq(x[0], x[1]); }},
      {"atan2", [](T x) { return at::atan2(x[0], x[1]); }},
      {"where", [](T x) { return at::where(x[0].gt(x[1]), x[0], x[1]); }},
      {"masked_fill", [](T x) { return x[0].masked_fill(x[1].eq(1), 3.0); }},
      {"cat_0",
       [](T x) {
         return at::cat({x[0], x[1]}, 0);
       }},
      {"cat_1",
       [](T x) {
         return at::cat({x[0], x[1]}, 1);
       }},
      {"stack_0",
       [](T x) {
         return at::stack({x[0], x[1]}, 0);
       }},
      {"mm", [](T x) { return at::mm(x[0], x[1]); }},
      {"mm_t", [](T x) { return at::mm(x[0], x[1].t()); }},
      {"matmul", [](T x) { return at::matmul(x[0], x[1]); }},
      {"bmm", [](T x) { return at::bmm(x[0], x[1]); }},
      {"addmm", [](T x) { return at::addmm(x[0], x[1], x[2]); }},
      {"baddbmm", [](T x) { return at::baddbmm(x[0], x[1], x[2]); }},
      {"linear", [](T x) { return x.size() > 2 ? at::linear(x[0], x[1], x[2]) : at::linear(x[0], x[1]); }},
      {"embedding", [](T x) { return at::embedding(x[0], x[1]); }},
      {"layer_norm", [](T x) { return at::layer_norm(x[0], {8}, x[1], x[2]); }},
      {"layer_norm_plain", [](T x) { return at::layer_norm(x[0], {8}); }},
      {"cross_entropy", [](T x) { return at::cross_entropy_loss(x[0], x[1]); }},
      {"cross_entropy_sum", [](T x) { return at::cross_entropy_loss(x[0], x[1], {}, at::Reduction::Sum); }},
      {"cross_entropy_none", [](T x) { return at::cross_entropy_loss(x[0], x[1], {}, at::Reduction::None); }},
  };
  return calls;
}

}  // namespace shard::test
