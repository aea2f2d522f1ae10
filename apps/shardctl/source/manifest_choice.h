/// \file
/// Which manifest a checkpoint is compared with.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "libshard/verify/manifest_check.h"

namespace shard::app {

/// The manifest that lies in the one folder of `paths`, or beside the one file; empty where there is none.
std::string manifest_beside(const SourceStore& store, const std::vector<std::string>& paths);

/// Reads a manifest. Of several files, or of one among many in the manifest, only what it says of those counts.
/// \throws Error kNotFound; kCorruption  see parse_manifest, or it does not name a file of `paths`
StatedFiles read_manifest(const SourceStore& store, const std::string& manifest, const std::vector<std::string>& paths);

/// Its text. \throws Error kNotFound, kCorruption  it is larger than a manifest can be
std::string manifest_bytes(const SourceStore& store, const std::string& path);

}  // namespace shard::app
