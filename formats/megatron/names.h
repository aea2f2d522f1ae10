/// \file
/// Interprets Megatron's name of a tensor: the tensor of the whole model to which it belongs, and how ranks share that.
///
/// Source: megatron/core/models/gpt/gpt_model.py, transformer/*.py, transformer/moe/*.py of Megatron-Core 0.16.1.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "formats/megatron/pieces.h"

namespace shard::megatron {

struct Meaning {
  std::string name;        ///< The whole tensor's name. The number of a layer is still the one in its chunk.
  std::optional<Cut> cut;  ///< Empty if no rule is known.
  enum class Experts : std::uint8_t {
    kNone,
    kOne,          ///< The expert with number `expert` on its rank.
    kFirstPacked,  ///< The first weights of all experts of the rank in one tensor, see packed_experts.
    kSecondPacked,
  } experts = Experts::kNone;
  std::int64_t expert = 0;
};

/// The meaning of a name in its current form ("decoder.layers.0.mlp.linear_fc1.weight"). `gated`: see Arguments. The
/// experts of a layer become one tensor "...mlp.experts.experts.linear_fc1.weight", in any of their stored forms.
Meaning meaning_of(std::string_view name, bool gated);

/// How `ranks` share a tensor with a known total number of rows: each has a part of the rows, or all of them. Nothing
/// if neither matches.
std::optional<Cut> cut_by_rows(std::int64_t rows, std::int64_t whole_rows, std::int64_t ranks);

/// The layer's number in a name, counted from the first layer of its chunk: 3 in
/// "decoder.layers.3.mlp.linear_fc2.weight".
std::optional<std::int64_t> layer_in(std::string_view name);
/// The name with a different layer. \pre layer_in(name) is not empty
std::string with_layer(std::string_view name, std::int64_t layer);

/// False for tensors that no optimizer updates: buffers.
bool is_parameter(std::string_view name);
/// True for the data that Transformer Engine stores beside a module's parameters.
bool is_extra_state(std::string_view name);

}  // namespace shard::megatron
