/// \file
/// Paths that are URLs, and names in files that must stay below a folder; like paths.h, without the disk.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "libshard/core/error.h"

namespace shard {

/// "s3" for "s3://bucket/key"; empty for a path that is not a URL.
std::string_view url_scheme(std::string_view path);
inline bool is_url(std::string_view path) { return !url_scheme(path).empty(); }

/// The length of the root in front of a path: 1 for "/", otherwise 0. For a URL, its scheme and the parts that name a
/// bucket, a host, or for hf:// an organization and a model. A root is its own parent_path.
std::size_t root_bytes(std::string_view path);

/// The error for a name in a file that leads out of the checkpoint's folder.
Error name_outside(const std::string& folder, const std::string& relative, std::string_view why);
/// The parts of `relative`, a name in a file, which must stay below `folder`.
/// \throws Error kCorruption  it is empty or absolute, or has a NUL or a part that is empty, "." or ".."
std::vector<std::string> parts_below(const std::string& folder, const std::string& relative);

}  // namespace shard
