#include "libshard/verify/verify.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "apps/shardctl/html/html_page.h"
#include "apps/shardctl/render/json_parts.h"
#include "apps/shardctl/render/report.h"
#include "apps/shardctl/request/request.h"
#include "apps/shardctl/session/progress.h"
#include "apps/shardctl/session/ranks.h"
#include "apps/shardctl/session/session.h"
#include "apps/shardctl/source/object_check.h"
#include "apps/shardctl/source/source.h"
#include "apps/shardctl/target/conversion_warnings.h"
#include "apps/shardctl/text/text_sink.h"
#include "apps/shardctl/text/units.h"
#include "apps/shardctl/verbs/computed_weights.h"
#include "apps/shardctl/verbs/verbs.h"
#include "formats/megatron_tracker.h"
#include "formats/open/placeholder_file.h"
#include "formats/torch/check_saved.h"
#include "libshard/compute/pack_again.h"
#include "libshard/core/error.h"
#include "libshard/core/json_writer.h"
#include "libshard/core/short_text.h"
#include "libshard/core/suffixes.h"
#include "libshard/io/paths.h"
#include "libshard/manifest/integrity.h"
#include "libshard/manifest/manifest.h"

namespace shard::app {
namespace {

/// The content of `shardctl.verify/1`.
struct VerifyReport {
  std::string label;  ///< The source, as the user wrote it.
  std::span<const Finding> findings;
  std::size_t left_out = 0;  ///< Number of findings beyond those that are kept.
  bool has_errors = false;
  VerifyCounts counts;
  std::set<std::string> globals;
  const Catalog* catalog = nullptr;      ///< Null: the source could not be opened.
  std::vector<std::string> not_checked;  ///< Other entries in the source's folder; names of folders end in '/'.
  std::string against;                   ///< The quantized checkpoint that `packed` compares with.
  std::optional<PackedCounts> packed;
  std::optional<std::int64_t> computed;  ///< Weights that --dequantize computed.

