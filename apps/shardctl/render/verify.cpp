#include "apps/shardctl/render/verify.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string_view>

#include "apps/shardctl/text/text_sink.h"
#include "apps/shardctl/text/units.h"
#include "libshard/core/first_names.h"
#include "libshard/core/plural.h"

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

/// Contract of `shardctl.verify/1`: what is not read is a warning there, with `not_read` beside it.
std::string_view severity_name(const Finding& finding) { return finding.is_error() ? "error" : "warning"; }

std::string line_of(const Finding& finding) {
  const Error& error = finding.error;
  std::string line = fmt::format("{} {}", severity_name(finding), kind_name(*error.kind()));
  if (!error.file().empty()) line += " " + error.file();
  if (!error.tensor().empty()) line += " '" + error.tensor() + "'";
  return line + ": " + detail_of(error);
}

/// What was not read, and why.
struct Unread {
  std::set<std::string> tensors, objects, files;
  std::set<std::string> classes;  ///< Or kinds of tensors and files, where no class is the reason.
};

Unread unread_of(const VerifyReport& report) {
  Unread unread;
  std::set<std::string_view> tensors;
  if (report.catalog != nullptr) {
    for (const Tensor& tensor : report.catalog->tensors) tensors.insert(tensor.name);
  }
  for (const Finding& finding : report.findings) {
    if (finding.severity != Severity::kUnread) continue;
    const Error& error = finding.error;
    unread.classes.insert(error.found().empty() ? error.what() : error.found());
    if (error.tensor().empty()) {
      unread.files.insert(error.file());
    } else {
      (tensors.contains(error.tensor()) ? unread.tensors : unread.objects).insert(error.tensor());
    }
  }
  return unread;
}

/// "4 tensors and 1 object not read (class a.B)"; empty if everything was read.
std::string unread_text(const Unread& unread) {
  std::vector<std::string> counted;
  const auto count = [&](const std::set<std::string>& names, std::string_view one) {
    if (!names.empty()) counted.push_back(plural(std::ssize(names), one));
  };
  count(unread.tensors, "tensor");
  count(unread.objects, "object");
  count(unread.files, "file");
  if (counted.empty()) return {};
  const bool is_one = unread.classes.size() == 1;
  return fmt::format("{} not read ({} {})", fmt::join(counted, " and "), is_one ? "class" : "classes",
                     first_names(unread.classes));
}

/// A line for each class, with the first few names.
void list_unread(TextSink& sink, const VerifyReport& report) {
  std::map<std::string, FirstNames> by_reason;
  for (const Finding& finding : report.findings) {
    if (finding.severity != Severity::kUnread) continue;
    const Error& error = finding.error;
    const std::string reason = error.found().empty() ? detail_of(error) : error.found();
    by_reason[reason].add(error.tensor().empty() ? error.file() : error.tensor());
  }
  for (const auto& [reason, names] : by_reason) sink.line(fmt::format("not read ({}): {}", reason, names.text()));
}

std::string verdict(const VerifyReport& report) {
  const auto count = [&](Severity severity) {
    return std::ranges::count(report.findings, severity, &Finding::severity);
  };
  const auto warnings = count(Severity::kWarning);
  const auto errors = count(Severity::kError) + (report.ok() ? 0 : static_cast<std::ptrdiff_t>(report.left_out));
  const VerifyCounts& counts = report.counts;
  std::string text = fmt::format("{}: ", report.label);
  text += report.ok() ? "good" : fmt::format("damaged, {}", plural(errors, "error"));
  if (warnings > 0) text += fmt::format(", {}", plural(warnings, "warning"));
  if (const std::string unread = unread_text(unread_of(report)); !unread.empty()) text += ", " + unread;
  text +=
      fmt::format(". Checked {} of {}: {}, {}, {}", plural(counts.files, "file"), human_bytes(counts.bytes),
                  plural(counts.tensors, "tensor"), plural(counts.chunks, "chunk"), plural(counts.crc32s, "CRC-32"));
  if (counts.manifest_blocks > 0) text += fmt::format(", {} of the manifest", plural(counts.manifest_blocks, "block"));
  const bool is_unproved = report.ok() && counts.crc32s == 0 && counts.manifest_blocks == 0;
  return text + (is_unproved ? ". No checksums found: changed values cannot be detected" : "");
}

void write_unread(JsonWriter& json, const Unread& unread) {
  json.line(1);
  json.key("not_read"), json.begin_object();
  json.key("tensors"), json.number(unread.tensors.size());
  json.key("objects"), json.number(unread.objects.size());
  json.key("files"), json.number(unread.files.size());
  json.key("classes"), json.begin_array();
  for (const std::string& name : unread.classes) json.string(name);
  json.end_array();
  json.end_object();
}

/// The first few names, those of weights and folders before others.
std::string listed(std::vector<std::string> names) {
  constexpr std::array<std::string_view, 14> kWeights{".bin",  ".ckpt",  ".distcp",      ".gguf",   ".h5",
                                                      ".hdf5", ".keras", ".npz",         ".onnx",   ".ot",
                                                      ".pt",   ".pth",   ".safetensors", ".msgpack"};
  const auto is_first = [&](const std::string& name) {
    return name.ends_with('/') ||
           std::ranges::any_of(kWeights, [&](std::string_view suffix) { return name.ends_with(suffix); });
  };
  std::ranges::stable_partition(names, is_first);
  return first_names(names);
}

}  // namespace

void render_text(const Session& session, const VerifyReport& report) {
  TextSink sink(session.out);
  for (const Finding& finding : report.findings) {
    if (finding.severity != Severity::kUnread) sink.line(line_of(finding));
  }
  list_unread(sink, report);
  if (report.left_out > 0) sink.line(fmt::format("... {} more findings", report.left_out));
  if (!report.not_checked.empty()) {
    sink.line(fmt::format("not checked, beside the checkpoint: {}", listed(report.not_checked)));
  }
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
    json.key("severity"), json.string(severity_name(finding));
    json.key("kind"), json.string(kind_name(*error.kind()));
    json.key("file"), json.string_or_null(error.file());
    json.key("tensor"), json.string_or_null(error.tensor());
    json.key("detail"), json.string(detail_of(error));
    json.key("not_read"), json.boolean(finding.severity == Severity::kUnread);
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
  write_unread(json, unread_of(report));
  json.line(1);
  json.key("not_checked"), json.begin_array();
  for (const std::string& name : report.not_checked) json.string(name);
  json.end_array();
  json.line(1);
  json.key("globals"), json.begin_array();
  for (const std::string& name : report.globals) json.string(name);
  json.end_array();
  json.key("findings_left_out"), json.number(report.left_out);
  json.end_object();
  json.end_line();
}

}  // namespace shard::app
