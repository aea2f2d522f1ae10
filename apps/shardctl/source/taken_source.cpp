#include "apps/shardctl/source/taken_source.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <optional>

#include "apps/shardctl/session/ranks.h"
#include "apps/shardctl/source/source.h"
#include "formats/open/map_choice.h"
#include "libshard/core/error.h"

namespace shard::app {
namespace {

/// The only path, if it is a folder that may be a different one from the checkpoint's.
std::optional<std::string> named_folder(const Session& session, const ReadRequest& read) {
  if (!read.from.empty() || read.paths.size() != 1) return std::nullopt;
  if (!source_store(session).is_folder(read.paths.front())) return std::nullopt;
  if (!read.map.empty() && named_ranks(source_place(session), read)) return std::nullopt;
  return read.paths.front();
}

/// The only checkpoint in the named folder; nothing if the folder itself remains the source.
std::optional<TakenSource> take_checkpoint(const Session& session, const ReadRequest& read, SearchFor search) {
  source_store(session).status(
      read.paths.front());  // An unreachable server is an error at once, not asked again later.
  try {
    const std::optional<std::string> folder = named_folder(session, read);
    return folder ? take_only_checkpoint(source_store(session), *folder, search) : std::nullopt;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kResource || error.code() == ErrorCode::kPeer) throw;
    return std::nullopt;  // Opening it will fail as well, and the verb reports the error then.
  }
}

}  // namespace

void take_sources(const Session& session, ReadRequest& read, bool takes_each, SearchFor search) {
  std::vector<std::string>& paths = read.paths;
  if (paths.empty() || !read.from.empty() || (paths.size() > 1 && !takes_each)) return;
  on_all_ranks(session, "find", [&] {
    for (std::string& path : paths) {
      ReadRequest one = read;
      one.paths = {path};
      const std::optional<TakenSource> taken = take_checkpoint(session, one, search);
      if (!taken || (takes_each && taken->paths.size() > 1)) continue;
      if (is_rank_zero(session)) {
        note(session, fmt::format("{}: took {}, the only checkpoint in {}", session.command.verb, taken->label, path));
      }
      if (takes_each) {
        path = taken->paths.front();
      } else {
        paths = taken->paths;
        return;
      }
    }
  });
}

TakenSource take_model(const Session& session, const ReadRequest& read) {
  check_exists(source_store(session), read.paths);
  const std::optional<std::string> folder = named_folder(session, read);
  if (folder) return shard::take_model(source_store(session), *folder);
  return {.label = fmt::format("{}", fmt::join(read.paths, " ")), .paths = read.paths};
}

}  // namespace shard::app
