/// \file The names of per-rank files under a map. Pure.
#pragma once

#include <string>
#include <vector>

#include "libshard/core/name_pattern.h"
#include "libshard/map/documents/model_map.h"

namespace shard {

/// The field for ranks' numbers in `files.path`, in addition to axes and variables.
inline constexpr const char* kRankField = "rank";

/// Parses a `files.path`, whose fields are axes, variables and the rank. \throws Error kInvalidArgument  braces that
/// are not a field
NamePattern parse_file_name(const std::string& path);

/// The name of each rank's output file. It follows the document's `files.path`, in which `{AXIS}` is the rank's
/// coordinate on an axis, `{rank}` its number, and `{NAME}` a variable, each with `:0Nd` as in Python. '/' separates
/// folders. Without a `files.path`, names are like rank-00000-of-00004.pt.
/// \throws Error kInvalidArgument  an unknown field, two ranks with one name, or an invalid file name;
///     kUnsupported  several entries of `files`, or a `writer`.
std::vector<std::string> rank_file_names(const ModelMap& map);

}  // namespace shard
