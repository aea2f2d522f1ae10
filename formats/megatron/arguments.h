/// \file
/// What the arguments of a training run say of how its model was spread: degrees of parallelism, layers, experts.
///
/// Source: megatron/training/arguments.py of core 0.16.1.
#pragma once

#include <cstdint>
#include <optional>

#include "formats/megatron/stages.h"
#include "libshard/core/arena.h"
#include "libshard/core/value.h"

namespace shard::megatron {

struct Arguments {
  std::int64_t tensor = 1, pipeline = 1, expert = 1;  ///< Ranks of each kind of model parallelism.
  Stages stages;
  std::int64_t experts = 0;     ///< Of all ranks; 0: the model has none.
  std::int64_t query_rows = 0;  ///< Of MLA's whole linear_q_down_proj; 0: it has none, or the arguments do not say.
  std::int64_t key_rows = 0;    ///< The same of linear_kv_down_proj.
  bool gated = false;           ///< linear_fc1 holds a gate's rows, then those of the other half.
  bool tied = false;            ///< output_layer.weight is a copy of the word embedding.

  friend bool operator==(const Arguments&, const Arguments&) = default;
};

/// The attributes of `args`, an argparse.Namespace, as a dict: arguments by name.
/// \throws Error kCorruption (bad_pickle)  there is none.
Value& arguments_of(const Value& root);

/// The process that wrote the file; nothing where the arguments do not say. \throws Error kCorruption  no such number
std::optional<std::int64_t> writer_of(const Value& arguments);

/// \param arguments  as arguments_of returns them
/// \throws Error kCorruption   a number is missing, negative, or contradicts another one.
/// \throws Error kUnsupported  layers spread by a list of their own, experts cut over other ranks than the rest.
Arguments read_arguments(const Value& arguments);

}  // namespace shard::megatron
