#include "formats/safetensors/source_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "formats/hub/index_file.h"
#include "formats/safetensors/header.h"
#include "formats/safetensors/metadata.h"
#include "libshard/core/error.h"

namespace shard::safetensors {

namespace {

constexpr std::string_view kSuffix = ".safetensors";
constexpr std::string_view kIndexSuffix = ".safetensors.index.json";
constexpr std::string_view kUsualIndex = "model.safetensors.index.json";

bool is_data_name(std::string_view name) { return name.ends_with(kSuffix) && !name.starts_with('.'); }
bool is_index_name(std::string_view name) { return hub::is_index_name(name, kIndexSuffix); }

SourceFiles from_folder(const FileSystem& fs, const std::string& folder) {
  SourceFiles files;
  files.folder = folder;
  const std::vector<std::string> names = fs.list(folder);
  const std::string index = hub::choose_index(folder, names, kIndexSuffix, kUsualIndex);
  if (!index.empty()) files.index = join_path(folder, index);
  for (const std::string& name : names) {
    if (is_data_name(name)) {
      files.names.push_back(name);
    } else if (name != index && !name.starts_with('.')) {
      files.others.push_back(name);
    }
  }
  if (files.names.empty() && index.empty()) {
    throw Error(ErrorCode::kNotFound, "the folder holds no .safetensors file").in_file(folder).of_kind("missing_file");
  }
  files.shown = files.names;
  return files;
}

/// An index named directly: its folder's data files, without the folder's other files being of interest.
SourceFiles from_index(const FileSystem& fs, const std::string& path) {
  SourceFiles files;
  files.folder = parent_path(path);
  files.index = path;
  for (const std::string& name : fs.list(files.folder)) {
    if (is_data_name(name)) files.names.push_back(name);
  }
  files.shown = files.names;
  return files;
}

/// Base names where they differ, else the paths as given.
std::vector<std::string> shown_names(const std::vector<std::string>& paths) {
  std::vector<std::string> names;
  std::ranges::transform(paths, std::back_inserter(names), [](const std::string& path) { return base_name(path); });
  const bool differ = std::set<std::string>(names.begin(), names.end()).size() == names.size();
  return differ ? names : paths;
}

/// Whole tensors, as far as the file's front says.
bool is_whole_file(const FileSystem& fs, const std::string& path) {
  if (fs.status(path).kind != FileKind::kFile) return false;
  const auto file = fs.open(path);
  return looks_like_header(*file) && !names_sharding_info(*file);
}

bool is_safetensors_folder(const FileSystem& fs, const std::string& folder) {
  const std::vector<std::string> names = fs.list(folder);
  if (std::ranges::any_of(names, is_index_name)) return true;
  bool is_any_whole = false;
  for (const std::string& name : names) {
    if (!is_data_name(name)) continue;
    const std::string path = join_path(folder, name);
    if (fs.status(path).kind != FileKind::kFile) continue;
    const auto file = fs.open(path);
    if (names_sharding_info(*file)) return false;  // One shard makes all of them shards.
    is_any_whole = is_any_whole || looks_like_header(*file);
  }
  return is_any_whole;
}

}  // namespace

SourceFiles find_source_files(const Source& source) {
  if (source.paths.empty()) throw Error(ErrorCode::kInvalidArgument, "no source was named");
  const std::string& first = source.paths.front();
  if (source.paths.size() == 1) {
    if (source.fs->status(first).kind == FileKind::kFolder) return from_folder(*source.fs, first);
    const auto file = source.fs->open(first);
    if (!looks_like_header(*file) && hub::is_index_file(*file, kSuffix)) return from_index(*source.fs, first);
  }
  SourceFiles files;
  files.names = source.paths;
  files.shown = shown_names(source.paths);
  return files;
}

bool is_safetensors(const Source& source) {
  const FileSystem& fs = *source.fs;
  if (source.paths.size() == 1) {
    const std::string& path = source.paths.front();
    if (fs.status(path).kind == FileKind::kFolder) return is_safetensors_folder(fs, path);
    return is_whole_file(fs, path) || hub::is_index_file(*fs.open(path), kSuffix);
  }
  return std::ranges::all_of(source.paths, [&](const std::string& path) { return is_whole_file(fs, path); });
}

}  // namespace shard::safetensors
