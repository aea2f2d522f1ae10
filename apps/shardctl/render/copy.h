/// \file
/// Output of the writing verbs: the plan of --dry-run, the result, and the decisions of an export.
#pragma once

#include <string>
#include <vector>

#include "apps/shardctl/request/request.h"
#include "apps/shardctl/session/session.h"
#include "apps/shardctl/text/text_sink.h"
#include "formats/export/model_export.h"
#include "libshard/core/json_writer.h"
#include "libshard/job/copy_job.h"
#include "libshard/repair/salvage.h"

namespace shard::app {

/// Writes the member `export` of a plan or a result.
void write_export(JsonWriter& json, const ExportReport& report);
/// Prints the lines of --dry-run.
void print_export(TextSink& sink, const ExportReport& report);

/// Warnings of an export, as texts for people.
/// A warning if the model has no configuration, or if the adapter has no configuration itself.
std::vector<std::string> warnings_of_reference(bool is_adapter, const FilesFolder& folder);
/// Warnings about files in `folder` that are not copied although a model may need them.
std::vector<std::string> warnings_of_files(const FolderFiles& listed, const std::string& folder);
std::vector<std::string> warnings_of_others(const LeftBehind& left);
/// Warnings about tensors whose dtype --dtype auto does not change.
std::vector<std::string> warnings_of_dtypes(const ExportReport& report);

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
