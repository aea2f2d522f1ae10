/// \file
/// What a writing verb leaves behind, as warnings.
#pragma once

#include <string>
#include <vector>

#include "apps/shardctl/source.h"
#include "libshard/catalog/target.h"

namespace shard::app {

/// Lines for `warnings`: aliases, attributes and texts of the source's metadata that the target cannot hold, and other
/// files of the source's folder, which nothing else mentions.
std::vector<std::string> loss_warnings(const Session& session, const SelectionOptions& options,
                                       const OpenSource& source, const FormatTraits& traits);

/// A line about the files of the source's folder that an export neither reads nor copies; none if there are none.
std::vector<std::string> left_behind(const Session& session, const OpenSource& source,
                                     const std::vector<std::string>& copied);

}  // namespace shard::app
