/// \file
/// Linear layers whose weight is sharded over the ranks of a group (Megatron-LM's tensor parallelism).
///
/// A column layer followed by a row layer needs one all_reduce forward and one backward, because the output of the
/// first is sharded like the input of the second. All ranks compute the same loss. If a layer's whole input or output
/// is on all ranks, it is equal on all.
///
/// Weights are ShardedTensor parameters with the names and shapes of torch::nn::Linear, so state dicts and checkpoints
/// are those of the whole layer. Pass local_parameters() (parameters.h) to optimizers. Every function is a collective
/// of the group. So is backward. Each shard's gradient is its part of the whole layer's. Source: Shoeybi and others,
/// Megatron-LM (arXiv 1909.08053), section 3.
#pragma once

#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <ostream>
#include <utility>

#include "shardtorch/parallel/module.h"
#include "shardtorch/sharded_tensor/process_group.h"

namespace shard::parallel {

/// A linear layer whose weight is sharded.
/// \tparam Self  the layer: ColumnLinearImpl or RowLinearImpl.
template <class Self>
class CutLinear : public Layer<Self> {
 public:
  /// Shards the elements of `whole` on group rank 0, which does not change. `group` null: the default group.
  /// \param is_whole  `gather_output` of a column layer, `split_input` of a row layer: these features are whole on all
  ///   ranks.
  /// \throws c10::ValueError  this process is not a member; shapes differ between ranks
  explicit CutLinear(const torch::nn::LinearImpl& whole, bool is_whole = false, ProcessGroupPtr group = nullptr,
                     const ParameterOptions& parameters = {});
  /// Creates new elements, which rank 0 draws as torch::nn::Linear does, on the CPU in the default dtype. Then they are
  /// converted, sharded and moved. Memory: temporarily the whole weight on the CPU.
  explicit CutLinear(const torch::nn::LinearOptions& options, bool is_whole = false, ProcessGroupPtr group = nullptr,
                     const ParameterOptions& parameters = {})
      : CutLinear(torch::nn::LinearImpl(options), is_whole, std::move(group), parameters) {}
  CutLinear(std::int64_t in_features, std::int64_t out_features)
      : CutLinear(torch::nn::LinearOptions(in_features, out_features)) {}

  at::Tensor weight;  ///< [out_features, in_features], sharded.
  at::Tensor bias;    ///< [out_features]; undefined without.

  void pretty_print(std::ostream& stream) const override;

 protected:
  void bind_parameters() override;

  ProcessGroupPtr group_;
  bool is_whole_;
};

/// Output features are sharded: rank i has the i-th chunk of the weight's rows and of the bias.
class ColumnLinearImpl : public CutLinear<ColumnLinearImpl> {
 public:
  using CutLinear::CutLinear;

  /// \param input  [..., in_features], the same on all ranks
  /// \returns  [..., this rank's output features], or [..., out_features] on all ranks.
  at::Tensor forward(const at::Tensor& input);
};
TORCH_MODULE(ColumnLinear);

/// Input features are sharded: rank i has the i-th chunk of the weight's columns. The bias is whole on all ranks.
class RowLinearImpl : public CutLinear<RowLinearImpl> {
 public:
  using CutLinear::CutLinear;

  /// \param input  [..., this rank's input features], or [..., in_features] on all ranks.
  /// \returns  [..., out_features], the same on all ranks.
  at::Tensor forward(const at::Tensor& input);
};
TORCH_MODULE(RowLinear);

}  // namespace shard::parallel
