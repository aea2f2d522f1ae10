/// \file
/// Converts argv, the environment and a configuration file into a Request.
///
/// The value of an option comes from the command line, or else from the environment (SHARDCTL_ and the long name in
/// capitals, with underscores for dashes), or else from the file of --config. Keys in this file are long names. They
/// are either above the first section or in the section of a verb.
#pragma once

#include <string>
#include <vector>

#include "apps/shardctl/request/request.h"
#include "apps/shardctl/session/session.h"

namespace shard::app {

/// Fills `request`, `session.common` and `session.command`. Sets --json before anything can fail, so that the failure
/// is a document if one is requested. \throws Error kInvalidArgument  usage, with the most similar word if there is
/// one; kUnsupported  this build lacks
///   the verb or the option
void parse_command_line(const std::vector<std::string>& arguments, Session& session, Request& request);

}  // namespace shard::app
