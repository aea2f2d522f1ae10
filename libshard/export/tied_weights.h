/// \file Tied weights of a model: an output head that equals the input embedding, an encoder's embedding that equals
///   the decoder's. Pure.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "libshard/catalog/selection/selection.h"

namespace shard {

/// A tensor and the one that it may repeat: indices into the selected tensors.
struct TiedPair {
  std::size_t repeated, original;
  bool is_guess = false;  ///< Inferred from shapes only. The other may be an independent tensor.
};

/// The pairs of which both tensors exist, by names in transformers' models. Each is `repeated` in at most one pair.
std::vector<TiedPair> find_tied(std::span<const SelectedTensor> tensors);

/// A parameter that a model does not store because it may repeat a tensor.
struct AbsentTie {
  std::string_view repeated;  ///< The end of its name: "lm_head.weight".
  std::string_view original;  ///< The end of the tensor's name: "embed_tokens.weight".
  std::string_view tensor;    ///< The tensor's name, of the catalog.
};

/// By the names in transformers' models. None for a tensor of which a repetition is stored.
std::vector<AbsentTie> absent_ties(const Catalog& catalog);

}  // namespace shard
