/// \file
/// The whole program without the process around it: tests call it with streams and a file system of their own.
#pragma once

#include <string>
#include <vector>

#include "apps/shardctl/session/session.h"

namespace shard::app {

/// Runs one command line (without the program's name). Never throws.
/// \returns the exit code.
int run(const std::vector<std::string>& arguments, Session& session);

}  // namespace shard::app