  bool ok() const { return !has_errors; }
};

/// The facts of a finding in one line.
std::string detail_of(const Error& error) {
  std::string text = error.what();
  if (!error.expected().empty() && !error.found().empty()) {
    text += fmt::format(" (expected {}, found {})", error.expected(), error.found());
  }
  if (!error.why().empty()) text += ": " + error.why();
  return text;
}

/// `shardctl.verify/1` represents unread content as a warning with `not_read` beside it.
std::string_view severity_name(const Finding& finding) { return finding.is_error() ? "error" : "warning"; }

std::string line_of(const Finding& finding) {
  const Error& error = finding.error;
  std::string line = fmt::format("{} {}", severity_name(finding), kind_name(*error.kind()));
  if (!error.file().empty()) line += " " + error.file();
  if (!error.tensor().empty()) line += " '" + error.tensor() + "'";
  return line + ": " + detail_of(error);
}

/// Unread content, and the reason.
struct Unread {
  std::set<std::string> tensors, objects, files;
  std::set<std::string> classes;  ///< Classes, or kinds of tensors and files if no class is the reason.
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

/// A line for each class, with its first few names.
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
  write_texts(json, "classes", unread.classes);
  json.end_object();
}

/// The first few names; weights and folders precede others.
std::string listed(std::vector<std::string> names) {
  const auto is_first = [](const std::string& name) { return name.ends_with('/') || is_weights_name(name); };
  std::ranges::stable_partition(names, is_first);
  return first_names(names);
}

/// "97.5 % of 40"; 100 % only if all are the same.
std::string share_text(std::int64_t same, std::int64_t all) {
  if (same == all) return fmt::format("100 % of {}", all);
  const double share = 100 * static_cast<double>(same) / static_cast<double>(all);
  return fmt::format("{:.6g} % of {}", std::min(share, 99.9999), all);
}

std::string packed_text(const VerifyReport& report) {
  const PackedCounts& counts = *report.packed;
  return fmt::format("packed again as in {}: {} codes and {} scales come back, in {}", report.against,
                     share_text(counts.same_codes, counts.codes), share_text(counts.same_scales, counts.scales),
                     plural(counts.modules, "module"));
}

void write_packed(JsonWriter& json, const VerifyReport& report) {
  const PackedCounts& counts = *report.packed;
  json.line(1);
  json.key("packed_again"), json.begin_object();
  json.key("against"), json.string(report.against);
  json.key("modules"), json.number(counts.modules);
  json.key("codes"), json.number(counts.codes);
  json.key("same_codes"), json.number(counts.same_codes);
  json.key("scales"), json.number(counts.scales);
  json.key("same_scales"), json.number(counts.same_scales);
  json.end_object();
}

/// Prints one line per finding, the most severe first, and a verdict.
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
  if (report.computed) sink.line(fmt::format("dequantized: {} computed", plural(*report.computed, "weight")));
  if (report.packed) sink.line(packed_text(report));
  sink.line(verdict(report));
}

void render_json(JsonWriter& json, const VerifyReport& report) {
  json.document("shardctl.verify/1", [&] {
    json.key("source"), json.string(report.label);
    json.key("ok"), json.boolean(report.ok());
    json.key("findings"), json.object_lines(2, report.findings, [&](const Finding& finding) {
      const Error& error = finding.error;
      json.key("severity"), json.string(severity_name(finding));
      json.key("kind"), json.string(kind_name(*error.kind()));
      json.key("file"), json.string_or_null(error.file());
      json.key("tensor"), json.string_or_null(error.tensor());
      json.key("detail"), json.string(detail_of(error));
      json.key("not_read"), json.boolean(finding.severity == Severity::kUnread);
    });
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
    if (report.computed) {
      json.line(1);
      json.key("dequantized"), json.number(*report.computed);
    }
    if (report.packed) write_packed(json, report);
    json.line(1);
    write_texts(json, "not_checked", report.not_checked);
    json.line(1);
    write_texts(json, "globals", report.globals);
    json.key("findings_left_out"), json.number(report.left_out);
  });
}

constexpr int kExitFindings = 1;

/// The parts that could be opened. Errors until then are findings.
struct Opened {
  OpenSource source;  ///< Has no reader if it could not be opened.
  std::optional<StatedFiles> stated;
  std::optional<WholeHashes> hashes;
  std::optional<Error> unreadable;  ///< The reason why `source` has no reader.
  /// Reads the files of such a source one by one; null: none can be checked in this way.
  std::unique_ptr<Reader> loose;

