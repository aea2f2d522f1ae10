/// \file
/// Tensors of an adapter (LoRA), as PEFT's own files name them. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "libshard/export/model_part.h"

namespace shard {

/// True for a name that PEFT gives a tensor of an adapter: some part begins with `lora_`.
bool is_lora(std::string_view name);

/// A weight of the base model among tensors of which some are an adapter's; empty where there is none. Modules that
/// were trained as a whole (`modules_to_save`), and embeddings that were resized, are part of an adapter.
std::string base_weight_beside(const std::vector<ModelTensor>& tensors);

/// Gives the tensors the names of adapter_model.safetensors: `base_model.model.` before all, without the adapter's own
/// name (`lora_A.default.weight` becomes `lora_A.weight`, `modules_to_save.default.weight` becomes `weight`). Removes
/// the originals of modules that were trained as a whole. \returns the names of the adapters, sorted; those that have
/// none are not among them.
std::vector<std::string> name_as_peft(std::vector<ModelTensor>& tensors);

/// A name of a base model inside PEFT's wrapper without what that adds: `base_model.model.` and `base_layer`.
std::string without_adapter(std::string_view name);

}  // namespace shard
