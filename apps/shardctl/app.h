/// \file
/// The whole program without its process. Tests call it with their own streams and file system.
#pragma once

#include <string>
#include <vector>

#include "apps/shardctl/session/session.h"

namespace shard::app {

/// Runs one command line (without the program's name). Never throws.
/// \returns the exit code.
int run(const std::vector<std::string>& arguments, Session& session);

}  // namespace shard::app
