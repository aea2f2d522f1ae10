#include "apps/shardctl/render/export_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <span>

#include "apps/shardctl/render/json_parts.h"
#include "apps/shardctl/request/request.h"

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

}  // namespace shard::app
