/// \file
/// Completion scripts for shells, generated from the table of verbs and the options.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace shard::app {

/// "bash", "zsh" and "fish".
std::vector<std::string_view> shell_names();

/// A script for the shell to source. It completes verbs, their options, the words that options take, and files.
/// \pre `shell` is one of shell_names().
std::string completion_script(std::string_view shell);

}  // namespace shard::app
