#include "apps/shardctl/render/verify.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "apps/shardctl/html/html_page.h"
#include "apps/shardctl/render/report.h"
#include "apps/shardctl/request/request.h"
#include "apps/shardctl/session/progress.h"
#include "apps/shardctl/session/ranks.h"
#include "apps/shardctl/source/placeholder_file.h"
#include "apps/shardctl/source/source.h"
#include "apps/shardctl/source/unread_values.h"
#include "apps/shardctl/target/conversion_warnings.h"
#include "apps/shardctl/verbs/verbs.h"
#include "formats/deepspeed/format.h"
#include "formats/megatron_tracker.h"
#include "formats/torch/loose_files.h"
#include "libshard/core/error.h"
#include "libshard/io/paths.h"
#include "libshard/manifest/integrity.h"
#include "libshard/manifest/manifest_file.h"

namespace shard::app {
namespace {

constexpr int kExitFindings = 1;

/// What could be opened, and what is known to be wrong by then.
struct Opened {
  OpenSource source;  ///< Without a reader where nothing could be read.
  std::optional<StatedFiles> stated;
  std::optional<WholeHashes> hashes;
  std::optional<Error> unreadable;  ///< Why `source` has no reader.
  std::unique_ptr<Reader> loose;    ///< Its files one by one then; null: none can be checked so.

  Reader* reader() const { return source.reader != nullptr ? source.reader.get() : loose.get(); }
};

/// A manifest that is damaged is a finding where it was found, and an error where it was named.
void open_manifest(const SourceStore& store, const std::vector<std::string>& paths, const std::string& against,
                   Found& found, Opened& opened) {
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

/// Megatron-core's hashes, where they lie in the folder, or in that of the run's last iteration.
void open_hashes(const SourceStore& store, const std::vector<std::string>& paths, Found& found, Opened& opened) {
  if (paths.size() != 1 || store.status(paths[0]).kind != FileKind::kFolder) return;
  const std::string iteration = tracked_iteration(store, paths[0]);
  const std::string folder = iteration.empty() ? paths[0] : join_path(paths[0], iteration);
  const std::string path = join_path(folder, kIntegrityName);
  if (store.status(path).kind != FileKind::kFile) return;
  try {
    opened.hashes = WholeHashes{parse_integrity(manifest_bytes(store, path), path), &store, folder};
  } catch (const Error& error) {
    take_finding(found, error);
  }
}

/// \throws Error  why nothing is read, if nothing is damaged either: a kind of checkpoint that is not supported
void refuse_nothing_read(const Catalog& catalog, const Found& found) {
  if (!catalog.tensors.empty() || !catalog.objects.empty() || found.has_errors()) return;
  std::optional<Error> why = found.first_unread();
  if (why) throw why->code() == ErrorCode::kUnsupported ? why->of_kind(std::nullopt) : *why;
}

Opened open(const Session& session, ReadRequest read, const std::string& against, Found& found, Log& log) {
  Opened opened;
  open_manifest(source_store(session), read.paths, against, found, opened);
  open_hashes(source_store(session), read.paths, found, opened);
  read.opaque_globals = true;  // What a class outside the list hides is not read; all else is.
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

/// Whether no file of the checkpoint has a container that can be read.
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

/// Entries of the source's folder that were not read; folders end in '/'.
std::vector<std::string> not_checked(const Session& session, const Opened& opened, const std::set<std::string>& read) {
  if (opened.source.reader == nullptr || !is_rank_zero(session)) return {};
  std::vector<std::string> names = names_beside(session, opened.source, read);
  std::erase_if(names, [](const std::string& name) {
    return name == kManifestName || name == kIntegrityName || name == "latest";
  });
  for (std::string& name : names) {
    const std::string path = join_path(opened.source.paths.front(), name);
    if (session.fs.status(path).kind == FileKind::kFolder) name += '/';
  }
  return names;
}

void print(const Session& session, const VerifyReport& report) {
  if (!session.common.json) return render_text(session, report);
  JsonWriter json(session.out);
  render_json(json, report);
}

}  // namespace

int run_verify(Session& session, const Request& request) {
  allow_sudden_end(session, request.page);
  const auto log = open_log(session);
  Found found(request.read.paths);
  std::optional<PlaceholderFiles> stand_ins;
  Opened opened;
  std::optional<HtmlPage> page;
  on_all_ranks(session, "catalog", [&] {
    page.emplace(session, request.page, request.read);
    check_exists(session, request.read);
    stand_ins.emplace(source_store(session), request.read.paths);
    for (const Error& each : stand_ins->at_the_top()) found.explain(each);
    found.explain_by([&](const std::string& file) { return stand_ins->of_file(file); });
    opened = open(session, request.read, request.against, found, *log);
  });
  const VerifyJob job{.reader = opened.reader(),
                      .stated = opened.stated ? &*opened.stated : nullptr,
                      .hashes = opened.hashes ? &*opened.hashes : nullptr,
                      .ranks_may_differ = opened.source.format == &kDeepSpeedFormat,
                      .threads = worker_count(session),
                      .max_memory_bytes = max_memory_bytes(session)};
  Progress progress;
  Verification verification(job, *session.group, found, progress);
  ProgressMeter meter(
      session, *log, "verify", [&] { return progress.bytes_read.load(); }, progress.others_bytes);
  on_all_ranks(session, progress.bytes_read, progress.others_bytes, meter.awaited(), [&](const std::stop_token& stop) {
    verification.prepare(stop);
    if (is_rank_zero(session) && job.reader != nullptr) report_unread_values(job.reader->catalog(), found);
    meter.set_total(verification.total_bytes());
    verification.read(stop);
  });
  found.explain_by({});  // Outside of steps other ranks' files cannot be asked for.
  verification.finish();
  meter.finish();
  expect_unchanged_source(session);
  const std::vector<Finding> findings = found.sorted();
  const VerifyReport report{.label = fmt::format("{}", fmt::join(request.read.paths, " ")),
                            .findings = findings,
                            .left_out = found.left_out(),
                            .has_errors = found.has_errors(),
                            .counts = verification.counts(),
                            .globals = verification.globals(),
                            .catalog = job.reader == nullptr ? nullptr : &job.reader->catalog(),
                            .not_checked = not_checked(session, opened, verification.file_names())};
  int code = exit_code(opened, report);
  if (!request.page.path.empty()) {
    on_all_ranks(session, "page", [&] { page->write([&](JsonWriter& json) { render_json(json, report); }); });
  }
  if (is_rank_zero(session)) print(session, report);
  session.group->broadcast(std::as_writable_bytes(std::span(&code, 1)), 0);
  return code;
}

}  // namespace shard::app
