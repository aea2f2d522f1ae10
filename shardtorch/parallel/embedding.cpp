#include "shardtorch/parallel/embedding.h"

#include <ATen/ATen.h>

#include <utility>

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
  const at::Tensor table = local_of(weight);
  at::Tensor found;
  if (table.size(0) == 0) {
    std::vector<std::int64_t> sizes = indices.sizes().vec();
    sizes.push_back(table.size(1));
    found = at::zeros(sizes, table.options()) + zero_of(table);
  } else {
    const OwnRows own = own_rows(indices, *group, weight.size(0));
    const std::int64_t own_padding = padding - own_chunk(*group, weight.size(0)).begin;
    const bool has_padding = padding >= 0 && own_padding >= 0 && own_padding < table.size(0);
    found =
        at::embedding(table, own.indices, has_padding ? own_padding : -1).masked_fill(own.elsewhere.unsqueeze(-1), 0);
  }
  return functional::all_reduce(found, functional::Losses::kReplicated, group);
}

namespace {

/// From the end where it is negative, as torch has it. -1: none.
std::int64_t padding_of(const torch::nn::EmbeddingOptions& options) {
  const std::int64_t padding = options.padding_idx().value_or(-1);
  return options.padding_idx().has_value() && padding < 0 ? padding + options.num_embeddings() : padding;
}

}  // namespace

EmbeddingImpl::EmbeddingImpl(const torch::nn::EmbeddingImpl& whole, TableCut cut, ProcessGroupPtr group)
    : cut_(cut), group_(group_or_default(std::move(group))), padding_(padding_of(whole.options)) {
  check_table_options(whole.options);
  weight = register_parameter("weight", cut_parameter(whole.weight, cut == TableCut::kRows ? 0 : 1, group_));
}

EmbeddingImpl::EmbeddingImpl(const torch::nn::EmbeddingOptions& options, TableCut cut, ProcessGroupPtr group)
    : EmbeddingImpl(torch::nn::EmbeddingImpl(options), cut, std::move(group)) {}

at::Tensor EmbeddingImpl::forward(const at::Tensor& indices) {
  check_indices(indices, weight.size(0));
  if (cut_ == TableCut::kRows) return rows_of(weight, indices, padding_, group_);
  return gather_last(at::embedding(local_of(weight), indices, padding_), weight.size(1), group_);
}

}  // namespace shard::parallel
