/// \file
/// Texts of help, from the table of verbs and the tree of options. Man pages share some of them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "apps/shardctl/arguments/verb.h"

namespace shard::app {

/// The program in one sentence; its usage; examples as lines that begin with two spaces.
std::string_view program_summary();
std::string_view program_usage();
std::string_view program_examples();

struct ExitCode {
  int code;
  std::string_view meaning;
};
/// The codes that `verb` can end with; those of all verbs if it is null.
std::vector<ExitCode> exit_codes(const Verb* verb);

/// How options are set in the environment.
std::string_view environment_help();

/// The text of `shardctl help VERB`, or of --help if `verb` is null. Of the options that many verbs share it describes
/// the common ones and names the others; `all_options` describes all of them.
std::string help_text(const Verb* verb, bool all_options);
/// Two lines and the verbs: the text of a bare `shardctl`.
std::string short_help();

}  // namespace shard::app
