#include "apps/shardctl/render/export_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <span>

#include "apps/shardctl/render/json_parts.h"
#include "apps/shardctl/request/request.h"
#include "formats/parts/hf_index/folder_names.h"
#include "libshard/core/short_text.h"

namespace shard::app {
namespace {

constexpr std::size_t kShownRenames = 4;

}  // namespace

void write_export(JsonWriter& json, const ExportReport& report) {
  json.line(1);
  json.key("export");
  json.begin_object();
  json.key("found"), json.string(report.found);
  json.key("container"), json.string_or_null(report.container);
  json.key("reference"), json.string_or_null(report.reference);
  json.key("checked"), json.boolean(report.is_checked);
  json.key("renamed"), json.number(report.renamed);
  json.key("renames");
  json.begin_array();
  for (const auto& [from, to] : report.renames) {
    json.line(2);
    json.begin_object();
    json.key("from"), json.string(from);
    json.key("to"), json.string(to);
    json.end_object();
  }
  json.end_array();
  json.key("tensors_left_out"), json.number(report.other_tensors);
  json.key("objects_left_out"), json.number(report.objects);
  write_texts(json, "tied", report.tied);
  write_texts(json, "copied", report.copied);
  json.end_object();
}

void print_export(TextSink& sink, const ExportReport& report) {
  sink.line(fmt::format("source      {}{}", report.found,
                        report.container.empty() ? "" : fmt::format(", the tensors in '{}'", report.container)));
  sink.line(fmt::format("reference   {}", report.reference.empty() ? "none" : report.reference));
  sink.line(fmt::format("renamed     {}", plural(report.renamed, "tensor")));
  for (const auto& [from, to] : std::span(report.renames).first(std::min(report.renames.size(), kShownRenames))) {
    sink.line(fmt::format("  {} -> {}", from, to));
  }
  sink.line(fmt::format("skipped     {} of other states, {}{}", plural(report.other_tensors, "tensor"),
                        plural(report.objects, "object"),
                        report.tied.empty() ? "" : fmt::format("; tied: {}", fmt::join(report.tied, ", "))));
}

std::vector<std::string> warnings_of_source(const std::vector<std::string>& warnings) {
  std::vector<std::string> kept;
  for (const std::string& warning : warnings) {
    if (!hf_index::is_others_warning(warning)) kept.push_back(warning);
  }
  return kept;
}

std::vector<std::string> warnings_of_reference(bool is_adapter, const FilesFolder& folder) {
  if (!folder.path.empty()) return {};
  if (is_adapter) {
    return {
        "no adapter_config.json beside the source, but PEFT needs one: copy the file that the training saved into the "
        "output, or pass its folder with --hf-ref DIR"};
  }
  return {
      "found no config.json near the source, so the output has no config and no tokenizer; pass their folder with "
      "--hf-ref DIR"};
}

std::vector<std::string> warnings_of_files(const FolderFiles& listed, const std::string& folder) {
  std::vector<std::string> warnings;
  if (!listed.odd_names.empty()) {
    warnings.push_back(
        fmt::format("files with unusual characters in their names are not copied: {}", first_names(listed.odd_names)));
  }
  if (!listed.code_above.empty()) {
    warnings.push_back(fmt::format(
        "Python modules of the folder above the source are not copied: {}; to copy them, name the folder: --hf-ref {}",
        first_names(listed.code_above), folder));
  }
  if (!listed.module_weights.empty()) {
    warnings.push_back(
        fmt::format("weights of further modules are not copied from --hf-ref: {}", first_names(listed.module_weights)));
  }
  return warnings;
}

std::vector<std::string> warnings_of_others(const LeftBehind& left) {
  std::vector<std::string> warnings;
  if (!left.weights.empty()) {
    warnings.push_back(fmt::format("skipped other weights of the folder: {}; name a file itself to export it",
                                   first_names(left.weights)));
  }
  for (const std::vector<std::string>& others : left.others) warnings.push_back(hf_index::others_warning(others));
  return warnings;
}

std::vector<std::string> warnings_of_dtypes(const ExportReport& report) {
  std::vector<std::string> warnings;
  if (!report.left_by_auto) return warnings;
  const LeftByAuto& left = *report.left_by_auto;
  const auto counted = [](const FirstNames& few) { return static_cast<std::int64_t>(few.count()); };
  if (left.modules.count() > 0) {
    warnings.push_back(fmt::format("--dtype auto leaves {} of {} as they are: {}",
                                   plural(left.quantized_tensors, "tensor"),
                                   plural(counted(left.modules), "quantized module"), left.modules.text()));
  }
  if (left.scaled.count() > 0) {
    warnings.push_back(fmt::format("--dtype auto leaves {} of {} as they are: {}",
                                   plural(counted(left.scaled), "tensor"), "dtypes that need scales",
                                   left.scaled.text()));
  }
  if (left.wider.count() > 0) {
    warnings.push_back(fmt::format("{} a wider dtype than {}, as the model does: {}",
                                   plural(counted(left.wider), "tensor keeps", "tensors keep"), left.wanted,
                                   left.wider.text()));
  }
  return warnings;
}

}  // namespace shard::app
