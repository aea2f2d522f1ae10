#include "apps/shardctl/render_verify.h"

#include <fmt/format.h>

#include <algorithm>

#include "apps/shardctl/text_sink.h"

namespace shard::app {
namespace {

/// The facts of a finding in one line.
std::string detail_of(const Error& error) {
  std::string text = error.what();
  if (!error.expected().empty() && !error.found().empty()) {
    text += fmt::format(" (expected {}, found {})", error.expected(), error.found());
  }
  if (!error.why().empty()) text += ": " + error.why();
  return text;
}

std::string line_of(const Finding& finding) {
  const Error& error = finding.error;
  std::string line = fmt::format("{} {}", finding.is_warning ? "warning" : "error", kind_name(*error.kind()));
  if (!error.file().empty()) line += " " + error.file();
  if (!error.tensor().empty()) line += " '" + error.tensor() + "'";
  return line + ": " + detail_of(error);
}

std::string verdict(const VerifyReport& report) {
  const auto warnings = std::ranges::count_if(report.findings, &Finding::is_warning);
  const auto errors = std::ssize(report.findings) - warnings + static_cast<std::ptrdiff_t>(report.left_out);
  const VerifyCounts& counts = report.counts;
  std::string text = fmt::format("{}: ", report.label);
  text += report.ok() ? "good" : fmt::format("damaged, {}", plural(errors, "error"));
  if (warnings > 0) text += fmt::format(", {}", plural(warnings, "warning"));
  text +=
      fmt::format(". Checked {} of {}: {}, {}, {}", plural(counts.files, "file"), human_bytes(counts.bytes),
                  plural(counts.tensors, "tensor"), plural(counts.chunks, "chunk"), plural(counts.crc32s, "CRC-32"));
  if (counts.manifest_blocks > 0) text += fmt::format(", {} of the manifest", plural(counts.manifest_blocks, "block"));
  const bool is_unproved = report.ok() && counts.crc32s == 0 && counts.manifest_blocks == 0;
  return text + (is_unproved ? ". No checksums were found: changed elements cannot be seen" : "");
}

}  // namespace

bool VerifyReport::ok() const { return left_out == 0 && std::ranges::all_of(findings, &Finding::is_warning); }

void render_text(const Session& session, const VerifyReport& report) {
  TextSink sink(session.out);
  for (const Finding& finding : report.findings) sink.line(line_of(finding));
  if (report.left_out > 0) sink.line(fmt::format("... {} more findings", report.left_out));
  sink.line(verdict(report));
}

void render_json(JsonWriter& json, const VerifyReport& report) {
  json.begin_object();
  json.key("schema"), json.string("shardctl.verify/1");
  json.key("source"), json.string(report.label);
  json.key("ok"), json.boolean(report.ok());
  json.key("findings"), json.begin_array();
  for (const Finding& finding : report.findings) {
    const Error& error = finding.error;
    json.line(2);
    json.begin_object();
    json.key("severity"), json.string(finding.is_warning ? "warning" : "error");
    json.key("kind"), json.string(kind_name(*error.kind()));
    json.key("file"), json.string_or_null(error.file());
    json.key("tensor"), json.string_or_null(error.tensor());
    json.key("detail"), json.string(detail_of(error));
    json.end_object();
  }
  json.end_array();
  json.line(1);
  json.key("checked"), json.begin_object();
  json.key("files"), json.number(report.counts.files);
  json.key("bytes"), json.number(report.counts.bytes);
  json.key("tensors"), json.number(report.counts.tensors);
  json.key("chunks"), json.number(report.counts.chunks);
  json.key("crc32"), json.number(report.counts.crc32s);
  json.key("manifest"), json.number(report.counts.manifest_blocks);
  json.end_object();
  json.line(1);
  json.key("globals"), json.begin_array();
  for (const std::string& name : report.globals) json.string(name);
  json.end_array();
  json.key("findings_left_out"), json.number(report.left_out);
  json.end_object();
  json.end_line();
}

}  // namespace shard::app
