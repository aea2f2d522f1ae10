#include "apps/shardctl/source/taken_source.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

#include "apps/shardctl/arguments/verb.h"
#include "apps/shardctl/session/ranks.h"
#include "apps/shardctl/source/map_choice.h"
#include "apps/shardctl/source/source.h"
#include "libshard/core/error.h"

namespace shard::app {
namespace {

/// Each source of this verb is a checkpoint.
constexpr std::string_view kComparing = "diff";
/// export looks for a model, and repair takes what the user named.
constexpr std::array<std::string_view, 2> kFindThemselves{"export", "repair"};

bool is_folder_at(const SourceStore& store, const std::string& path) {
  return store.status(path).kind == FileKind::kFolder;
}

/// The one folder that was named, if it may be another than the checkpoint.
std::optional<std::string> named_folder(const Session& session, const ReadRequest& options) {
  if (!options.from.empty() || options.paths.size() != 1) return std::nullopt;
  if (!is_folder_at(source_store(session), options.paths.front())) return std::nullopt;
  if (!options.map.empty() && named_ranks(session, options)) return std::nullopt;
  return options.paths.front();
}

/// The only checkpoint in the folder that was named; nothing if that stays the source.
std::optional<TakenSource> take_checkpoint(const Session& session, const ReadRequest& options) {
  try {
    const std::optional<std::string> folder = named_folder(session, options);
    return folder ? take_only_checkpoint(source_store(session), *folder) : std::nullopt;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kResource || error.code() == ErrorCode::kPeer) throw;
    return std::nullopt;  // Opening it fails as well, and the verb says what it knows then.
  }
}

}  // namespace

void take_sources(const Session& session, Request& options) {
  std::vector<std::string>& paths = options.source.paths;
  const std::string_view verb = options.verb->name;
  const bool takes_each = verb == kComparing;
  const bool finds_itself = std::ranges::find(kFindThemselves, verb) != kFindThemselves.end();
  if (finds_itself || paths.empty() || !options.source.from.empty() || (paths.size() > 1 && !takes_each)) return;
  on_all_ranks(session, "find", [&] {
    for (std::string& path : paths) {
      ReadRequest one = options.source;
      one.paths = {path};
      const std::optional<TakenSource> taken = take_checkpoint(session, one);
      if (!taken || (takes_each && taken->paths.size() > 1)) continue;
      if (is_rank_zero(session)) {
        note(session, fmt::format("{}: took {}, the only checkpoint in {}", verb, taken->label, path));
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

TakenSource take_model(const Session& session, const ReadRequest& options) {
  check_exists(session, options);
  const std::optional<std::string> folder = named_folder(session, options);
  if (folder) return shard::take_model(source_store(session), *folder);
  return {.label = fmt::format("{}", fmt::join(options.paths, " ")), .paths = options.paths};
}

}  // namespace shard::app
