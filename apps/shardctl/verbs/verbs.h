/// \file
/// What the verbs take, refuse and do: the functions of the table in verbs.cpp.
#pragma once

#include "apps/shardctl/arguments/verb.h"
#include "apps/shardctl/request/request.h"

namespace shard::app {

int run_inspect(Session& session, const Request& request);
/// split, gather, reshard and convert: one operation; they differ in defaults only (TargetDefaults).
int run_copy(Session& session, const Request& request);
int run_repair(Session& session, const Request& request);
int run_export(Session& session, const Request& request);
int run_verify(Session& session, const Request& request);
int run_diff(Session& session, const Request& request);
int run_digest(Session& session, const Request& request);
int run_cat(Session& session, const Request& request);
int run_map(Session& session, const Request& request);
int run_completion(Session& session, const Request& request);
int run_env(Session& session, const Request& request);
int run_version(Session& session, const Request& request);
/// The one line of --version.
int run_version_line(Session& session);
int run_help(Session& session, const Request& request);

void check_export(const Session& session, Request& request);
void check_diff(const Session& session, Request& request);
/// The last argument is the tensor's name: moves it from the sources to CatRequest.
void check_cat(const Session& session, Request& request);
/// The first words say what to do and with which map: moves them from the sources to MapRequest.
void check_map(const Session& session, Request& request);
void check_completion(const Session& session, Request& request);

/// "list", "show", "check".
std::vector<std::string_view> map_words();

}  // namespace shard::app
