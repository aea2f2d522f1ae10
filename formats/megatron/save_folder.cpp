#include "formats/megatron/save_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "libshard/core/error.h"
#include "libshard/io/paths.h"

namespace shard::megatron {

namespace {

constexpr std::string_view kTracker = "latest_checkpointed_iteration.txt", kRankFolder = "mp_rank_";
constexpr std::int64_t kMaxTrackerBytes = 64;

std::vector<std::string> rank_folders(const SourceStore& store, const std::string& path) {
  if (store.status(path).kind != FileKind::kFolder) return {};
  std::vector<std::string> names = store.list(path);
  std::erase_if(names, [&](const std::string& name) {
    return !name.starts_with(kRankFolder) || store.status(join_path(path, name)).kind != FileKind::kFolder;
  });
  std::ranges::sort(names);
  return names;
}

/// The folder of the iteration that the tracker in `path` names; empty where there is none.
std::string tracked_folder(const SourceStore& store, const std::string& path) {
  const std::string tracker = join_path(path, kTracker);
  if (store.status(tracker).kind != FileKind::kFile) return {};
  const auto file = store.open(tracker);
  if (file->size() > kMaxTrackerBytes) return {};
  std::string text(static_cast<std::size_t>(file->size()), '\0');
  file->read_at(0, std::as_writable_bytes(std::span(text)));
  text.erase(text.find_last_not_of(" \t\r\n") + 1);
  if (text == "release") return join_path(path, text);
  std::int64_t iteration = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), iteration);
  if (error != std::errc() || end != text.data() + text.size() || iteration < 0) return {};
  return join_path(path, fmt::format("iter_{:07}", iteration));
}

}  // namespace

bool is_save_folder(const SourceStore& store, const std::string& path) {
  if (!rank_folders(store, path).empty()) return true;
  const std::string tracked = tracked_folder(store, path);
  return !tracked.empty() && !rank_folders(store, tracked).empty();
}

SaveFolder find_save_folder(const Source& source) {
  const SourceStore& store = *source.store;
  const std::string& path = source.paths.front();
  if (source.paths.size() > 1 || store.status(path).kind != FileKind::kFolder) {
    throw Error(ErrorCode::kUnsupported, "cannot read single files of a Megatron-LM save: name its folder")
        .in_file(path);
  }
  SaveFolder save{path, rank_folders(store, path)};
  if (save.ranks.empty()) {
    if (std::string tracked = tracked_folder(store, path); !tracked.empty()) {
      save = {tracked, rank_folders(store, tracked)};
    }
  }
  if (save.ranks.empty()) {
    throw Error(ErrorCode::kNotFound, "the folder does not hold Megatron-LM's folders of ranks")
        .in_file(save.path)
        .of_kind(FindingKind::kMissingFile)
        .expected("mp_rank_00 or mp_rank_00_000");
  }
  return save;
}

void for_each_rank(const Arguments& arguments, const std::function<void(const Coordinates& rank)>& visit) {
  for (std::int64_t pipeline = 0; pipeline < arguments.pipeline; ++pipeline) {
    for (std::int64_t expert = 0; expert < arguments.expert; ++expert) {
      for (std::int64_t tensor = 0; tensor < arguments.tensor; ++tensor) visit({tensor, pipeline, expert});
    }
  }
}

std::string folder_of(const Coordinates& rank, const Arguments& arguments) {
  std::string name = fmt::format("{}{:02}", kRankFolder, rank.tensor);
  if (arguments.pipeline > 1) name += fmt::format("_{:03}", rank.pipeline);
  if (arguments.expert > 1) name += fmt::format("_{:03}", rank.expert);
  return name;
}

}  // namespace shard::megatron
