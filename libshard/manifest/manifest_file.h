/// \file
/// Manifests as files beside checkpoints.
#pragma once

#include <string>
#include <vector>

#include "libshard/io/source_store.h"

namespace shard {

/// The path of the manifest in the one folder of `paths`, or beside the one file; empty if there is none.
std::string manifest_beside(const SourceStore& store, const std::vector<std::string>& paths);

/// Its text. \throws Error kNotFound, kCorruption  it is larger than a manifest can be
std::string manifest_bytes(const SourceStore& store, const std::string& path);

}  // namespace shard
