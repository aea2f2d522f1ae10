/// \file
/// The functions of the table in verbs.cpp: the options, checks and work of the verbs.
#pragma once

#include "apps/shardctl/arguments/verb.h"
#include "apps/shardctl/request/request.h"

namespace shard::app {

int run_inspect(Session& session, const Request& request);
/// Runs split, gather, reshard and convert, which are one operation with different defaults (TargetDefaults).
int run_copy(Session& session, const Request& request);
int run_repair(Session& session, const Request& request);
int run_export(Session& session, const Request& request);
int run_average(Session& session, const Request& request);
int run_verify(Session& session, const Request& request);
int run_diff(Session& session, const Request& request);
int run_digest(Session& session, const Request& request);
int run_cat(Session& session, const Request& request);
int run_map(Session& session, const Request& request);
int run_completion(Session& session, const Request& request);
int run_env(Session& session, const Request& request);
int run_version(Session& session, const Request& request);
/// The line of --version.
int run_version_line(Session& session);
int run_help(Session& session, const Request& request);

void check_export(const Session& session, Request& request);
/// Computes AverageRequest::factors.
void check_average(const Session& session, Request& request);
void check_diff(const Session& session, Request& request);
/// Moves the last argument, the tensor's name, from the sources to CatRequest.
void check_cat(const Session& session, Request& request);
/// Moves the first words, the action and the map, from the sources to MapRequest.
void check_map(const Session& session, Request& request);
void check_completion(const Session& session, Request& request);

/// "list", "show", "check".
std::vector<std::string_view> map_words();

}  // namespace shard::app