  Reader* reader() const { return source.reader != nullptr ? source.reader.get() : loose.get(); }
};

/// Opens the manifest. A damaged manifest beside the source is a finding; one that the user names is an error.
void open_manifest(const SourceStore& store, const std::vector<std::string>& paths, const std::string& against,
                   VerifyFindings& found, Opened& opened) {
  const bool is_named = !against.empty();
  const std::string path = is_named ? against : manifest_beside(store, paths);
  if (path.empty()) return;
  try {
    opened.stated = read_manifest(store, path, paths);
  } catch (const Error& error) {
    if (is_named && error.code() != ErrorCode::kCorruption) throw;
    take_finding(found, error);
  }
}

/// Opens Megatron-Core's hashes, if they are in the folder, or in the folder of the run's last iteration.
void open_hashes(const SourceStore& store, const std::vector<std::string>& paths, VerifyFindings& found,
                 Opened& opened) {
  if (paths.size() != 1 || !store.is_folder(paths[0])) return;
  const std::string iteration = tracked_iteration(store, paths[0]);
  const std::string folder = iteration.empty() ? paths[0] : join_path(paths[0], iteration);
  const std::string path = join_path(folder, kIntegrityName);
  if (!store.is_file(path)) return;
  try {
    opened.hashes = WholeHashes{parse_integrity(manifest_bytes(store, path), path), &store, folder};
  } catch (const Error& error) {
    take_finding(found, error);
  }
}

/// \throws Error  the reason why no data is read, if there is no damage either: an unsupported kind of checkpoint
void refuse_nothing_read(const Catalog& catalog, const VerifyFindings& found) {
  if (!catalog.tensors.empty() || !catalog.objects.empty() || found.has_errors()) return;
  std::optional<Error> why = found.first_unread();
  if (why) throw why->code() == ErrorCode::kUnsupported ? why->of_kind(std::nullopt) : *why;
}

Opened open(const Session& session, ReadRequest read, const std::string& against, VerifyFindings& found, Log& log) {
  Opened opened;
  open_manifest(source_store(session), read.paths, against, found, opened);
  open_hashes(source_store(session), read.paths, found, opened);
  read.dequantize.reset();     // The bytes in the files are checked first.
  read.opaque_globals = true;  // Values of classes outside the list are not read; everything else is.
  try {
    opened.source = open_source(session, read, log, {.may_lack_ranks = true, .findings = &found});
    refuse_nothing_read(opened.source.catalog(), found);
    return opened;
  } catch (const Error& error) {
    const bool is_finding =
        error.kind() && (error.code() == ErrorCode::kCorruption || error.code() == ErrorCode::kNotFound);
    if (!is_finding) throw;
    found.report(error);
    opened.unreadable = error;
    if (error.code() == ErrorCode::kCorruption) {
      opened.loose = torch_save::open_loose_files(source_store(session), read.paths);
    }
  }
  return opened;
}

/// Whether the checkpoint has no file with a readable container.
bool holds_nothing(const Opened& opened, const VerifyReport& report) {
  if (opened.reader() == nullptr) return true;
  const Catalog& catalog = opened.reader()->catalog();
  return catalog.tensors.empty() && catalog.objects.empty() && report.counts.containers == 0;
}

int exit_code(const Opened& opened, const VerifyReport& report) {
  if (report.ok() && !opened.unreadable) return 0;
  if (!holds_nothing(opened, report) || opened.stated) return kExitFindings;
  return exit_code_for(opened.unreadable ? opened.unreadable->code() : ErrorCode::kCorruption);
}

/// Entries of the source's folder that were not read; names of folders end in '/'.
std::vector<std::string> not_checked(const Session& session, const Opened& opened, const std::set<std::string>& read) {
  if (opened.source.reader == nullptr || !is_rank_zero(session)) return {};
  std::vector<std::string> names = names_beside(session, opened.source, read);
  std::erase_if(names, [](const std::string& name) {
    return name == kManifestName || name == kIntegrityName || name == "latest";
  });
  for (std::string& name : names) {
    const std::string path = join_path(opened.source.paths.front(), name);
    if (source_store(session).is_folder(path)) name += '/';
  }
  return names;
}

void print(const Session& session, const VerifyReport& report) {
  if (!session.common.json) return render_text(session, report);
  JsonWriter json(session.out);
  render_json(json, report);
}

// ---- The selection.

/// Drops findings about the content of other names. \pre tensors are located, and objects loaded
void choose_findings(const Session& session, const Request& request, const Reader* reader, VerifyFindings& found) {
  const SelectionOptions& select = request.select;
  if (reader == nullptr || (select.include.empty() && select.exclude.empty())) return;
  const Catalog& catalog = reader->catalog();
  // A name may be missing in a damaged checkpoint. Names of computed weights are not in the catalog.
  if (is_rank_zero(session) && !found.has_errors() && !request.read.dequantize) check_globs({&catalog}, select);
  found.choose(chosen_names(catalog, name_filter(select)));
}

/// The sum of all ranks on rank 0. Collective.
PackedCounts sum_of_ranks(Group& group, const PackedCounts& own) {
  PackedCounts sum;
  for (const Bytes& bytes : gather(group, std::as_bytes(std::span(&own, 1)), 0)) {
    PackedCounts each;
    std::memcpy(&each, bytes.data(), sizeof each);
    sum += each;
  }
  return sum;
}

/// The checks of --dequantize and of --against with a checkpoint. Collective.
void check_weights(const Session& session, const Request& request, const Opened& opened, VerifyFindings& found,
                   Log& log, VerifyReport& report) {
  if (request.read.dequantize && opened.source.reader != nullptr) {
    report.computed = 0;
    on_all_ranks(session, "dequantize",
                 [&] { report.computed = compute_weights(session, request, found, log, session.stop); });
  }
  if (report.against.empty() || opened.source.reader == nullptr) return;
  PackedCounts own;
  on_all_ranks(session, "pack again",
               [&] { own = pack_again(session, request, *opened.source.reader, found, log, session.stop); });
  report.packed = sum_of_ranks(*session.group, own);
}

}  // namespace

