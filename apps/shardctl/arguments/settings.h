/// \file
/// Options that are not on the command line: from the environment, then from the file of --config.
#pragma once

#include "apps/shardctl/arguments/option_tree.h"
#include "apps/shardctl/session/session.h"

namespace shard::app {

/// SHARDCTL_ and an option's long name in capitals: "dry-run" is SHARDCTL_DRY_RUN.
std::string environment_name(std::string_view option);

/// Fills options of `app` that have no value yet from SHARDCTL_* variables. Not --help and --version: SHARDCTL_VERSION
/// may well be a version in somebody's build scripts. A layout on the command line hides those of the environment.
/// \throws Error kInvalidArgument  a bad value, naming the variable.
void apply_environment(CLI::App& app, const Session& session);

/// The same from the file of --config, where there is one: keys above the first section, and those of the section named
/// like the verb. \throws Error kNotFound; kInvalidArgument  an unknown key or a bad value, naming it.
void apply_configuration(CLI::App& app, const Session& session, const Verb* verb);

}  // namespace shard::app
