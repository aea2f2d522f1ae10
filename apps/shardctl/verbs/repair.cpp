#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "apps/shardctl/request/request.h"
#include "apps/shardctl/session/progress.h"
#include "apps/shardctl/source/source.h"
#include "apps/shardctl/source/taken_source.h"
#include "apps/shardctl/text/text_sink.h"
#include "apps/shardctl/text/units.h"
#include "apps/shardctl/verbs/copy.h"
#include "apps/shardctl/verbs/verbs.h"
#include "libshard/core/digest.h"
#include "libshard/core/error.h"
#include "libshard/core/findings.h"
#include "libshard/core/json_writer.h"
#include "libshard/core/short_text.h"
#include "libshard/io/stoppable_store.h"
#include "libshard/manifest/manifest.h"
#include "libshard/stores/object_output.h"
#include "libshard/stores/url_store.h"
#include "libshard/verify/manifest_check.h"

namespace shard::app {
namespace {

void refuse_ranks(const LaunchFacts& launch) {
  if (launch.size <= 1) return;
  throw Error(ErrorCode::kUnsupported, fmt::format("cannot repair with {} ranks", launch.size))
      .because("repair runs in one process, which reads the whole source")
      .hint("run it without a launcher");
}

void print_uploads_json(std::ostream& out, const std::string& url, const std::vector<LeftUpload>& uploads,
                        bool is_locked, bool is_removed) {
  JsonWriter json(out);
  json.document("shardctl.uploads/1", [&] {
    json.key("destination"), json.string(url);
    json.key("locked"), json.boolean(is_locked);
    json.key("removed"), json.boolean(is_removed);
    json.key("uploads"), json.objects(uploads, [&](const LeftUpload& each) {
      json.key("url"), json.string(each.url);
      json.key("parts"), json.number(each.parts);
      json.key("bytes"), json.number(each.bytes);
    });
  });
}

/// Lists the uploads that killed runs left at a URL, and removes them with --force.
int run_uploads(const Session& session, const Request& request) {
  const std::vector<std::string>& urls = request.read.paths;
  if (urls.size() != 1 || !is_writable_url(urls.front()) || !request.write.path.empty()) {
    throw usage("--uploads needs one URL, s3:// or gs://, and no -o");
  }
  const ObjectStore& store = session.urls->objects(urls.front());
  const std::vector<LeftUpload> uploads = left_uploads(store, urls.front());
  const bool is_locked = has_upload_lock(store, urls.front());
  if (session.common.json) {
    if (request.write.force) remove_uploads(store, urls.front(), uploads);
    print_uploads_json(session.out, urls.front(), uploads, is_locked, request.write.force);
    return 0;
  }
  TextSink sink(session.out);
  for (const LeftUpload& each : uploads) {
    sink.line(fmt::format("{}  {}, {}", each.url, plural(each.parts, "part"), human_bytes(each.bytes)));
  }
  sink.line(fmt::format("{}{}", plural(std::ssize(uploads), "unfinished upload"),
                        is_locked ? ", and the lock of a run" : ""));
  if (request.write.force) {
    remove_uploads(store, urls.front(), uploads);
    note(session, "removed them");
  } else if (is_locked || !uploads.empty()) {
    note(session,
         "a run that is still working may need them; after a killed one, --resume continues it, and --force "
         "removes them");
  }
  return 0;
}

/// Compares the blocks of a file with the manifest. Skips those that cannot be read, because they are losses already.
void compare_blocks(const StatedFiles& stated, std::size_t number, ManifestCheck& check) try {
  const ManifestFile& file = stated.manifest.files[number];
  const std::unique_ptr<RandomReader> reader = stated.open(file);
  const std::int64_t end = std::min(file.bytes, reader->size());
  std::vector<std::byte> buffer(static_cast<std::size_t>(std::min(end, kManifestBlock)));
  for (std::int64_t begin = 0; begin < end; begin += kManifestBlock) {
    const auto block = std::span(buffer).first(static_cast<std::size_t>(std::min(kManifestBlock, end - begin)));
    reader->read_at(begin, block);
    Hasher hasher(stated.manifest.algorithm);
    hasher.update(block);
    check.compare(number, begin / kManifestBlock, hasher.finish_hex());
  }
} catch (const Error& error) {
  if (!is_damage(error)) throw;
}

/// Warnings of the bytes that contradict the manifest beside the source, if there is one. A block may contain parts of
/// intact tensors, and a checksum of the format may prove them, so these are no losses.
std::vector<std::string> find_contradictions(const SourceStore& store, const std::vector<std::string>& paths) {
  CollectedFindings found;
  try {
    const std::string path = manifest_beside(store, paths);
    if (path.empty()) return {};
    const StatedFiles stated = read_manifest(store, path, paths);
    ManifestCheck check(stated, found);
    const std::vector<bool> is_there = check.check_files();
    for (std::size_t i = 0; i < is_there.size(); ++i) {
      if (is_there[i]) compare_blocks(stated, i, check);
    }
    check.report();
  } catch (const Error& error) {
    if (!is_damage(error)) throw;
    found.report(error);
  }
  std::vector<std::string> warnings;
  for (const Error& each : found.all()) {
    if (each.kind() != FindingKind::kHashMismatch && each.kind() != FindingKind::kBadHeader) continue;
    warnings.push_back(fmt::format("{}: {}; saved tensors may have changed values, unless the format has checksums",
                                   each.file(), each.what()));
  }
  return warnings;
}

}  // namespace

int run_repair(Session& session, const Request& request) {
  refuse_ranks(session.launch);
  if (request.left_uploads) return run_uploads(session, request);
  if (!request.like.empty()) check_exists(source_store(session), {request.like});  // Even if it is not needed.
  Request taken = request;
  take_sources(session, taken.read, false, SearchFor::kDamagedToo);
  Salvage salvage(taken.read.paths);
  const auto is_stopped = [&session] { return session.stop.stop_requested(); };
  const StoppableStore store(source_store(session), is_stopped);  // The whole source is read before the job begins.
  std::vector<std::string> contradictions;
  const auto open = [&salvage, &store, &contradictions](const Session& own, const CopyRequest& given, Log& log) {
    const Source like{&store, {given.like}};
    const std::atomic<std::int64_t> none = 0;
    const ProgressMeter meter(
        own, log, "repair: check", [&store] { return store.bytes_read(); }, none);
    OpenSource opened = open_source(own, given.read, log,
                                    {.salvage = &salvage,
                                     .store = &store,
                                     .selection = &given.select,
                                     .like = given.like.empty() ? nullptr : &like});
    contradictions = find_contradictions(store, given.read.paths);
    return opened;
  };
  return run_copy_verb(session, taken, {.open = open, .salvage = &salvage, .warnings = &contradictions});
}

}  // namespace shard::app
