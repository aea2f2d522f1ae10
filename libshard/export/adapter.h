/// \file
/// Tensors of an adapter (LoRA), as PEFT's own files name them. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "libshard/core/error.h"
#include "libshard/export/model_part.h"

namespace shard {

/// True for a name that PEFT gives a tensor of an adapter: some part begins with `lora_`.
bool is_lora(std::string_view name);

/// True for names that other tools give tensors of an adapter: Kohya's sd-scripts, LyCORIS, and diffusers before PEFT.
bool is_lora_of_other_tool(std::string_view name);

/// kUnsupported, for the tensor with such a name.
Error refused_names_of_other_tool(std::string_view name);

/// The name of a base model's weight among tensors of which some belong to an adapter. Empty if there is none. Modules
/// that were trained as a whole (`modules_to_save`), and embeddings that were resized, are part of an adapter.
std::string base_weight_beside(const std::vector<ModelTensor>& tensors);

/// Renames the tensors as in adapter_model.safetensors: adds the prefix `base_model.model.`, and removes the adapter's
/// own name (`lora_A.default.weight` becomes `lora_A.weight`, `modules_to_save.default.weight` becomes `weight`).
/// Removes the originals of modules that were trained as a whole. \returns the adapters' own names, sorted. Adapters
/// without one are not included.
std::vector<std::string> name_as_peft(std::vector<ModelTensor>& tensors);

/// The name in the base model, without the parts that PEFT's wrapper adds: `base_model.model.` and `base_layer`.
std::string without_adapter(std::string_view name);

}  // namespace shard
