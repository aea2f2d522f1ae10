/// \file
/// The tensor names of Megatron-LM before its models were Megatron-Core's: "language_model.encoder.layers.0. ..."
///
/// Source: megatron/legacy/model/{language_model,transformer,gpt_model}.py of Megatron-Core 0.8.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace shard::megatron {

/// True for such a name.
bool is_old_name(std::string_view name);

/// Megatron-Core's name of the same tensor; nothing if it has no such tensor. \pre is_old_name(name)
std::optional<std::string> present_name(std::string_view name);

}  // namespace shard::megatron
