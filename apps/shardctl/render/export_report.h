/// \file
/// The decisions of an export, in documents and for people.
#pragma once

#include <string>
#include <vector>

#include "apps/shardctl/text/text_sink.h"
#include "formats/export/model_export.h"
#include "libshard/core/json_writer.h"

namespace shard::app {

/// Writes the member `export` of a plan or a result.
void write_export(JsonWriter& json, const ExportReport& report);
/// Prints the lines of --dry-run.
void print_export(TextSink& sink, const ExportReport& report);

/// Warnings of an export, as texts for people.
/// The reader's own warnings, without the one about other files in the folder.
std::vector<std::string> warnings_of_source(const std::vector<std::string>& warnings);
/// A warning if the model has no configuration, or if the adapter has no configuration itself.
std::vector<std::string> warnings_of_reference(bool is_adapter, const FilesFolder& folder);
/// Warnings about files in `folder` that are not copied although a model may need them.
std::vector<std::string> warnings_of_files(const FolderFiles& listed, const std::string& folder);
std::vector<std::string> warnings_of_others(const LeftBehind& left);
/// Warnings about tensors whose dtype --dtype auto does not change.
std::vector<std::string> warnings_of_dtypes(const ExportReport& report);

}  // namespace shard::app
