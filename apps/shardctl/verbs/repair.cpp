#include <fmt/format.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <ostream>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "apps/shardctl/request/request.h"
#include "apps/shardctl/session/progress.h"
#include "apps/shardctl/source/source.h"
#include "apps/shardctl/text/text_sink.h"
#include "apps/shardctl/text/units.h"
#include "apps/shardctl/verbs/copy.h"
#include "apps/shardctl/verbs/verbs.h"
#include "libshard/core/error.h"
#include "libshard/core/json_writer.h"
#include "libshard/core/short_text.h"
#include "libshard/io/stoppable_store.h"
#include "libshard/stores/object_output.h"
#include "libshard/stores/url_store.h"

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
  json.begin_object();
  json.key("schema"), json.string("shardctl.uploads/1");
  json.key("destination"), json.string(url);
  json.key("locked"), json.boolean(is_locked);
  json.key("removed"), json.boolean(is_removed);
  json.key("uploads"), json.begin_array();
  for (const LeftUpload& each : uploads) {
    json.begin_object();
    json.key("url"), json.string(each.url);
    json.key("parts"), json.number(each.parts);
    json.key("bytes"), json.number(each.bytes);
    json.end_object();
  }
  json.end_array();
  json.end_object();
  json.end_line();
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

}  // namespace

int run_repair(Session& session, const Request& request) {
  refuse_ranks(session.launch);
  if (request.left_uploads) return run_uploads(session, request);
  Salvage salvage(request.read.paths);
  const auto is_stopped = [&session] { return session.stop.stop_requested(); };
  const StoppableStore store(source_store(session), is_stopped);  // The whole source is read before the job begins.
  const auto open = [&salvage, &store](const Session& own, const CopyRequest& given, Log& log) {
    const Source like{&store, {given.like}};
    const std::atomic<std::int64_t> none = 0;
    const ProgressMeter meter(
        own, log, "repair: check", [&store] { return store.bytes_read(); }, none);
    return open_source(own, given.read, log,
                       {.salvage = &salvage,
                        .store = &store,
                        .selection = &given.select,
                        .like = given.like.empty() ? nullptr : &like});
  };
  return run_copy_verb(session, request, {.open = open, .salvage = &salvage});
}

}  // namespace shard::app
