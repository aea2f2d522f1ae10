/// \file
/// What the writing verbs print: the plan of --dry-run, and the result.
#pragma once

#include "apps/shardctl/session.h"
#include "libshard/job/copy_job.h"
#include "libshard/repair/salvage.h"

namespace shard::app {

/// The plan on stdout: for people, or `shardctl.plan/1`. With `salvage` the document says what was lost and repaired.
void render_plan(const Session& session, const Options& options, const std::string& source, const CopyResult& plan,
                 const Salvage* salvage);

/// A line on stderr, or `shardctl.result/1` on stdout. `salvage`: see render_plan.
void render_result(const Session& session, const Options& options, const std::string& source, const CopyResult& result,
                   const Progress& progress, double seconds, const Salvage* salvage);

/// On stderr what was repaired, and the first few things that were lost, with their number.
void warn_of_losses(const Session& session, const Salvage& salvage);

/// The same for an output that --if-changed left as it is.
void render_unchanged(const Session& session, const Options& options, const Manifest& manifest);

}  // namespace shard::app
