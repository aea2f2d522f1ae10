/// \file
/// The verbs. Each takes parsed options and returns an exit code; failures are exceptions.
#pragma once

#include "apps/shardctl/session.h"

namespace shard::app {

int run_inspect(Session& session, const Options& options);
/// split, gather, reshard and convert: one operation; they differ in defaults only (see target_choice.h).
int run_copy(Session& session, const Options& options);
int run_diff(Session& session, const Options& options);
int run_digest(Session& session, const Options& options);
int run_cat(Session& session, const Options& options);
int run_completion(Session& session, const Options& options);
int run_env(Session& session, const Options& options);
int run_version(Session& session, const Options& options);
/// The one line of --version.
int run_version_line(Session& session);
int run_help(Session& session, const Options& options);

}  // namespace shard::app
