/// \file
/// Tied weights of a model: an output head that is the input embedding. Pure.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "libshard/catalog/selection.h"

namespace shard {

/// A head and the embedding that it may repeat: indices into the selected tensors.
struct TiedPair {
  std::size_t head, embedding;
};

/// The pair, by the names that models of transformers have; nothing where a model lacks one of the two.
std::optional<TiedPair> find_tied(std::span<const SelectedTensor> tensors);

}  // namespace shard
