/// \file
/// What tells a source's files from others without reading them whole: their names, sizes, times of modification, and
/// the hash of their first and last bytes, where headers and directories lie.
///
/// It cannot tell that the middle of a file was changed by somebody who set its time back, or that a disk lost bits.
#pragma once

#include <string>
#include <vector>

#include "libshard/io/source_store.h"
#include "libshard/manifest/manifest.h"

namespace shard {

/// \throws Error kNotFound  the file cannot be read. Cost: two reads of up to 4 KiB.
SourceFile identify(const RandomReader& file, const std::string& name);

/// All regular files of `paths`, those in folders too, by path. Entries that lead nowhere are left out.
/// \throws Error kNotFound  a path or a file cannot be read. Cost: identify's for each file.
std::vector<SourceFile> identify_source(const SourceStore& store, const std::vector<std::string>& paths);

}  // namespace shard
