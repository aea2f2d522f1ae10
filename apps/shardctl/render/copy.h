/// \file
/// What the writing verbs print: the plan of --dry-run, and the result.
#pragma once

#include "apps/shardctl/render/export_report.h"
#include "apps/shardctl/request/request.h"
#include "apps/shardctl/session/session.h"
#include "libshard/job/copy_job.h"
#include "libshard/repair/salvage.h"

namespace shard::app {

/// What the documents of some verbs say besides.
struct VerbReports {
  const Salvage* salvage = nullptr;        ///< repair: what was lost and repaired.
  const ExportReport* exported = nullptr;  ///< export: what was found and decided.
};

/// The plan on stdout: for people, or `shardctl.plan/1`.
void render_plan(const Session& session, const WriteRequest& write, const std::string& source, const CopyResult& plan,
                 const VerbReports& reports);

/// A line on stderr, or `shardctl.result/1` on stdout.
void render_result(const Session& session, const WriteRequest& write, const std::string& source,
                   const CopyResult& result, const Progress& progress, double seconds, const VerbReports& reports);

/// On stderr what was repaired, and the first few things that were lost, with their number.
void warn_of_losses(const Session& session, const Salvage& salvage);

/// The same for an output that --if-changed left as it is.
void render_unchanged(const Session& session, const WriteRequest& write, const std::string& source,
                      const Manifest& manifest);

}  // namespace shard::app
