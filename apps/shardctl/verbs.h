/// \file
/// What the verbs take, refuse and do: the functions of the table in verbs.cpp.
#pragma once

#include "apps/shardctl/verb.h"

namespace shard::app {

int run_inspect(Session& session, const Options& options);
/// split, gather, reshard and convert: one operation; they differ in defaults only (TargetDefaults).
int run_copy(Session& session, const Options& options);
int run_repair(Session& session, const Options& options);
int run_export(Session& session, const Options& options);
int run_verify(Session& session, const Options& options);
int run_diff(Session& session, const Options& options);
int run_digest(Session& session, const Options& options);
int run_cat(Session& session, const Options& options);
int run_map(Session& session, const Options& options);
int run_completion(Session& session, const Options& options);
int run_env(Session& session, const Options& options);
int run_version(Session& session, const Options& options);
/// The one line of --version.
int run_version_line(Session& session);
int run_help(Session& session, const Options& options);

void check_export(const Session& session, Options& options);
void check_diff(const Session& session, Options& options);
/// The last argument is the tensor's name: moves it from the sources to CatOptions.
void check_cat(const Session& session, Options& options);
/// The first words say what to do and with which map: moves them from the sources to MapOptions.
void check_map(const Session& session, Options& options);
void check_completion(const Session& session, Options& options);

void add_inspect(CLI::App& app, Options& options);
void add_repair(CLI::App& app, Options& options);
void add_export(CLI::App& app, Options& options);
void add_verify(CLI::App& app, Options& options);
void add_diff(CLI::App& app, Options& options);
void add_digest(CLI::App& app, Options& options);
void add_cat(CLI::App& app, Options& options);
void add_completion(CLI::App& app, Options& options);

/// "list", "show", "check".
std::vector<std::string_view> map_words();
/// "bash", "zsh", "fish".
std::vector<std::string_view> shell_names();
std::vector<std::string_view> verb_names();

}  // namespace shard::app
