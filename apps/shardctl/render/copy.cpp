#include "apps/shardctl/render/copy.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <span>

#include "apps/shardctl/render/json_parts.h"
#include "apps/shardctl/text/units.h"
#include "formats/parts/hf_index/folder_names.h"
#include "libshard/core/short_text.h"
#include "libshard/repair/lost_note.h"

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
  json.key("renames"), json.object_lines(2, report.renames, [&](const auto& each) {
    const auto& [from, to] = each;
    json.key("from"), json.string(from);
    json.key("to"), json.string(to);
  });
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

std::vector<std::string> warnings_of_reference(bool is_adapter, const FilesFolder& folder) {
  if (!folder.path.empty()) return {};
  if (is_adapter) {
    return {
        "no adapter_config.json beside the source, but PEFT needs one: copy the file that the training saved into the "
        "output, or pass its folder with --hf-ref DIR"};
  }
  return {
      "found no config.json of a Hugging Face model near the source, so the output has no config and no tokenizer; "
      "pass their folder with --hf-ref DIR"};
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

namespace {

std::int64_t total_bytes(const CopyResult& result) {
  std::int64_t bytes = 0;
  for (const File& file : result.files) bytes += file.bytes;
  return bytes;
}

/// The members that plans and results share.
void write_head(JsonWriter& json, const Session& session, const WriteRequest& write, const std::string& source,
                const CopyResult& result) {
  json.key("verb"), json.string(session.command.verb);
  json.key("source"), json.string(source);
  json.key("output"), json.string(write.path);
  json.key("format"), json.string(result.format);
  write_files(json, result.files);
  json.line(1);
  json.key("tensors"), json.number(result.tensors);
  json.key("objects"), json.number(result.objects);
}

constexpr std::size_t kShownLosses = 10;

void write_salvage(JsonWriter& json, const Salvage* salvage) {
  if (salvage == nullptr) return;
  json.line(1);
  json.key("lost"), json.object_lines(2, salvage->losses(), [&](const Loss& loss) { write_loss(json, loss); });
  write_texts(json, "repaired", salvage->mended());
}

void write_reports(JsonWriter& json, const VerbReports& reports) {
  write_salvage(json, reports.salvage);
  if (reports.exported != nullptr) write_export(json, *reports.exported);
}

/// Writes a shardctl.plan/1 document.
void plan_json(const Session& session, const WriteRequest& write, const std::string& source, const CopyResult& plan,
               const VerbReports& reports) {
  JsonWriter json(session.out);
  json.document("shardctl.plan/1", [&] {
    write_head(json, session, write, source, plan);
    json.key("bytes_to_read"), json.number(plan.bytes_to_read);
    json.key("bytes_to_write"), json.number(plan.bytes_to_write);
    json.key("bytes_to_clone"), json.number(plan.bytes_to_clone);
    json.key("copies"), json.number(plan.copies);
    json.key("tiles"), json.number(plan.tiles);
    json.key("memory_bytes"), json.number(plan.memory_bytes);
    json.key("free_bytes"), json.number(plan.free_bytes);
    write_texts(json, "warnings", plan.warnings);
    write_reports(json, reports);
  });
}

/// Writes a shardctl.result/1 document.
void result_json(const Session& session, const WriteRequest& write, const std::string& source, const CopyResult& result,
                 const Progress& progress, double seconds, bool is_unchanged, const VerbReports& reports) {
  JsonWriter json(session.out);
  json.document("shardctl.result/1", [&] {
    write_head(json, session, write, source, result);
    json.key("bytes_read"), json.number(progress.bytes_read.load());
    json.key("bytes_written"), json.number(progress.bytes_written.load());
    json.key("bytes_cloned"), json.number(progress.bytes_cloned.load());
    json.key("bytes_kept"), json.number(progress.bytes_kept.load());
    json.key("cast_overflows"), json.number(progress.cast_overflows.load());
    json.key("seconds"), json.real(seconds);
    json.key("unchanged"), json.boolean(is_unchanged);
    write_texts(json, "warnings", result.warnings);
    write_reports(json, reports);
  });
}

}  // namespace

void render_plan(const Session& session, const WriteRequest& write, const std::string& source, const CopyResult& plan,
                 const VerbReports& reports) {
  if (session.common.json) return plan_json(session, write, source, plan, reports);
  TextSink sink(session.out);
  std::size_t width = 0;
  for (const File& file : plan.files) width = std::max(width, std::to_string(file.bytes).size());
  sink.line(fmt::format("{} {} -> {} ({}): {}, {}", session.command.verb, source, write.path, plan.format,
                        plural(plan.tensors, "tensor"), plural(plan.objects, "object")));
  for (const File& file : plan.files) sink.line(fmt::format("  {:>{}}  {}", file.bytes, width, file.path));
  if (reports.exported != nullptr) print_export(sink, *reports.exported);
  sink.line(fmt::format("read        {}", human_bytes(plan.bytes_to_read)));
  sink.line(
      fmt::format("write       {} in {}", human_bytes(total_bytes(plan)), plural(std::ssize(plan.files), "file")));
  if (plan.bytes_to_clone > 0) {
    sink.line(fmt::format("in store    {}, copied by the server itself", human_bytes(plan.bytes_to_clone)));
  }
  sink.line(fmt::format("copies      {} in {}", plan.copies, plural(plan.tiles, "tile")));
  sink.line(fmt::format("memory      {}", human_bytes(plan.memory_bytes)));
  sink.line(fmt::format("free disk   {}", plan.free_bytes == INT64_MAX ? "unknown" : human_bytes(plan.free_bytes)));
  if (total_bytes(plan) > plan.free_bytes) sink.line("not enough free disk space");
}

void render_unchanged(const Session& session, const WriteRequest& write, const std::string& source,
                      const Manifest& manifest) {
  if (!session.common.json) {
    return note(session, fmt::format("{}: {} is up to date: its manifest records this source and these options",
                                     session.command.verb, write.path));
  }
  CopyResult result;
  result.format = manifest.format;
  result.tensors = manifest.tensors;
  result.objects = manifest.objects;
  for (const ManifestFile& file : manifest.files) result.files.push_back({file.path, file.bytes});
  const Progress nothing;
  result_json(session, write, source, result, nothing, 0, true, {});
}

void render_result(const Session& session, const WriteRequest& write, const std::string& source,
                   const CopyResult& result, const Progress& progress, double seconds, const VerbReports& reports) {
  if (!session.common.json) {
    note(session, fmt::format("{}: wrote {}: {}, {}, {} in {}, {:.2f} s", session.command.verb, write.path,
                              plural(result.tensors, "tensor"), plural(result.objects, "object"),
                              human_bytes(total_bytes(result)), plural(std::ssize(result.files), "file"), seconds));
    return;
  }
  result_json(session, write, source, result, progress, seconds, false, reports);
}

void warn_of_losses(const Session& session, const Salvage& salvage) {
  for (const std::string& what : salvage.mended()) warn(session, "repaired: " + what);
  const std::vector<Loss>& losses = salvage.losses();
  for (const Loss& loss : std::span(losses).first(std::min(losses.size(), kShownLosses))) {
    std::string subject(name_of(loss.what));
    if (!loss.name.empty()) subject += fmt::format(" '{}'", loss.name);
    if (!loss.dtype.empty()) subject += fmt::format(" ({})", loss.dtype);
    if (!loss.file.empty() && loss.what != Loss::What::kFile) subject += fmt::format(" of {}", loss.file);
    if (loss.what == Loss::What::kFile) subject = loss.file.empty() ? "part of the source" : loss.file;
    warn(session, fmt::format("lost: {}: {}", subject, loss.why));
  }
  if (losses.size() > kShownLosses) {
    warn(session, fmt::format("lost: {} more; --json lists all", losses.size() - kShownLosses));
  }
}

}  // namespace shard::app
