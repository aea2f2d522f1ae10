#include "formats/safetensors/source_files.h"

#include <fmt/format.h>

#include <algorithm>

#include "formats/parts/hf_index/index_file.h"
#include "formats/safetensors/header.h"
#include "formats/safetensors/metadata.h"
#include "formats/safetensors/reader.h"
#include "libshard/core/error.h"
#include "libshard/core/suffixes.h"
#include "libshard/io/paths.h"

namespace shard::safetensors {

namespace {

constexpr std::string_view kIndexSuffix = ".safetensors.index.json";
constexpr std::string_view kUsualIndex = "model.safetensors.index.json";

using hf_index::DataFiles;

bool is_data_name(std::string_view name) { return name.ends_with(kSafetensorsSuffix) && !name.starts_with('.'); }
bool is_index_name(std::string_view name) { return hf_index::is_index_name(name, kIndexSuffix); }

DataFiles from_folder(const SourceStore& store, const std::string& folder) {
  DataFiles files;
  files.folder = folder;
  const std::vector<std::string> names = store.list(folder);
  const std::string index = hf_index::choose_index(folder, names, kIndexSuffix, kUsualIndex);
  if (!index.empty()) files.index = join_path(folder, index);
  for (const std::string& name : names) {
    if (is_data_name(name)) {
      files.names.push_back(name);
    } else if (name != index && !name.starts_with('.')) {
      files.others.push_back(name);
    }
  }
  if (files.names.empty() && index.empty()) {
    throw Error(ErrorCode::kNotFound, "the folder holds no .safetensors file")
        .in_file(folder)
        .of_kind(FindingKind::kMissingFile);
  }
  files.shown = files.names;
  return files;
}

/// The data files of an index that was named directly. Other files of its folder are ignored.
DataFiles from_index(const SourceStore& store, const std::string& path) {
  DataFiles files;
  files.folder = parent_path(path);
  files.index = path;
  for (const std::string& name : store.list(files.folder)) {
    if (is_data_name(name)) files.names.push_back(name);
  }
  files.shown = files.names;
  return files;
}

/// Whether the file contains whole tensors, as far as its start shows.
bool is_whole_file(const SourceStore& store, const std::string& path) {
  if (store.status(path).kind != FileKind::kFile) return false;
  const auto file = store.open(path);
  return looks_like_header(*file) && !names_sharding_info(*file);
}

bool is_safetensors_folder(const SourceStore& store, const std::string& folder) {
  const std::vector<std::string> names = store.list(folder);
  if (std::ranges::any_of(names, is_index_name)) return true;
  bool is_any_whole = false;
  for (const std::string& name : names) {
    if (!is_data_name(name)) continue;
    const std::string path = join_path(folder, name);
    if (store.status(path).kind != FileKind::kFile) continue;
    const auto file = store.open(path);
    if (names_sharding_info(*file)) return false;  // If one file is a shard, all are.
    is_any_whole = is_any_whole || looks_like_header(*file);
  }
  return is_any_whole;
}

}  // namespace

DataFiles find_tensor_files(const Source& source) {
  if (source.paths.empty()) throw Error(ErrorCode::kInvalidArgument, "no source was named");
  const std::string& first = source.paths.front();
  if (is_one_folder(source)) return from_folder(*source.store, first);
  if (source.paths.size() == 1) {
    const auto file = source.store->open(first);
    if (!looks_like_header(*file) && hf_index::is_index_file(*file, kSafetensorsSuffix))
      return from_index(*source.store, first);
  }
  return hf_index::files_as_given(source.paths);
}

bool detect(const Source& source) {
  const SourceStore& store = *source.store;
  if (is_one_folder(source)) return is_safetensors_folder(store, source.paths.front());
  if (source.paths.size() == 1) {
    const std::string& path = source.paths.front();
    return is_whole_file(store, path) || hf_index::is_index_file(*store.open(path), kSafetensorsSuffix);
  }
  return std::ranges::all_of(source.paths, [&](const std::string& path) { return is_whole_file(store, path); });
}

}  // namespace shard::safetensors
