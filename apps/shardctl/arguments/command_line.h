/// \file
/// From argv, the environment and a configuration file to a Request.
///
/// An option that is not on the command line is looked up in the environment (SHARDCTL_ and its long name in capitals,
/// dashes as underscores), then in the file that --config names: keys are long names, under the section of a verb or
/// above the first section.
#pragma once

#include <string>
#include <vector>

#include "apps/shardctl/request/request.h"
#include "apps/shardctl/session/session.h"

namespace shard::app {

/// Fills `request`, `session.common` and `session.command`. What is known about --json, --color and --quiet is filled
/// in before anything can fail, so that the failure is reported as asked for. \throws Error kInvalidArgument  usage,
/// with the nearest word where one is near; kUnsupported  a verb or option that
///   this build does not have.
void parse_command_line(const std::vector<std::string>& arguments, Session& session, Request& request);

}  // namespace shard::app
