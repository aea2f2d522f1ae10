#include "shardtorch/parallel/embedding.h"

#include <ATen/ATen.h>

#include <optional>
#include <type_traits>

#include "shardtorch/parallel/layer.h"
#include "shardtorch/parallel/lookup.h"
#include "shardtorch/sharded_tensor/functional.h"

namespace shard::parallel {

void check_indices(const at::Tensor& indices, std::int64_t rows) {
  if (indices.numel() == 0) return;
  SHARD_CHECK_INDEX(indices.min().item<std::int64_t>() >= 0 && indices.max().item<std::int64_t>() < rows,
                    "index out of range: a table of ", rows, " rows, indices from ", indices.min().item<std::int64_t>(),
                    " to ", indices.max().item<std::int64_t>());
}

at::Tensor zero_of(const at::Tensor& tensor) { return tensor.sum() * 0; }

OwnRows own_rows(const at::Tensor& indices, const ProcessGroup& group, std::int64_t rows) {
  const Chunk chunk = own_chunk(group, rows);
  const at::Tensor local = indices - chunk.begin;
  const at::Tensor elsewhere = local.lt(0).logical_or(local.ge(chunk.size));
  return {local.masked_fill(elsewhere, 0), elsewhere};
}

at::Tensor rows_of(const at::Tensor& weight, const at::Tensor& indices, std::int64_t padding,
                   const ProcessGroupPtr& group) {
  const std::int64_t first = own_chunk(*group, weight.size(0)).begin;
  const at::Tensor found = functional::own_rows(local_of(weight), indices, first, padding);
  return functional::all_reduce(found, functional::Losses::kReplicated, group);
}

namespace {

/// Checks for options of both kinds of tables that these layers do not support. \throws c10::NotImplementedError
template <class Options>
const Options& checked(const Options& options) {
  SHARD_CHECK_NOT_IMPLEMENTED(!options.max_norm().has_value(), "sharded embeddings have no max_norm");
  SHARD_CHECK_NOT_IMPLEMENTED(!options.scale_grad_by_freq(), "sharded embeddings have no scale_grad_by_freq");
  SHARD_CHECK_NOT_IMPLEMENTED(!options.sparse(), "sharded embeddings have no sparse gradients");
  return options;
}

}  // namespace

template <class Self, class Whole, class Options>
CutTable<Self, Whole, Options>::CutTable(const Whole& whole, TableCut cut, ProcessGroupPtr group,
                                         const ParameterOptions& parameters)
    : options_(checked(whole.options)), cut_(cut), group_(group_or_default(std::move(group))) {
  const std::int64_t dim = cut == TableCut::kRows ? 0 : 1;
  weight = this->register_parameter("weight", cut_parameter(whole.weight, dim, group_, parameters));
}

template <class Self, class Whole, class Options>
void CutTable<Self, Whole, Options>::bind_parameters() {
  weight = this->parameters_["weight"];
}

template <class Self, class Whole, class Options>
void CutTable<Self, Whole, Options>::pretty_print(std::ostream& stream) const {
  const bool is_bag = std::is_same_v<Whole, torch::nn::EmbeddingBagImpl>;
  print_start(stream, is_bag ? "EmbeddingBag" : "Embedding", weight, "num_embeddings", "embedding_dim");
  if (options_.padding_idx().has_value()) stream << ", padding_idx=" << *options_.padding_idx();
  stream << ')';
}

template <class Self, class Whole, class Options>
std::int64_t CutTable<Self, Whole, Options>::padding() const {
  const std::optional<std::int64_t> padding = options_.padding_idx();
  return padding.has_value() && *padding < 0 ? *padding + options_.num_embeddings() : padding.value_or(-1);
}

template class CutTable<EmbeddingImpl, torch::nn::EmbeddingImpl, torch::nn::EmbeddingOptions>;
template class CutTable<EmbeddingBagImpl, torch::nn::EmbeddingBagImpl, torch::nn::EmbeddingBagOptions>;

at::Tensor EmbeddingImpl::forward(const at::Tensor& indices) {
  check_indices(indices, weight.size(0));
  if (cut_ == TableCut::kRows) return rows_of(weight, indices, padding(), group_);
  return gather_last(at::embedding(local_of(weight), indices, padding()), weight.size(1), group_);
}

}  // namespace shard::parallel
