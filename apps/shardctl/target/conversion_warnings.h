/// \file
/// What a writing verb leaves behind, as warnings.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "apps/shardctl/source/source.h"
#include "libshard/catalog/targets/target.h"

namespace shard::app {

/// Lines for `warnings`: aliases, attributes and texts of the source's metadata that the target cannot hold, and other
/// files of the source's folder, which nothing else mentions.
std::vector<std::string> loss_warnings(const Session& session, const SelectionOptions& options,
                                       const OpenSource& source, const FormatTraits& traits);

/// The visible entries of the source's folder that are none of `read`, paths below that folder, nor hold one of them,
/// sorted. Indexes and other files that only describe the checkpoint are left out. Empty for a source that is no
/// folder, or that is a folder above the checkpoint's.
std::vector<std::string> names_beside(const Session& session, const OpenSource& source,
                                      const std::set<std::string>& read);

}  // namespace shard::app
