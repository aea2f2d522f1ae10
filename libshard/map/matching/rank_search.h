/// \file Finds the per-rank files that a map document names (`files`). Pure.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "libshard/catalog/rank_paths.h"
#include "libshard/map/documents/document.h"
#include "libshard/map/documents/variables.h"

namespace shard {

/// Lists the names in a folder of the source. "" is the source itself. Empty if there is no such folder.
using ListFolder = std::function<std::vector<std::string>(const std::string& folder)>;

/// Finds the files whose names match the templates of `files`. Coordinates come from the names. Sizes of axes that are
/// in no name come from the mesh if `known` can evaluate it, and are otherwise 1.
/// \returns nothing if no file matches any template
/// \throws Error kNotFound         a rank's file is missing; the message names it
/// \throws Error kInvalidArgument  an invalid template; files with several values of one variable; an axis that neither
///   the template nor `writer` contains
/// Cost: linear in the names in the matching folders.
std::optional<RankPaths> find_rank_paths(const MapDocument& document, const MapVariables& known,
                                         const ListFolder& list);

}  // namespace shard
