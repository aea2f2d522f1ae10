/// \file
/// The layers of a pipeline, which have their own files. Inside formats/deepspeed only.
///
/// Source: deepspeed/runtime/pipe/module.py (save_state_dict, _build), topology.py of 0.19.8.
#pragma once

#include <cstddef>
#include <vector>

#include "formats/deepspeed/states.h"
#include "formats/deepspeed/tag_folder.h"
#include "formats/torch/saved_files.h"
#include "libshard/catalog/catalog.h"

namespace shard::deepspeed {

/// The number of consecutive model-parallel ranks that each stage has. Without a pipeline, all of them.
/// \throws Error kCorruption  the stages would have different numbers of ranks.
std::size_t ranks_of_stage(const Catalog& catalog, const TagFolder& folder, const std::vector<Save>& saves);

/// Reads the files of layers, and adds each one to the parts of the stages that train it, as PipelineModule names its
/// tensors: "3.weight" for layer 3, "tied_modules.KEY.weight" for a shared layer. The files do not contain the key; it
/// is that of a parameter with this name and shape. Layers that no optimizer names belong to the first stage.
/// \throws Error  as read_part; kNotFound  the file of a layer is missing that an optimizer names.
void read_layers(Catalog& catalog, torch_save::SavedFiles& files, const TagFolder& folder, std::size_t tensor_ranks,
                 std::vector<Save>& saves);

}  // namespace shard::deepspeed
