/// \file
/// The options of each verb as CLI11 holds them. Included by few: CLI11 is large.
#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "apps/shardctl/verb.h"

namespace shard::app {

/// All options of a verb. They fill `common` and `options`, which must outlive `app`.
void add_options(CLI::App& app, const Verb& verb, CommonOptions& common, Options& options);
/// Those of all verbs, each once.
void add_all_options(CLI::App& app, CommonOptions& common, Options& options);
/// Those that every verb takes, and only those.
void add_global_options(CLI::App& app, CommonOptions& common, Options& options);

/// Whether the option is one of those that say how to cut the target: one of them may be given.
bool chooses_layout(const CLI::Option& option);

/// "--ranks", ... of those that help lists.
std::vector<std::string> long_names(const CLI::App& app);
/// The options of all verbs.
std::vector<std::string> all_long_names();

template <class List>
bool contains(const List& list, std::string_view word) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

/// CLI11's message as the middle of a line.
std::string lower_first(std::string text);

}  // namespace shard::app
