/// \file
/// Texts of help that follow from the table of verbs, without options.
#pragma once

#include <string>

#include "apps/shardctl/verb.h"

namespace shard::app {

/// The text of `shardctl --help`, without the global options.
std::string general_help();
/// Two lines and the verbs: what a bare `shardctl` prints.
std::string short_help();
/// "Exit codes:" and the table of those that `verb` can end with; of all verbs where it is null.
std::string exit_codes_help(const Verb* verb);

}  // namespace shard::app
