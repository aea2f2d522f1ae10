#include <ATen/ATen.h>

#include <utility>

#include "shardtorch/parallel/embedding.h"
#include "shardtorch/parallel/layer.h"
#include "shardtorch/parallel/lookup.h"
#include "shardtorch/sharded_tensor/functional.h"

namespace shard::parallel {

namespace {

/// Constants of at::embedding_bag.
enum Mode : std::int64_t { kSum = 0, kMean = 1, kMax = 2 };

Mode mode_of(const torch::nn::EmbeddingBagOptions& options) {
  if (std::holds_alternative<torch::enumtype::kSum>(options.mode())) return kSum;
  return std::holds_alternative<torch::enumtype::kMean>(options.mode()) ? kMean : kMax;
}

/// The indices of all bags in sequence, with the start of each bag. `weights` may be undefined.
struct Bags {
  at::Tensor indices, begins, weights;

  at::Tensor lengths() const {
    const at::Tensor ends = at::cat({begins.slice(0, 1), at::full({1}, indices.numel(), begins.options())});
    return ends - begins;
  }
};

Bags bags_of(const at::Tensor& indices, const at::Tensor& offsets, const at::Tensor& weights,
             const torch::nn::EmbeddingBagOptions& options) {
  SHARD_CHECK_VALUE(!weights.defined() || mode_of(options) == kSum, "per_sample_weights are for sums only");
  SHARD_CHECK_VALUE(!weights.defined() || weights.sizes() == indices.sizes(), "per_sample_weights have the shape ",
                    weights.sizes(), ", but the indices ", indices.sizes());
  const at::Tensor flat = weights.defined() ? weights.reshape(-1) : at::Tensor();
  if (indices.dim() == 2) {
    SHARD_CHECK_VALUE(!offsets.defined(), "offsets are for indices of one dimension");
    return {indices.reshape(-1), at::arange(indices.size(0), indices.options()) * indices.size(1), flat};
  }
  SHARD_CHECK_VALUE(indices.dim() == 1 && offsets.defined() && offsets.dim() == 1,
                    "indices of one dimension need offsets of one dimension");
  return {indices, options.include_last_offset() ? offsets.slice(0, 0, -1) : offsets, flat};
}

/// Removes padding indices from bags.
Bags without_padding(const Bags& bags, std::int64_t padding) {
  const at::Tensor kept = bags.indices.ne(padding);
  const at::Tensor before = at::cat({at::zeros({1}, kept.options().dtype(at::kLong)), kept.cumsum(0)});
  return {bags.indices.masked_select(kept), before.index_select(0, bags.begins).to(bags.begins.scalar_type()),
          bags.weights.defined() ? bags.weights.masked_select(kept) : at::Tensor()};
}

at::Tensor reduced(const at::Tensor& table, const Bags& bags, Mode mode) {
  return std::get<0>(at::embedding_bag(table, bags.indices, bags.begins, /*scale_grad_by_freq=*/false, mode,
                                       /*sparse=*/false, bags.weights));
}

/// Replaces `reduced` if this rank's part of the table has no elements.
at::Tensor reduced_of_none(const at::Tensor& table, const Bags& bags) {
  const at::Tensor zeros = at::zeros({bags.begins.numel(), table.size(1)}, table.options()) + zero_of(table);
  return bags.weights.defined() ? zeros + zero_of(bags.weights) : zeros;
}

at::Tensor reduced_by_rows(const at::Tensor& weight, Bags bags, Mode mode, const ProcessGroupPtr& group) {
  if (mode == kMax) {
    const at::Tensor rows = rows_of(weight, bags.indices, -1, group);
    return reduced(rows, {at::arange(rows.size(0), bags.begins.options()), bags.begins, {}}, kMax);
  }
  const at::Tensor table = local_of(weight), lengths = bags.lengths();
  const OwnRows own = own_rows(bags.indices, *group, weight.size(0));
  const at::Tensor weights = bags.weights.defined() ? functional::replicated(bags.weights, group)
                                                    : at::ones(bags.indices.sizes(), table.options());
  const Bags here{own.indices, bags.begins, weights.masked_fill(own.elsewhere, 0)};
  const at::Tensor part = table.size(0) == 0 ? reduced_of_none(table, here) : reduced(table, here, kSum);
  const at::Tensor sum = functional::all_reduce(part, functional::Losses::kReplicated, group);
  return mode == kMean ? sum / lengths.clamp_min(1).unsqueeze(1) : sum;
}

at::Tensor reduced_by_columns(const at::Tensor& weight, Bags bags, Mode mode, const ProcessGroupPtr& group) {
  const at::Tensor table = local_of(weight);
  if (bags.weights.defined()) bags.weights = functional::replicated(bags.weights, group);
  const at::Tensor part = table.size(1) == 0 ? reduced_of_none(table, bags) : reduced(table, bags, mode);
  return gather_last(part, weight.size(1), group);
}

}  // namespace

at::Tensor EmbeddingBagImpl::forward(const at::Tensor& indices, const at::Tensor& offsets,
                                     const at::Tensor& per_sample_weights) {
  check_indices(indices, weight.size(0));
  Bags bags = bags_of(indices, offsets, per_sample_weights, options_);
  if (padding() >= 0) bags = without_padding(bags, padding());
  const Mode mode = mode_of(options_);
  return cut_ == TableCut::kRows ? reduced_by_rows(weight, std::move(bags), mode, group_)
                                 : reduced_by_columns(weight, std::move(bags), mode, group_);
}

}  // namespace shard::parallel
