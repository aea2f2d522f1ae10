/// \file
/// Cross entropy of logits whose classes are sharded over the ranks of a group, like the output of a column layer. No
/// rank ever has all logits.
#pragma once

#include <torch/nn/pimpl.h>

#include "shardtorch/parallel/module.h"
#include "shardtorch/sharded_tensor/process_group.h"

namespace shard::parallel {

struct CrossEntropyOptions {
  std::int64_t ignore_index = -100;  ///< Targets with this value are ignored.
  double label_smoothing = 0;        ///< 0 to 1.
  enum class Reduction : std::uint8_t { kNone, kMean, kSum } reduction = Reduction::kMean;
};

/// torch::nn::CrossEntropyLoss for class indices, without class weights. A collective, as is backward, which gives the
/// gradient of this rank's logits.
///
/// \param logits  [..., this rank's chunk of `classes`]. The last dimension contains the classes.
/// \param targets  [...], int64, the same on all ranks.
/// \returns  The same as torch, on all ranks.
/// \throws c10::ValueError  different shapes, only on this rank; c10::IndexError  on all ranks, a target that is not a
///   class.
/// Cost: three all_reduces of a number per target (four with smoothing).
at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& targets, std::int64_t classes,
                         const CrossEntropyOptions& options = {}, const ProcessGroupPtr& group = nullptr);

/// The same loss as a module.
class CrossEntropyLossImpl : public Layer<CrossEntropyLossImpl> {
 public:
  explicit CrossEntropyLossImpl(std::int64_t classes, const CrossEntropyOptions& options = {},
                                ProcessGroupPtr group = nullptr)
      : classes_(classes), options_(options), group_(group_or_default(std::move(group))) {}
  at::Tensor forward(const at::Tensor& logits, const at::Tensor& targets) {
    return cross_entropy(logits, targets, classes_, options_, group_);
  }

 private:
  std::int64_t classes_;
  CrossEntropyOptions options_;
  ProcessGroupPtr group_;
};
TORCH_MODULE(CrossEntropyLoss);

}  // namespace shard::parallel
