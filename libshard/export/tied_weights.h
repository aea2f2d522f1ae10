/// \file Tied weights of a model: an output head that equals the input embedding, an encoder's embedding that equals
///   the decoder's. Pure.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "libshard/catalog/selection/selection.h"

namespace shard {

/// A tensor and the one that it may repeat: indices into the selected tensors.
struct TiedPair {
  std::size_t repeated, original;
  bool is_guess = false;  ///< Inferred from shapes only; the other may be an independent tensor.
};

/// The pairs of which both tensors exist, by the names in transformers' models. A tensor is `repeated` in at most one
/// pair.
std::vector<TiedPair> find_tied(std::span<const SelectedTensor> tensors);

}  // namespace shard
