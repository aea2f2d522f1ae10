#include <fmt/format.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "apps/shardctl/request/request.h"
#include "apps/shardctl/session/progress.h"
#include "apps/shardctl/source/source.h"
#include "apps/shardctl/verbs/copy.h"
#include "apps/shardctl/verbs/verbs.h"
#include "libshard/core/error.h"
#include "libshard/io/stoppable_store.h"

namespace shard::app {
namespace {

void refuse_ranks(const LaunchFacts& launch) {
  if (launch.size <= 1) return;
  throw Error(ErrorCode::kUnsupported, fmt::format("cannot repair with {} ranks", launch.size))
      .because("repair runs in one process, which reads the whole source")
      .hint("run it without a launcher");
}

}  // namespace

int run_repair(Session& session, const Request& request) {
  refuse_ranks(session.launch);
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
