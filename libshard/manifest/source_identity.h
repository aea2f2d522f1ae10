/// \file Identifies a source's files without reading them whole: by their names, sizes, modification times, and the
///   hash of their first and last bytes, which usually contain headers and directories.
///
/// It does not notice changes in the middle of a file if the modification time was reset, or bits that a disk lost.
#pragma once

#include <string>
#include <vector>

#include "libshard/io/source_store.h"
#include "libshard/manifest/manifest.h"

namespace shard {

/// Identifies one file. \throws Error kNotFound  the file cannot be read. Cost: two reads of up to 4 KiB.
SourceFile identify(const RandomReader& file, const std::string& name);

/// Identifies all regular files in `paths` and their folders, sorted by path. Skips dangling links, and links to a
/// folder above them.
/// \throws Error kNotFound  a path or a file cannot be read. Cost: that of identify, per file.
std::vector<SourceFile> identify_source(const SourceStore& store, const std::vector<std::string>& paths);

}  // namespace shard
