/// \file
/// Embeddings whose table is sharded over the ranks of a group, by rows (the vocabulary) or by columns.
///
/// As in linear.h, all ranks compute one loss, and every function is a collective. The weight is a ShardedTensor
/// parameter with the name and shape of torch::nn::Embedding's. Each shard's gradient is its part of the whole table's.
/// Indices and outputs are the same on all ranks. Source:
/// torch/distributed/_shard/sharding_spec/chunk_sharding_spec_ops/embedding{,_bag}.py (torch 2.11).
#pragma once

#include <torch/nn/modules/embedding.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <ostream>
#include <utility>

#include "shardtorch/parallel/module.h"
#include "shardtorch/sharded_tensor/process_group.h"

namespace shard::parallel {

/// The dimension along which a table is sharded.
enum class TableCut : std::uint8_t {
  kRows,     ///< A rank looks up the indices in its rows. The results of the ranks are summed.
  kColumns,  ///< A rank looks up all indices in its columns. The results of the ranks are concatenated.
};

/// A layer whose weight is a sharded table.
/// \tparam Self  the layer; `Whole` is torch::nn's layer of the same name: EmbeddingImpl or EmbeddingBagImpl, and
///   `Options` are its options.
template <class Self, class Whole, class Options>
class CutTable : public Layer<Self> {
 public:
  /// Shards the weight of `whole` on group rank 0, which does not change. `group` null: the default group.
  /// \throws c10::ValueError  this process is not a member; shapes differ between ranks
  /// \throws c10::NotImplementedError  max_norm, scale_grad_by_freq and sparse gradients
  explicit CutTable(const Whole& whole, TableCut cut = TableCut::kRows, ProcessGroupPtr group = nullptr,
                    const ParameterOptions& parameters = {});
  /// Creates new elements, as linear.h. Memory: temporarily the whole table on the CPU.
  explicit CutTable(const Options& options, TableCut cut = TableCut::kRows, ProcessGroupPtr group = nullptr,
                    const ParameterOptions& parameters = {})
      : CutTable(Whole(options), cut, std::move(group), parameters) {}
  CutTable(std::int64_t num_embeddings, std::int64_t embedding_dim)
      : CutTable(Options(num_embeddings, embedding_dim)) {}

  at::Tensor weight;  ///< [num_embeddings, embedding_dim], sharded.

  void pretty_print(std::ostream& stream) const override;

 protected:
  void bind_parameters() override;
  /// The row without gradient, as a number that is not negative; -1: none.
  std::int64_t padding() const;

  Options options_;
  TableCut cut_;
  ProcessGroupPtr group_;
};

class EmbeddingImpl : public CutTable<EmbeddingImpl, torch::nn::EmbeddingImpl, torch::nn::EmbeddingOptions> {
 public:
  using CutTable::CutTable;

  /// \param indices  Any shape. \returns  [..., embedding_dim], on all ranks.
  /// \throws c10::IndexError  on all ranks, an index outside the table.
  at::Tensor forward(const at::Tensor& indices);
};
TORCH_MODULE(Embedding);

class EmbeddingBagImpl
    : public CutTable<EmbeddingBagImpl, torch::nn::EmbeddingBagImpl, torch::nn::EmbeddingBagOptions> {
 public:
  using CutTable::CutTable;

  /// \param indices  [bags, each] without `offsets`, otherwise one after the other, with the start of each bag in
  ///   `offsets`.
  /// \param per_sample_weights  The shape of `indices`, only for sums.
  /// \returns  [bags, embedding_dim], on all ranks.
  /// \throws c10::ValueError  different shapes, weights with a mean or maximum; c10::IndexError  as Embedding.
  /// Cost: by rows, sums and means reduce a row per bag, maxima a row per index.
  at::Tensor forward(const at::Tensor& indices, const at::Tensor& offsets = {},
                     const at::Tensor& per_sample_weights = {});
};
TORCH_MODULE(EmbeddingBag);

}  // namespace shard::parallel
