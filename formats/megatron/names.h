/// \file
/// What Megatron's name of a tensor says: which tensor of the whole model it is a part of, and how ranks share it.
///
/// Source: megatron/core/models/gpt/gpt_model.py, transformer/*.py, transformer/moe/*.py of core 0.16.1.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "formats/megatron/pieces.h"

namespace shard::megatron {

struct Meaning {
  std::string name;        ///< Of the whole tensor; of a layer with the layer's number in its chunk still.
  std::optional<Cut> cut;  ///< Nothing: no rule is known.
  enum class Experts : std::uint8_t {
    kNone,
    kOne,          ///< `expert`, counted on its rank.
    kFirstPacked,  ///< The first weights of all experts of the rank in one tensor, see packed_experts.
    kSecondPacked,
  } experts = Experts::kNone;
  std::int64_t expert = 0;
};

/// `name` is of the present form ("decoder.layers.0.mlp.linear_fc1.weight"). `gated`: see Arguments.
/// Experts, however they are stored, become one tensor "...mlp.experts.experts.linear_fc1.weight" of each layer.
Meaning meaning_of(std::string_view name, bool gated);

/// How `ranks` share a tensor whose whole number of rows is known: by rows, or each has all. Nothing where neither
/// fits.
std::optional<Cut> cut_by_rows(std::int64_t rows, std::int64_t whole_rows, std::int64_t ranks);

/// The layer that a name counts from its chunk's first one: of "decoder.layers.3.mlp.linear_fc2.weight" it is 3.
std::optional<std::int64_t> layer_in(std::string_view name);
/// The name with another layer. \pre layer_in(name)
std::string with_layer(std::string_view name, std::int64_t layer);

/// False for tensors that no optimizer updates: buffers.
bool is_parameter(std::string_view name);
/// True for what Transformer Engine keeps beside a module's parameters.
bool is_extra_state(std::string_view name);

}  // namespace shard::megatron
