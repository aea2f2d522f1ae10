/// \file
/// The arguments of a training run that define how its model was distributed: degrees of parallelism, layers, experts.
///
/// Source: megatron/training/arguments.py, megatron/core/transformer/{transformer_layer,transformer_block}.py of
/// Megatron-Core 0.16.1.
#pragma once

#include <cstdint>
#include <optional>

#include "libshard/core/arena.h"
#include "libshard/core/value.h"

namespace shard::megatron {

/// The distribution of a model's layers over pipeline stages. The arithmetic is pure.
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

struct Arguments {
  std::int64_t tensor = 1, pipeline = 1, expert = 1;  ///< The number of ranks of each kind of model parallelism.
  Stages stages;
  std::int64_t experts = 0;  ///< The total on all ranks; 0 if the model has none.
  /// The rows of MLA's whole linear_q_down_proj; 0 if there is none, or the arguments do not record it.
  std::int64_t query_rows = 0;
  std::int64_t key_rows = 0;  ///< The same for linear_kv_down_proj.
  bool gated = false;         ///< linear_fc1 contains the rows of a gate, then those of the other half.
  bool tied = false;          ///< output_layer.weight is a copy of the word embedding.

  friend bool operator==(const Arguments&, const Arguments&) = default;
};

/// The attributes of `args`, an argparse.Namespace, as a dict: arguments by name.
/// \throws Error kCorruption (bad_pickle)  `args` is missing.
Value& arguments_of(const Value& root);

/// The process that wrote the file; nothing if the arguments do not record it. \throws Error kCorruption  it is not a
/// valid number
std::optional<std::int64_t> writer_of(const Value& arguments);

/// \param arguments  the result of arguments_of
/// \throws Error kCorruption   a number is missing, negative, or contradicts another one.
/// \throws Error kUnsupported  layers are distributed by an explicit list; experts are sharded over different ranks
///   from the rest.
Arguments read_arguments(const Value& arguments);

}  // namespace shard::megatron
