/// \file
/// Which layers a pipeline stage holds. Pure arithmetic.
///
/// Source: megatron/core/transformer/{transformer_layer,transformer_block}.py of core 0.16.1.
#pragma once

#include <cstdint>
#include <optional>

namespace shard::megatron {

/// How a model's layers are spread over pipeline stages.
struct Stages {
  std::int64_t layers = 0;
  std::int64_t stages = 1;
  std::int64_t chunks = 1;                      ///< Of each stage (virtual stages), which take turns.
  std::optional<std::int64_t> first{}, last{};  ///< Layers of the first and last stage, where they hold other numbers.
  bool embedding_counts = false;                ///< The embedding takes the place of a layer in the first stage,
  bool loss_counts = false;                     ///< the loss in the last one.

  friend bool operator==(const Stages&, const Stages&) = default;
};

/// Layers [begin, begin + count).
struct LayerRange {
  std::int64_t begin = 0, count = 0;

  friend bool operator==(const LayerRange&, const LayerRange&) = default;
};

/// The layers of `chunk` of `stage`. \returns nothing where layers cannot be spread evenly as Megatron does it.
/// \pre 0 <= stage < stages, 0 <= chunk < chunks; all numbers below 2^31
std::optional<LayerRange> layers_of(const Stages& stages, std::int64_t stage, std::int64_t chunk);

}  // namespace shard::megatron
