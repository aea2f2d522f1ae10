#include "formats/open/placeholder_file.h"

#include <algorithm>

#include "formats/foreign.h"
#include "formats/megatron_tracker.h"
#include "libshard/io/paths.h"

namespace shard {
namespace {

std::vector<std::string> names_in(const SourceStore& store, const std::string& folder) {
  return store.is_folder(folder) ? store.list(folder) : std::vector<std::string>();
}

}  // namespace

std::optional<Error> placeholder_at(const SourceStore& store, const std::string& path) {
  if (path.ends_with('/')) return std::nullopt;  // Placeholders are files, and this names a folder.
  const std::vector<std::string> names = names_in(store, parent_path(path));
  return std::ranges::binary_search(names, base_name(path)) ? pointer_at(store, path) : std::nullopt;
}

PlaceholderFiles::PlaceholderFiles(const SourceStore& store, const std::vector<std::string>& sources)
    : store_(store), sources_(sources) {
  for (const std::string& source : sources) {
    if (!store.is_folder(source)) continue;
    folders_.push_back(source);
    const std::string iteration = tracked_iteration(store, source);
    if (!iteration.empty()) folders_.push_back(join_path(source, iteration));
  }
}

std::vector<Error> PlaceholderFiles::at_the_top() const {
  std::vector<Error> found;
  for (const std::string& folder : folders_) {
    for (const std::string& name : names_in(store_, folder)) {
      if (auto placeholder = pointer_at(store_, join_path(folder, name))) found.push_back(*std::move(placeholder));
    }
  }
  return found;
}

std::optional<Error> PlaceholderFiles::of_file(const std::string& file) {
  const auto is_in = [&](const std::string& source) {
    return file == source || file.starts_with(join_path(source, ""));
  };
  std::vector<std::string> paths;
  if (std::ranges::any_of(sources_, is_in)) paths.push_back(file);
  for (const std::string& folder : folders_) paths.push_back(join_path(folder, file));
  for (const std::string& path : paths) {
    if (!is_listed(path)) continue;
    if (auto placeholder = pointer_at(store_, path)) return placeholder;
    if (auto page = web_page_at(store_, path)) return page;
  }
  return std::nullopt;
}

bool PlaceholderFiles::is_listed(const std::string& path) {
  const std::string folder = parent_path(path);
  const std::scoped_lock lock(mutex_);
  const auto [known, is_new] = names_.try_emplace(folder);
  if (is_new) {
    for (std::string& name : names_in(store_, folder)) known->second.insert(std::move(name));
  }
  return known->second.contains(base_name(path));
}

}  // namespace shard
