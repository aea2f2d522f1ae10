/// \file
/// The options of each verb as CLI11 objects. Few sources include this header, because CLI11 is large.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "apps/shardctl/arguments/verb.h"
#include "apps/shardctl/request/request.h"

namespace shard::app {

/// Adds all options of a verb. They fill `common` and `request`, which must outlive `app`.
void add_options(CLI::App& app, const Verb& verb, CommonOptions& common, Request& request);
/// Adds the options of all verbs, without duplicates.
void add_all_options(CLI::App& app, CommonOptions& common, Request& request);
/// Adds only the options that every verb takes.
void add_global_options(CLI::App& app, CommonOptions& common, Request& request);

/// Options that no command line fills, for texts about them: those of a verb, or those that a function above adds.
struct OptionTree {
  explicit OptionTree(const Verb& verb) { add_options(app, verb, common, ignored); }
  explicit OptionTree(decltype(add_all_options)& add) {
    app.set_help_flag();
    add(app, common, ignored);
  }

  CLI::App app;
  CommonOptions common;
  Request ignored;
};

/// The options that only one verb has; see Verb::add_options.
void add_help(CLI::App& app, Request& request);
void add_inspect(CLI::App& app, Request& request);
void add_repair(CLI::App& app, Request& request);
void add_export(CLI::App& app, Request& request);
void add_average(CLI::App& app, Request& request);
void add_verify(CLI::App& app, Request& request);
void add_diff(CLI::App& app, Request& request);
void add_digest(CLI::App& app, Request& request);
void add_cat(CLI::App& app, Request& request);
void add_completion(CLI::App& app, Request& request);

/// Whether the option defines how the target is sharded. A command may have only one of these options.
bool chooses_layout(const CLI::Option& option);
/// Whether the ranks of a job may have different values, because the option changes neither the result nor a step of
/// the job.
bool concerns_one_process(const CLI::Option& option);

/// "--ranks" and the other long names that help lists.
std::vector<std::string> long_names(const CLI::App& app);
/// The long names of the options of all verbs.
std::vector<std::string> all_long_names();

/// CLI11's message with a small first letter, to follow other words in a line.
std::string lower_first(std::string text);

}  // namespace shard::app
