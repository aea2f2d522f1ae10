/// \file
/// Finds the files of ranks that a map document names (`files`). Pure.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "libshard/catalog/rank_paths.h"
#include "libshard/map/documents/document.h"
#include "libshard/map/documents/variables.h"

namespace shard {

/// The names in a folder of the source, "" being the source itself; none where there is no such folder.
using ListFolder = std::function<std::vector<std::string>(const std::string& folder)>;

/// The files whose names the templates of `files` fit. Coordinates come from the names; sizes of axes that no name
/// states from the mesh, as far as `known` evaluates it, else they are 1.
/// \returns nothing where no file fits any template
/// \throws Error kNotFound         a rank's file is missing, by name
/// \throws Error kInvalidArgument  a template that is not one; files with several values of one variable; an axis that
///   neither the template nor `writer` places
/// Cost: the names in the folders that fit.
std::optional<RankPaths> find_rank_paths(const MapDocument& document, const MapVariables& known,
                                         const ListFolder& list);

}  // namespace shard
