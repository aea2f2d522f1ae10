/// \file
/// From argv, the environment and a configuration file to Options.
///
/// An option that is not on the command line is looked up in the environment (SHARDCTL_ and its long name in capitals,
/// dashes as underscores), then in the file that --config names: keys are long names, under the section of a verb or
/// above the first section.
#pragma once

#include <string>
#include <vector>

#include "apps/shardctl/options.h"
#include "apps/shardctl/session.h"

namespace shard::app {

/// Fills `options` and `session.common`. What is known about --json, --color and --quiet is filled in before anything
/// can fail, so that the failure is reported as asked for. \throws Error kInvalidArgument  usage, with the nearest word
/// where one is near; kUnsupported  a verb or option that
///   this build does not have.
void parse_command_line(const std::vector<std::string>& arguments, Session& session, Options& options);

/// The command line with `added` at its end, quoted for a shell: for hints. An option of `added` that has one value
/// replaces the one that was given; `added` may be empty.
std::string repeat_command(const std::vector<std::string>& arguments, const std::string& added);
/// A word as a shell takes it.
std::string shell_quoted(const std::string& word);

}  // namespace shard::app
