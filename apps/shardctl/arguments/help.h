/// \file
/// Texts of help that follow from the table of verbs, without options. Help and man pages share them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "apps/shardctl/arguments/verb.h"

namespace shard::app {

/// What the program is, as one sentence; how it is called; examples as lines that begin with two spaces.
std::string_view program_summary();
std::string_view program_usage();
std::string_view program_examples();

struct ExitCode {
  int code;
  std::string_view meaning;
};
/// Those that `verb` can end with; of all verbs where it is null.
std::vector<ExitCode> exit_codes(const Verb* verb);

/// How options are set in the environment.
std::string_view environment_help();

/// The text of `shardctl --help`, without the global options.
std::string general_help();
/// Two lines and the verbs: what a bare `shardctl` prints.
std::string short_help();
/// "Exit codes:" and the table of exit_codes().
std::string exit_codes_help(const Verb* verb);

}  // namespace shard::app
