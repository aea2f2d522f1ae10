/// \file
/// Command lines as text, quoted for hints that users can paste into a shell.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace shard::app {

/// The command line with `added` at its end, quoted for a shell. An option in `added` that takes one value replaces the
/// one on the command line. `added` may be empty.
std::string repeat_command(const std::vector<std::string>& arguments, const std::string& added);

/// The word, in quotes if a shell would change it.
std::string shell_quoted(const std::string& word);

}  // namespace shard::app
