/// \file
/// What export found and decided, for its documents and for people.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "apps/shardctl/text/text_sink.h"
#include "libshard/core/json_writer.h"

namespace shard::app {

struct ExportReport {
  std::string found;        ///< The source that was taken; files of ranks as a pattern.
  std::string container;    ///< What the model's tensors lie in there; empty: in nothing.
  std::string reference;    ///< The folder that config and tokenizer come from; empty: none.
  bool is_checked = false;  ///< Names and shapes were compared with the reference's.
  std::int64_t renamed = 0;
  std::vector<std::pair<std::string, std::string>>
      renames{};  ///< Source's names and resulting ones: the first few, or with --json all.
  std::int64_t other_tensors = 0, objects = 0;  ///< Left out.
  std::vector<std::string> tied{};              ///< Left out as another tensor stands for them.
  std::vector<std::string> copied{};            ///< Files that are copied, by their names in the output.
  std::vector<std::string> warnings{};          ///< About tensors that --dtype auto leaves as they are.
  std::string stem{};  ///< How names of files of weights begin; empty: as the format usually calls them.
  std::vector<std::string> read_paths{};  ///< Files that are read beside the source; no output may replace them.
};

/// The member `export` of a plan or a result.
void write_export(JsonWriter& json, const ExportReport& report);
/// The lines of --dry-run.
void print_export(TextSink& sink, const ExportReport& report);

}  // namespace shard::app
