/// \file
/// Embeddings whose table is cut over the ranks of a group, by rows (the vocabulary) or by columns.
///
/// As with linear.h: all ranks compute one loss, the weight is a parameter that is a ShardedTensor of
/// torch::nn::Embedding's name and shape, every function is a collective, and gradients are those of the whole table,
/// each shard's its part. Indices are the same on all ranks, and so is what comes out.
/// Source: torch/distributed/_shard/sharding_spec/chunk_sharding_spec_ops/embedding{,_bag}.py (torch 2.11).
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/pimpl.h>

#include <optional>

#include "shardtorch/sharded_tensor/process_group.h"

namespace shard::parallel {

/// Which dimension of a table is cut.
enum class TableCut : std::uint8_t {
  kRows,     ///< A rank looks up what its rows hold, and the ranks' results are summed.
  kColumns,  ///< A rank looks up its columns of everything, and the ranks' results are put side by side.
};

class EmbeddingImpl : public torch::nn::Module {
 public:
  /// The elements of group rank 0's `whole`, which stays as it is. `group` null: the default group.
  /// \throws c10::ValueError  this process is not a member; shapes differ between ranks
  /// \throws c10::NotImplementedError  max_norm, scale_grad_by_freq and sparse gradients
  explicit EmbeddingImpl(const torch::nn::EmbeddingImpl& whole, TableCut cut = TableCut::kRows,
                         ProcessGroupPtr group = nullptr);
  /// Of new elements, which rank 0 draws as torch::nn::Embedding does. Memory: the whole table for a moment.
  explicit EmbeddingImpl(const torch::nn::EmbeddingOptions& options, TableCut cut = TableCut::kRows,
                         ProcessGroupPtr group = nullptr);
  EmbeddingImpl(std::int64_t num_embeddings, std::int64_t embedding_dim)
      : EmbeddingImpl(torch::nn::EmbeddingOptions(num_embeddings, embedding_dim)) {}

  /// \param indices  Of any shape. \returns  [..., embedding_dim], on all ranks.
  /// \throws c10::IndexError  on all ranks, an index that the table has not.
  at::Tensor forward(const at::Tensor& indices);

  at::Tensor weight;  ///< [num_embeddings, embedding_dim], cut.

 private:
  TableCut cut_;
  ProcessGroupPtr group_;
  std::int64_t padding_;  ///< -1: none.
};
TORCH_MODULE(Embedding);

class EmbeddingBagImpl : public torch::nn::Module {
 public:
  /// As Embedding's.
  explicit EmbeddingBagImpl(const torch::nn::EmbeddingBagImpl& whole, TableCut cut = TableCut::kRows,
                            ProcessGroupPtr group = nullptr);
  explicit EmbeddingBagImpl(const torch::nn::EmbeddingBagOptions& options, TableCut cut = TableCut::kRows,
                            ProcessGroupPtr group = nullptr);
  EmbeddingBagImpl(std::int64_t num_embeddings, std::int64_t embedding_dim)
      : EmbeddingBagImpl(torch::nn::EmbeddingBagOptions(num_embeddings, embedding_dim)) {}

  /// \param indices  [bags, each] without `offsets`, else one after the other, and where each bag begins.
  /// \param per_sample_weights  Of the indices' shape, for sums only.
  /// \returns  [bags, embedding_dim], on all ranks.
  /// \throws c10::ValueError  other shapes, weights with a mean or maximum; c10::IndexError  as Embedding.
  /// Cost: by rows, sums and means reduce a row a bag, maxima a row an index.
  at::Tensor forward(const at::Tensor& indices, const at::Tensor& offsets = {},
                     const at::Tensor& per_sample_weights = {});

  at::Tensor weight;  ///< [num_embeddings, embedding_dim], cut.

 private:
  torch::nn::EmbeddingBagOptions options_;
  TableCut cut_;
  ProcessGroupPtr group_;
};
TORCH_MODULE(EmbeddingBag);

}  // namespace shard::parallel
