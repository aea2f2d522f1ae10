/// \file
/// Adapters (LoRA) of diffusers and of Kohya's scripts: finds the modules of a base model that they change.
///
/// Kohya's names are those of modules with `_` in place of dots, after `lora_unet_` or `lora_te1_`. They are compared
/// with the names in the base model, so no part of a name is guessed. The alpha is a tensor beside the factors, or in
/// the metadata of diffusers' file. Without both it is the rank, as in the programs that load these files.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "libshard/checkpoint/reader.h"
#include "libshard/compute/adapter_config.h"

namespace shard {

struct ForeignAdapter {
  struct Factor {
    std::uint32_t tensor;  ///< Index into the adapter's tensors.
    std::string name;      ///< PEFT's name for it, with the name of the module in the base model.
  };
  std::vector<Factor> factors;
  AdapterConfig config;
  std::vector<std::string> warnings;  ///< About parts of the adapter that are for other models.
};

/// True if some names are those of such an adapter. Those with `lora_A` must begin with a part of a pipeline, such as
/// `unet.`, because PEFT's names of modules can begin with others.
bool is_foreign_adapter(const Catalog& adapter);

/// \pre is_foreign_adapter  \param label  the adapter's name in messages
/// \throws Error kInvalidArgument  the base model has no module for a name
/// \throws Error kUnsupported  a tensor of an unknown form; a name that fits several modules of the base model
/// \throws Error kCorruption  an alpha that is not one finite number, or has no factors; malformed metadata
/// Cost: linear in the tensors of both, and one read per alpha. If names of a part are missing, also up to 2^24
/// comparisons of names.
ForeignAdapter read_foreign_adapter(const std::unique_ptr<Reader>& adapter, const Catalog& base,
                                    const std::string& label);

}  // namespace shard
