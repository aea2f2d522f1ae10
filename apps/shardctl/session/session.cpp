#include "apps/shardctl/session/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "apps/shardctl/request/request.h"
#include "apps/shardctl/session/log.h"
#include "apps/shardctl/text/text_sink.h"
#include "libshard/core/error.h"
#include "libshard/core/processor.h"
#include "libshard/core/short_text.h"
#include "libshard/stores/url_store.h"

namespace shard::app {

namespace {

constexpr std::size_t kWarningsShown = 16;

void say(const Session& session, const std::string& text) {
  if (session.common.quiet) return;
  TextSink sink(session.err);
  sink.add("shardctl: ");
  sink.line(clipped(text));
}

}  // namespace

const SourceStore& destination_store(const Session& session) {
  if (session.urls != nullptr) return *session.urls;
  return session.fs;
}

std::string rank_label(const Session& session) {
  const Group& group = *session.group;
  return group.size() == 1 ? std::string() : fmt::format("rank {} of {}", group.rank(), group.size());
}

std::int64_t max_memory_bytes(const Session& session) { return parse_size(session.common.max_memory, "--max-memory"); }

std::int64_t reading_memory_bytes(const Session& session) {
  constexpr std::int64_t kLeast = 8 << 20;
  const std::int64_t all = max_memory_bytes(session);
  if (session.peer_store == nullptr) return all;
  if (all >= kLeast) return all - GroupStore::kMemoryBytes;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("cannot read the files of other ranks within {} bytes of memory", all))
      .expected("at least 8MiB")
      .found(all)
      .suggest(Remedy::kMoreMemory);
}

int worker_count(const Session& session) {
  if (session.common.threads > 0) return session.common.threads;
  return std::max(1, std::max(usable_processors(), session.requests_at_once) / session.ranks_here);
}

bool colours_errors(const Session& session) {
  if (session.common.color != "auto") return session.common.color == "always";
  if (!session.err_is_terminal || !session.env) return false;
  const auto no_color = session.env("NO_COLOR");
  return (!no_color || no_color->empty()) && session.env("TERM").value_or("") != "dumb";
}

void note(const Session& session, const std::string& text) {
  log_to_file(session, LogLevel::kInfo, text);
  say(session, text);
}

void warn(const Session& session, const std::string& text) {
  log_to_file(session, LogLevel::kWarning, text);
  say(session, "warning: " + text);
}

void warn_all(const Session& session, const std::vector<std::string>& texts) {
  const std::size_t shown = texts.size() <= kWarningsShown ? texts.size() : kWarningsShown - 1;
  for (std::size_t i = 0; i < shown; ++i) warn(session, texts[i]);
  if (shown == texts.size()) return;
  for (const std::string& text : std::span(texts).subspan(shown)) log_to_file(session, LogLevel::kWarning, text);
  say(session, fmt::format("warning: and {} more warnings; --json lists all", texts.size() - shown));
}

}  // namespace shard::app
