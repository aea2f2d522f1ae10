/// \file
/// How a map names the files of ranks that are written. Pure.
#pragma once

#include <string>
#include <vector>

#include "libshard/map/model_map.h"

namespace shard {

/// The name of each rank's file: the document's `files.path`, in which `{AXIS}` is the rank's coordinate on an axis,
/// `{rank}` its number, `{NAME}` a variable, each with `:0Nd` as in Python; without it rank-00000-of-00004.pt.
/// \throws Error kInvalidArgument  a field that is none of these, two ranks with one name, a name that is no file's;
///   kUnsupported  folders in names.
std::vector<std::string> rank_file_names(const ModelMap& map);

}  // namespace shard
