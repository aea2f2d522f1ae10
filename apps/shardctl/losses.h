/// \file
/// What a writing verb would leave behind: refused where it is content, said where it is not.
#pragma once

#include <string>
#include <vector>

#include "apps/shardctl/source.h"
#include "libshard/catalog/target.h"

namespace shard::app {

/// "'a', 'b', 'c' and 4 more"
std::string first_few(const std::vector<std::string>& names);

/// \throws Error kUnsupported  the target cannot hold objects, and some are chosen; the hint is the line to run.
void refuse_objects(const Catalog& catalog, const Options& options, const FormatTraits& traits);

/// Lines for `warnings`: ties between tensors and texts of the source's metadata that the target has no place for, and
/// other files of the source's folder, of which nothing else tells.
std::vector<std::string> loss_warnings(const Session& session, const Options& options, const OpenSource& source,
                                       const FormatTraits& traits);

}  // namespace shard::app
