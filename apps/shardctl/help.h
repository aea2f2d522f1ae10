/// \file
/// The verbs of this build and their help texts.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace shard::app {

struct VerbHelp {
  std::string_view name;
  std::string_view usage;     ///< After "shardctl ".
  std::string_view summary;   ///< One line of the list of verbs.
  std::string_view details;   ///< A paragraph; may be empty.
  std::string_view examples;  ///< Lines.
};

/// In the order in which help lists them.
std::span<const VerbHelp> verbs();
/// The verb of that name, or null.
const VerbHelp* find_verb(std::string_view name);

/// The text of `shardctl --help`, without the global options.
std::string general_help();
/// Two lines and the verbs: what a bare `shardctl` prints.
std::string short_help();
/// "Exit codes:" and the table of those that `verb` can end with.
std::string exit_codes_help(std::string_view verb);

}  // namespace shard::app
