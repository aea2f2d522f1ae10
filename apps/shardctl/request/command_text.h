/// \file
/// Words of a command line as text: lines for hints that a shell takes as they are.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace shard::app {

/// The command line with `added` at its end, quoted for a shell. An option of `added` that has one value replaces the
/// one that was given; `added` may be empty.
std::string repeat_command(const std::vector<std::string>& arguments, const std::string& added);

/// A word in quotes, if a shell would change it.
std::string shell_quoted(const std::string& word);

/// A pattern for --include, --exclude and --cast that matches only this name.
std::string glob_of_name(std::string_view name);

}  // namespace shard::app
