/// \file
/// How a map names the files of ranks. Pure.
#pragma once

#include <string>
#include <vector>

#include "libshard/core/name_pattern.h"
#include "libshard/map/documents/model_map.h"

namespace shard {

/// The field of ranks' numbers in `files.path`, beside axes and variables.
inline constexpr const char* kRankField = "rank";

/// A `files.path`: its fields are axes, variables and the rank. \throws Error kInvalidArgument  braces that are no
/// field
NamePattern parse_file_name(const std::string& path);

/// The name of each rank's file that is written: the document's `files.path`, in which `{AXIS}` is the rank's
/// coordinate on an axis, `{rank}` its number, `{NAME}` a variable, each with `:0Nd` as in Python; without it
/// rank-00000-of-00004.pt. '/' separates folders.
/// \throws Error kInvalidArgument  a field that is none of these, two ranks with one name, a name that is no file's;
///   kUnsupported  several entries of `files`, or a `writer`.
std::vector<std::string> rank_file_names(const ModelMap& map);

}  // namespace shard
