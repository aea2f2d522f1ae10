/// \file
/// Files beside SRC that the command line names, which no output may replace.
#pragma once

#include <string>
#include <vector>

#include "apps/shardctl/session/session.h"

namespace shard::app {

/// Paths of all options that name a file or a folder to read, --config included, and of --log-file. A built-in map is
/// no path. SRC and --hf-ref are not among them, because verbs protect these in different ways.
std::vector<std::string> named_inputs(const Session& session, const Request& options);

}  // namespace shard::app
