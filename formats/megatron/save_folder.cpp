#include "formats/megatron/save_folder.h"

#include <fmt/format.h>

#include <algorithm>

#include "formats/megatron_tracker.h"
#include "libshard/core/error.h"
#include "libshard/io/paths.h"

namespace shard::megatron {

namespace {

constexpr std::string_view kRankFolder = "mp_rank_";

std::vector<std::string> rank_folders(const SourceStore& store, const std::string& path) {
  if (store.status(path).kind != FileKind::kFolder) return {};
  std::vector<std::string> names = store.list(path);
  std::erase_if(names, [&](const std::string& name) {
    return !name.starts_with(kRankFolder) || store.status(join_path(path, name)).kind != FileKind::kFolder;
  });
  std::ranges::sort(names);
  return names;
}

}  // namespace

bool is_save_folder(const SourceStore& store, const std::string& path) {
  if (!rank_folders(store, path).empty()) return true;
  const std::string iteration = tracked_iteration(store, path);
  return !iteration.empty() && !rank_folders(store, join_path(path, iteration)).empty();
}

SaveFolder find_save_folder(const Source& source) {
  const SourceStore& store = *source.store;
  const std::string& path = source.paths.front();
  if (!is_one_folder(source)) {
    throw Error(ErrorCode::kUnsupported, "cannot read single files of a Megatron-LM save: name its folder")
        .in_file(path);
  }
  SaveFolder save{path, {}, rank_folders(store, path)};
  const std::string iteration = save.ranks.empty() ? tracked_iteration(store, path) : std::string();
  if (!iteration.empty()) {
    save = {path, iteration + "/", rank_folders(store, join_path(path, iteration))};
    for (std::string& rank : save.ranks) rank.insert(0, save.prefix);
  }
  if (save.ranks.empty()) {
    throw Error(ErrorCode::kNotFound, "the folder does not hold Megatron-LM's folders of ranks")
        .in_file(join_path(save.path, save.prefix))
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
