/// \file
/// Texts of help, generated from the table of verbs and the options. Man pages share some of them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "apps/shardctl/arguments/verb.h"

namespace shard::app {

/// The program in one sentence, its usage, and examples as lines that begin with two spaces.
std::string_view program_summary();
std::string_view program_usage();
std::string_view program_examples();

struct ExitCode {
  int code;
  std::string_view meaning;
};
/// The exit codes of `verb`, or of all verbs if it is null.
std::vector<ExitCode> exit_codes(const Verb* verb);

/// Describes how environment variables set options.
std::string_view environment_help();

/// The text of `shardctl help VERB`, or of --help if `verb` is null. It describes the common ones of the options that
/// many verbs share and only names the others; `all_options` describes all of them.
std::string help_text(const Verb* verb, bool all_options);
/// The text of a bare `shardctl`: two lines and the verbs.
std::string short_help();

}  // namespace shard::app
