#include "formats/export/carried_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "libshard/core/error.h"
#include "libshard/core/short_text.h"
#include "libshard/io/paths.h"

namespace shard {

namespace {

constexpr std::size_t kMostFiles = 1000;  ///< Limited because each file stays open until the output is complete.

/// The names in a folder that are not in `known` and that no library needs.
std::vector<std::string> other_names(const SourceStore& store, const std::string& folder,
                                     const std::set<std::string, std::less<>>& known) {
  std::vector<std::string> others;
  for (const std::string& name : store.list(folder)) {
    if (!name.starts_with('.') && !known.contains(name)) others.push_back(name);
  }
  return others;
}

std::string first_component(std::string_view path) { return std::string(path.substr(0, path.find('/'))); }

/// The name in `folder` on the way to `path`; empty if the path is elsewhere.
std::string name_towards(const std::string& folder, const std::string& path) {
  const std::string inside = join_path(folder, "");
  return path.starts_with(inside) ? first_component(std::string_view(path).substr(inside.size())) : std::string();
}

}  // namespace

CarriedFiles carried_files(const SourceStore& store, const FilesFolder& folder, FilesOf what, bool takes_modules,
                           bool holds_files) {
  CarriedFiles carried;
  if (folder.path.empty()) return carried;
  carried.listed = model_files(store, folder, what, takes_modules);
  const std::vector<std::string>& names = carried.listed.names;
  if (names.size() > kMostFiles) {
    throw Error(ErrorCode::kUnsupported, fmt::format("cannot copy the {} files beside the weights", names.size()))
        .in_file(folder.path)
        .because(
            fmt::format("that is more than {}, most of them Python modules, templates or tables of tokens", kMostFiles))
        .hint("copy those that the model needs into another folder")
        .suggest(Remedy::kNameReference);
  }
  for (const std::string& name : names) {
    const std::string path = join_path(folder.path, name);
    AddedFile file{.path = name, .bytes = store.status(path).bytes};
    if (!holds_files) {
      file.open = [&store, root = folder.path, name]() -> std::shared_ptr<const RandomReader> {
        return store.open_below(root, name);
      };
    } else {
      file.open = [held = held_in_memory(*store.open_below(folder.path, name))] { return held; };
    }
    carried.files.push_back(std::move(file));
    carried.paths.push_back(path);
  }
  return carried;
}

LeftBehind left_behind(const SourceStore& store, const TakenSource& taken, const Catalog& source,
                       const CarriedFiles& carried, const std::string& folder) {
  LeftBehind left{.weights = taken.other_weights, .others = {}};
  std::erase_if(left.weights, [&](const std::string& name) {  // The reader has already named some.
    return std::ranges::any_of(source.warnings, [&](const std::string& warning) { return mentions(warning, name); });
  });
  std::set<std::string> folders;
  if (!taken.place.empty()) folders.insert(taken.place);
  const bool holds_source = !folder.empty() && !taken.place.empty() && !name_towards(folder, taken.place).empty();
  if (holds_source) folders.insert(folder);
  for (const std::string& each : folders) {
    std::set<std::string, std::less<>> known{"shardctl.manifest.json", "layout.json"};
    for (const std::string& path : carried.paths) known.insert(name_towards(each, path));
    for (const std::string& path : taken.paths) known.insert(name_towards(each, path));
    if (each == taken.place) {
      for (const File& file : source.files) known.insert(first_component(file.path));
      known.insert(taken.other_weights.begin(), taken.other_weights.end());
    } else {
      known.insert(name_towards(each, taken.place));
    }
    std::vector<std::string> others = other_names(store, each, known);
    if (!others.empty()) left.others.push_back(std::move(others));
  }
  return left;
}

}  // namespace shard
