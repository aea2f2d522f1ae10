#include "apps/shardctl/target/carried_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "formats/parts/hf_index/folder_names.h"
#include "libshard/core/error.h"
#include "libshard/core/first_names.h"
#include "libshard/io/paths.h"

namespace shard::app {
namespace {

constexpr std::size_t kMostFiles = 1000;  ///< Each is open in the output until that is whole.

std::string few_of(const std::vector<std::string>& names) {
  FirstNames few;
  for (const std::string& name : names) few.add(name);
  return few.text();
}

void warn_of_files(const FolderFiles& listed, const std::string& folder, std::vector<std::string>& warnings) {
  if (!listed.odd_names.empty()) {
    warnings.push_back(
        fmt::format("files with unusual characters in their names are not copied: {}", few_of(listed.odd_names)));
  }
  if (!listed.code_above.empty()) {
    warnings.push_back(fmt::format(
        "Python modules of the folder above the source are not copied: {}; to copy them, name the folder: --hf-ref {}",
        few_of(listed.code_above), folder));
  }
  if (!listed.module_weights.empty()) {
    warnings.push_back(
        fmt::format("weights of further modules are not copied from --hf-ref: {}", few_of(listed.module_weights)));
  }
}

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

/// The name in `folder` that leads to `path`; empty where the path is elsewhere.
std::string name_towards(const std::string& folder, const std::string& path) {
  const std::string inside = join_path(folder, "");
  return path.starts_with(inside) ? first_component(std::string_view(path).substr(inside.size())) : std::string();
}

}  // namespace

CarriedFiles carried_files(const Session& session, const FilesFolder& folder, FilesOf what, bool takes_modules) {
  CarriedFiles carried;
  if (folder.path.empty()) return carried;
  const SourceStore& store = source_store(session);
  FolderFiles listed = model_files(store, folder, what, takes_modules);
  if (listed.names.size() > kMostFiles) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("cannot copy the {} files beside the weights", listed.names.size()))
        .in_file(folder.path)
        .because(
            fmt::format("that is more than {}, most of them Python modules, templates or tables of tokens", kMostFiles))
        .hint("copy those that the model needs into a folder, and name that with --hf-ref DIR");
  }
  for (const std::string& name : listed.names) {
    const std::string path = join_path(folder.path, name);
    AddedFile file{.path = name, .bytes = store.status(path).bytes};
    if (session.parts == nullptr) {
      file.open = [&store, root = folder.path, name]() -> std::shared_ptr<const RandomReader> {
        return store.open_below(root, name);
      };
    } else {  // Other ranks' files can be read during this step only.
      file.open = [held = held_in_memory(*store.open_below(folder.path, name))] { return held; };
    }
    carried.files.push_back(std::move(file));
    carried.paths.push_back(path);
  }
  warn_of_files(listed, folder.path, carried.warnings);
  carried.code = std::move(listed.code);
  return carried;
}

std::vector<std::string> left_behind(const Session& session, const TakenSource& taken, const Catalog& source,
                                     const CarriedFiles& carried, const std::string& folder) {
  const SourceStore& store = source_store(session);
  std::vector<std::string> warnings;
  std::vector<std::string> weights = taken.other_weights;
  std::erase_if(weights, [&](const std::string& name) {  // The reader has named some.
    return std::ranges::any_of(source.warnings, [&](const std::string& warning) { return mentions(warning, name); });
  });
  if (!weights.empty()) {
    warnings.push_back(
        fmt::format("other weights of the folder are left out: {}; name a file itself to export it", few_of(weights)));
  }
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
    if (const std::vector<std::string> others = other_names(store, each, known); !others.empty()) {
      warnings.push_back(hf_index::others_warning(others));
    }
  }
  return warnings;
}

}  // namespace shard::app
