/// \file Finds and reads the manifest file of a checkpoint.
#pragma once

#include <string>
#include <vector>

#include "libshard/io/source_store.h"

namespace shard {

/// The path of the manifest in the one folder in `paths`, or next to the one file. Empty if there is none.
std::string manifest_beside(const SourceStore& store, const std::vector<std::string>& paths);

/// The text of a manifest. \throws Error kNotFound; kCorruption  it is larger than any manifest can be
std::string manifest_bytes(const SourceStore& store, const std::string& path);

}  // namespace shard
