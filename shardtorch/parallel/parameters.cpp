#include "shardtorch/parallel/parameters.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <unordered_set>
#include <utility>

#include "shardtorch/sharded_tensor/collectives.h"

namespace shard::parallel {

std::vector<LocalParameter> named_local_parameters(const torch::nn::Module& module) {
  std::vector<LocalParameter> found;
  std::unordered_set<const c10::TensorImpl*> known;
  for (const auto& parameter : module.named_parameters()) {
    const at::Tensor& tensor = parameter.value();
    if (!tensor.defined() || !known.insert(tensor.unsafeGetTensorImpl()).second) continue;
    const ShardedTensor sharded = ShardedTensor::of(tensor);
    if (!sharded.defined()) {
      found.push_back({.name = parameter.key(), .tensor = tensor});
      continue;
    }
    const std::vector<Shard>& shards = sharded.local_shards();
    for (std::size_t i = 0; i < shards.size(); ++i) found.push_back({parameter.key(), shards[i].tensor, sharded, i});
  }
  return found;
}

std::vector<at::Tensor> local_parameters(const torch::nn::Module& module) {
  std::vector<at::Tensor> tensors;
  for (LocalParameter& each : named_local_parameters(module)) tensors.push_back(std::move(each.tensor));
  return tensors;
}

double grad_norm(const torch::nn::Module& module, double p, const ProcessGroupPtr& group) {
  SHARD_CHECK_VALUE(p > 0, "the order of a norm must be above 0, but found ", p);
  const ProcessGroupPtr ranks = group_or_default(group);
  const bool is_max = std::isinf(p);
  double own = 0;
  for (const LocalParameter& each : named_local_parameters(module)) {
    const bool is_counted = each.sharded.defined() || ranks->rank() == 0;
    const at::Tensor gradient = each.tensor.grad();
    if (!is_counted || !gradient.defined() || gradient.numel() == 0) continue;
    const double norm = at::linalg_vector_norm(gradient, p, {}, false, at::kDouble).item<double>();
    own = is_max ? (std::isnan(norm) ? norm : std::max(own, norm)) : own + std::pow(norm, p);
  }
  const at::Tensor total = at::scalar_tensor(own, at::kDouble);
  all_reduce(total, is_max ? ReduceOp::kMax : ReduceOp::kSum, ranks);
  return is_max ? total.item<double>() : std::pow(total.item<double>(), 1 / p);
}

double clip_grad_norm_(const torch::nn::Module& module, double max_norm, double p, bool error_if_nonfinite,
                       const ProcessGroupPtr& group) {
  const double norm = grad_norm(module, p, group);
  SHARD_CHECK(!error_if_nonfinite || std::isfinite(norm), "The total norm of order ", p,
              " for gradients from `parameters` is non-finite, so it cannot be clipped");
  const double factor = max_norm / (norm + 1e-6);
  if (factor >= 1) return norm;
  const at::NoGradGuard no_grad;
  for (const LocalParameter& each : named_local_parameters(module)) {
    if (each.tensor.grad().defined()) each.tensor.mutable_grad().mul_(factor);
  }
  return norm;
}

}  // namespace shard::parallel
