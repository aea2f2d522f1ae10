/// \file
/// Computes the layers of a pipeline stage. Pure arithmetic.
///
/// Source: megatron/core/transformer/{transformer_layer,transformer_block}.py of Megatron-Core 0.16.1.
#pragma once

#include <cstdint>
#include <optional>

namespace shard::megatron {

/// The distribution of a model's layers over pipeline stages.
struct Stages {
  std::int64_t layers = 0;
  std::int64_t stages = 1;
  std::int64_t chunks = 1;  ///< Chunks of each stage (virtual stages), which alternate.
  /// The layers of the first and the last stage, if their numbers differ.
  std::optional<std::int64_t> first{}, last{};
  bool embedding_counts = false;  ///< The embedding takes the place of a layer in the first stage.
  bool loss_counts = false;       ///< The loss takes the place of a layer in the last stage.

  friend bool operator==(const Stages&, const Stages&) = default;
};

/// Layers [begin, begin + count).
struct LayerRange {
  std::int64_t begin = 0, count = 0;

  friend bool operator==(const LayerRange&, const LayerRange&) = default;
};

/// The layers of `chunk` of `stage`. \returns nothing if Megatron could not distribute the layers evenly.
/// \pre 0 <= stage < stages, 0 <= chunk < chunks; all numbers below 2^31
std::optional<LayerRange> layers_of(const Stages& stages, std::int64_t stage, std::int64_t chunk);

}  // namespace shard::megatron
