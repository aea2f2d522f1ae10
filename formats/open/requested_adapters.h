/// \file
/// Adapters by path: PEFT's folders and files, and training checkpoints that contain an adapter.
#pragma once

#include <string>
#include <vector>

#include "formats/open/source.h"

namespace shard {

/// The paths that decide what an adapter changes: its own, and that of its configuration.
std::vector<std::string> files_of_adapter(const SourceStore& store, const std::string& path);

/// Merges request.adapters into the source. Each adapter is a checkpoint in any format and layout, with its
/// adapter_config.json in the same folder. Tensors of a base model beside those of the adapter are ignored.
/// \throws Error kNotFound  no adapter_config.json exists; kInvalidArgument  it contains no adapter; kUnsupported  it
///   contains several; see parse_adapter_config and merge_adapters
void merge_requested(const SourcePlace& place, const SourceRequest& request, const SourceOptions& options,
                     OpenSource& source);

}  // namespace shard
