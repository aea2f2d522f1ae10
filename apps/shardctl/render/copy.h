/// \file
/// Output of the writing verbs: the plan of --dry-run, and the result.
#pragma once

#include "apps/shardctl/render/export_report.h"
#include "apps/shardctl/request/request.h"
#include "apps/shardctl/session/session.h"
#include "libshard/job/copy_job.h"
#include "libshard/repair/salvage.h"

namespace shard::app {

/// Extra content for the documents of some verbs.
struct VerbReports {
  const Salvage* salvage = nullptr;        ///< repair: lost and repaired tensors.
  const ExportReport* exported = nullptr;  ///< export: findings and decisions.
};

/// Prints the plan on stdout, for people or as `shardctl.plan/1`.
void render_plan(const Session& session, const WriteRequest& write, const std::string& source, const CopyResult& plan,
                 const VerbReports& reports);

/// Prints the result: a line on stderr, or `shardctl.result/1` on stdout.
void render_result(const Session& session, const WriteRequest& write, const std::string& source,
                   const CopyResult& result, const Progress& progress, double seconds, const VerbReports& reports);

/// Lists on stderr the repairs and the first few losses, with their number.
void warn_of_losses(const Session& session, const Salvage& salvage);

/// Prints the result for an output that --if-changed left as it was.
void render_unchanged(const Session& session, const WriteRequest& write, const std::string& source,
                      const Manifest& manifest);

}  // namespace shard::app
