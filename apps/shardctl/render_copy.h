/// \file
/// What the writing verbs print: the plan of --dry-run, and the result.
#pragma once

#include "apps/shardctl/session.h"
#include "libshard/job/copy_job.h"

namespace shard::app {

/// The plan on stdout: for people, or `shardctl.plan/1`.
void render_plan(const Session& session, const Options& options, const std::string& source, const CopyResult& plan);

/// A line on stderr, or `shardctl.result/1` on stdout.
void render_result(const Session& session, const Options& options, const std::string& source, const CopyResult& result,
                   const Progress& progress, double seconds);

/// The same for an output that --if-changed left as it is.
void render_unchanged(const Session& session, const Options& options, const Manifest& manifest);

}  // namespace shard::app
