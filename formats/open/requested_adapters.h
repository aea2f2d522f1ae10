/// \file
/// Adapters by path: PEFT's folders and files, and training checkpoints that contain an adapter.
#pragma once

#include <string>
#include <vector>

#include "formats/open/source.h"

namespace shard {

/// The paths that decide what an adapter changes: its own, and that of its configuration.
std::vector<std::string> files_of_adapter(const SourceStore& store, const std::string& path);

/// Undoes request.map, and merges request.adapters into the source: after the map, or before it if they change
/// parameters of experts under the names in SRC (fused experts, which hf-v5 divides). Each adapter is a checkpoint in
/// any format and layout, with its adapter_config.json in the same folder. Tensors of a base model beside those of the
/// adapter are ignored. \throws Error kNotFound  no adapter_config.json exists; kInvalidArgument  it contains no
/// adapter; kUnsupported  it
///   contains several; see parse_adapter_config and merge_adapters
void undo_map_and_merge(const SourcePlace& place, const SourceRequest& request, const SourceOptions& options,
                        OpenSource& source);

}  // namespace shard
