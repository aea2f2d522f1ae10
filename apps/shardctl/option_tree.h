/// \file
/// The options of each verb as CLI11 holds them, and what they are called. Included by few: CLI11 is large.
#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "apps/shardctl/options.h"
#include "libshard/core/error.h"

namespace shard::app {

/// All options of a verb; of all verbs when `verb` is empty. They fill `options`, which must outlive `app`.
void add_options(CLI::App& app, std::string_view verb, Options& options);
/// The global ones only.
void add_global_options(CLI::App& app, Options& options);
/// What `completion` can make a script for.
inline constexpr std::array<std::string_view, 3> kShells{"bash", "zsh", "fish"};

bool writes(std::string_view verb);             ///< split, gather, reshard, convert.
bool has_target_layout(std::string_view verb);  ///< split, reshard, convert: --layout says the target's.

/// "--ranks", ... of those that help lists.
std::vector<std::string> long_names(const CLI::App& app);
/// Of all verbs.
std::vector<std::string> all_long_names();

template <class List>
bool contains(const List& list, std::string_view word) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

/// CLI11's message as the middle of a line.
std::string lower_first(std::string text);
/// A mistake in the command line.
Error usage(const std::string& message);
/// Something of the contract that this build does not have.
Error absent(std::string_view what);

}  // namespace shard::app