int run_verify(Session& session, const Request& request) {
  allow_sudden_end(session, request.page);
  const auto log = open_log(session);
  VerifyFindings found(request.read.paths);
  std::optional<PlaceholderFiles> placeholders;
  Opened opened;
  std::optional<HtmlPage> page;
  VerifyReport report;
  on_all_ranks(session, "catalog", [&] {
    page.emplace(session, request.page, request.read);
    check_exists(source_store(session), request.read.paths);
    placeholders.emplace(source_store(session), request.read.paths);
    for (const Error& each : placeholders->at_the_top()) found.explain(each);
    found.explain_by([&](const std::string& file) { return placeholders->of_file(file); });
    if (names_checkpoint(source_store(session), request.against)) report.against = request.against;
    opened = open(session, request.read, report.against.empty() ? request.against : "", found, *log);
  });
  const VerifyJob job{.reader = opened.reader(),
                      .stated = opened.stated ? &*opened.stated : nullptr,
                      .hashes = opened.hashes ? &*opened.hashes : nullptr,
                      .ranks_may_differ = opened.source.format != nullptr && opened.source.format->ranks_may_differ,
                      .threads = worker_count(session),
                      .max_memory_bytes = max_memory_bytes(session)};
  Progress progress;
  Verification verification(job, *session.group, found, progress);
  ProgressMeter meter(
      session, *log, "verify", [&] { return progress.bytes_read.load(); }, progress.others_bytes);
  on_all_ranks(session, progress.bytes_read, progress.others_bytes, meter.awaited(), [&](const std::stop_token& stop) {
    verification.prepare(stop);
    choose_findings(session, request, opened.source.reader.get(), found);
    if (is_rank_zero(session) && job.reader != nullptr) report_unread_values(job.reader->catalog(), found);
    meter.set_total(verification.total_bytes());
    verification.read(stop);
  });
  check_weights(session, request, opened, found, *log, report);
  found.explain_by({});  // Files of other ranks can be read only during a step.
  verification.finish();
  meter.finish();
  expect_unchanged_source(session);
  const std::vector<Finding> findings = found.sorted();
  report.label = fmt::format("{}", fmt::join(request.read.paths, " "));
  report.findings = findings;
  report.left_out = found.left_out();
  report.has_errors = found.has_errors();
  report.counts = verification.counts();
  report.globals = verification.globals();
  report.catalog = job.reader == nullptr ? nullptr : &job.reader->catalog();
  report.not_checked = not_checked(session, opened, verification.file_names());
  int code = exit_code(opened, report);
  if (!request.page.path.empty()) {
    on_all_ranks(session, "page", [&] { page->write([&](JsonWriter& json) { render_json(json, report); }); });
  }
  if (is_rank_zero(session)) print(session, report);
  session.group->broadcast(std::as_writable_bytes(std::span(&code, 1)), 0);
  return code;
}

}  // namespace shard::app
