/// \file
/// Linear layers whose weight is sharded over the ranks of a group (Megatron-LM's tensor parallelism).
///
/// A column layer followed by a row layer needs one all_reduce forward and one backward, because the output of the
/// first is sharded like the input of the second. All ranks compute the same loss. If a layer's whole input or output
/// is on all ranks, it is equal on all.
///
/// Weights are ShardedTensor parameters with the names and shapes of torch::nn::Linear, so state dicts and checkpoints
/// are those of the whole layer. Pass local_parameters() (parameters.h) to optimizers. Every function is a collective
/// of the group; so is backward. Each shard's gradient is its part of the whole layer's. Source: Shoeybi and others,
/// Megatron-LM (arXiv 1909.08053), section 3.
#pragma once

#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <ostream>

#include "shardtorch/parallel/module.h"
#include "shardtorch/sharded_tensor/process_group.h"

namespace shard::parallel {

/// Output features are sharded: rank i has the i-th chunk of the weight's rows and of the bias.
class ColumnLinearImpl : public Layer<ColumnLinearImpl> {
 public:
  /// Shards the elements of `whole` on group rank 0, which does not change. `group` null: the default group.
  /// \throws c10::ValueError  this process is not a member; shapes differ between ranks
  explicit ColumnLinearImpl(const torch::nn::LinearImpl& whole, bool gather_output = false,
                            ProcessGroupPtr group = nullptr, const ParameterOptions& parameters = {});
  /// Creates new elements, which rank 0 draws as torch::nn::Linear does, on the CPU in the default dtype; then they are
  /// converted, sharded and moved. Memory: temporarily the whole weight on the CPU.
  explicit ColumnLinearImpl(const torch::nn::LinearOptions& options, bool gather_output = false,
                            ProcessGroupPtr group = nullptr, const ParameterOptions& parameters = {});
  ColumnLinearImpl(std::int64_t in_features, std::int64_t out_features)
      : ColumnLinearImpl(torch::nn::LinearOptions(in_features, out_features)) {}

  /// \param input  [..., in_features], the same on all ranks
  /// \returns  [..., this rank's output features], with gather_output [..., out_features] on all ranks.
  at::Tensor forward(const at::Tensor& input);

  at::Tensor weight;  ///< [out_features, in_features], sharded along 0.
  at::Tensor bias;    ///< [out_features], sharded; undefined without.

  void pretty_print(std::ostream& stream) const override;

 private:
  void bind_parameters() override;

  ProcessGroupPtr group_;
  bool gather_output_;
};
TORCH_MODULE(ColumnLinear);

/// Input features are sharded: rank i has the i-th chunk of the weight's columns. The bias is whole on all ranks.
class RowLinearImpl : public Layer<RowLinearImpl> {
 public:
  /// See ColumnLinear. With `split_input`, the input is whole on all ranks, and each rank uses its part.
  explicit RowLinearImpl(const torch::nn::LinearImpl& whole, bool split_input = false, ProcessGroupPtr group = nullptr,
                         const ParameterOptions& parameters = {});
  explicit RowLinearImpl(const torch::nn::LinearOptions& options, bool split_input = false,
                         ProcessGroupPtr group = nullptr, const ParameterOptions& parameters = {});
  RowLinearImpl(std::int64_t in_features, std::int64_t out_features)
      : RowLinearImpl(torch::nn::LinearOptions(in_features, out_features)) {}

  /// \param input  [..., this rank's input features], with split_input [..., in_features]
  /// \returns  [..., out_features], the same on all ranks.
  at::Tensor forward(const at::Tensor& input);

  at::Tensor weight;  ///< [out_features, in_features], sharded along 1.
  at::Tensor bias;    ///< [out_features]; undefined without.

  void pretty_print(std::ostream& stream) const override;

 private:
  void bind_parameters() override;

  ProcessGroupPtr group_;
  bool split_input_;
};
TORCH_MODULE(RowLinear);

}  // namespace shard::parallel
