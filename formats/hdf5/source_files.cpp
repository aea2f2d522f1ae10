#include "formats/hdf5/source_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "formats/hdf5_source.h"
#include "formats/parts/hf_index/folder_names.h"
#include "formats/parts/hf_index/index_file.h"
#include "formats/parts/json/json_cursor.h"
#include "libshard/core/error.h"
#include "libshard/core/sort_unique.h"
#include "libshard/io/paths.h"

namespace shard::hdf5 {

namespace {

struct NamedEntry {
  std::string path, file;
};

std::string text_of(JsonCursor& json, std::string_view raw) {
  return json.has_escapes() ? json.decode(raw) : std::string(raw);
}

class IndexReader {
 public:
  IndexReader(JsonCursor& json, std::string file) : json_(json), file_(std::move(file)) {}

  std::vector<NamedEntry> read() {
    hf_index::walk_index(json_, [this] { read_map(); });
    return std::move(entries_);
  }

 private:
  void read_map() {
    json_.enter_object();
    bool is_first = true;
    std::string_view name;
    std::string decoded;
    while (json_.next_name(name, decoded, is_first)) {
      const std::string path(name.substr(std::min(name.find_first_not_of('/'), name.size())));
      if (!json_.is_next('[')) {
        add(path, text_of(json_, json_.string()));
        continue;
      }
      json_.enter_array();
      bool is_first_file = true;
      while (json_.next_element(is_first_file)) add(path, text_of(json_, json_.string()));
    }
  }

  void add(const std::string& path, std::string file) {
    if (!hf_index::is_safe_path(file)) {
      throw Error(ErrorCode::kCorruption, fmt::format("the index places '{}' in '{}'", path, file))
          .in_file(file_)
          .because(hf_index::kMustBeBelow)
          .of_kind(FindingKind::kBadHeader);
    }
    entries_.push_back({path, std::move(file)});
  }

  JsonCursor& json_;
  std::string file_;
  std::vector<NamedEntry> entries_;
};

}  // namespace

std::string_view without_model_name(std::string_view path) {
  const std::size_t slash = path.find('/');
  return slash == std::string_view::npos ? path : path.substr(slash + 1);
}

KerasIndex read_keras_index(const RandomReader& file) {
  Arena arena(std::make_shared<Budget>());
  std::vector<std::byte> text = read_metadata(file, 0, file.size(), arena);
  text.push_back(std::byte{0});
  const char* const begin = reinterpret_cast<const char*>(text.data());
  JsonCursor json(begin, begin + file.size(), file.name(), FindingKind::kBadHeader);
  KerasIndex index;
  std::vector<NamedEntry> entries = IndexReader(json, file.name()).read();
  for (const NamedEntry& entry : entries) index.files.push_back(entry.file);
  sort_unique(index.files);
  for (NamedEntry& entry : entries) {
    const auto at = std::ranges::lower_bound(index.files, entry.file);
    index.entries.push_back({std::move(entry.path), static_cast<std::uint32_t>(at - index.files.begin())});
  }
  return index;
}

namespace {

constexpr std::string_view kMasterName = "master.h5";
constexpr std::string_view kRankPrefix = "rank-";
constexpr std::string_view kUsualTensorFlowIndex = "tf_model.h5.index.json";

bool is_index_name(std::string_view name) {
  const bool is_keras = name.ends_with(kKerasIndexSuffix) && !name.starts_with('.');
  return is_keras || hf_index::is_index_name(name, kTensorFlowIndexSuffix);
}

/// The index among a folder's names, or empty.
std::string index_in(const std::string& folder, const std::vector<std::string>& names) {
  const auto keras = std::ranges::find_if(
      names, [](const std::string& name) { return name.ends_with(kKerasIndexSuffix) && is_index_name(name); });
  if (keras != names.end()) return *keras;
  return hf_index::choose_index(folder, names, kTensorFlowIndexSuffix, kUsualTensorFlowIndex);
}

[[noreturn]] void refuse_folder(const std::string& folder, const std::vector<std::string>& files) {
  if (files.empty()) {
    throw Error(ErrorCode::kNotFound, "the folder contains no HDF5 file")
        .in_file(folder)
        .of_kind(FindingKind::kMissingFile);
  }
  if (files.front().starts_with(kRankPrefix)) {
    throw Error(ErrorCode::kNotFound, "the files of ranks have no master.h5 beside them")
        .in_file(join_path(folder, kMasterName))
        .because("it describes how the pieces in the files form tensors")
        .hint("fetch the missing file")
        .of_kind(FindingKind::kMissingFile);
  }
  Error error(ErrorCode::kCorruption,
              "the folder contains several HDF5 files, and no master.h5 or index that joins them");
  error.in_file(folder);
  for (const std::string_view suffix : kHdf5Suffixes) {
    for (const hf_index::CountedSet& set : hf_index::counted_sets(files, suffix)) {
      error.suggest(Remedy::kReadFiles, join_path(folder, set.pattern()));
    }
  }
  for (const std::string& name : files) error.suggest(Remedy::kReadFolder, join_path(folder, name));
  throw Error(error);
}

/// Refuses files without a master or an index. For files of ranks the missing file is the master.
void refuse_lone_parts(const std::string& folder, const std::vector<std::string>& files) {
  if (!files.empty() && files.front().starts_with(kRankPrefix)) refuse_folder(folder, files);
  for (const std::string_view suffix : kHdf5Suffixes) {
    if (const auto fault = hf_index::counted_fault(folder, files, suffix)) throw Error(*fault);
  }
}

Hdf5Files from_index(const SourceStore& store, const std::string& path) {
  Hdf5Files files;
  files.folder = parent_path(path);
  files.index = path;
  files.keras = read_keras_index(*store.open(path));
  files.names = files.keras.files;
  files.shown = files.names;
  return files;
}

/// Selects the files of a folder; the rest are the others.
Hdf5Files from_folder(const SourceStore& store, const std::string& folder) {
  const std::vector<std::string> names = store.list(folder);
  const std::string index = index_in(folder, names);
  Hdf5Files files;
  std::vector<std::string> data;
  std::ranges::copy_if(names, std::back_inserter(data), is_hdf5_name);
  if (!index.empty()) {
    files = from_index(store, join_path(folder, index));
  } else if (std::ranges::binary_search(data, kMasterName)) {
    files.names = {std::string(kMasterName)};
  } else if (refuse_lone_parts(folder, data); data.size() == 1) {
    files.names = data;
  } else {
    refuse_folder(folder, data);
  }
  files.folder = folder;
  files.shown = files.names;
  files.data = std::move(data);
  for (const std::string& name : names) {
    if (!name.starts_with('.') && !is_hdf5_name(name) && !is_index_name(name)) files.others.push_back(name);
  }
  return files;
}

}  // namespace

Hdf5Files find_hdf5_files(const Source& source) {
  if (source.paths.empty()) throw Error(ErrorCode::kInvalidArgument, "no source was named");
  const std::string& first = source.paths.front();
  if (source.paths.size() == 1) {
    if (is_one_folder(source)) return from_folder(*source.store, first);
    if (is_keras_index(*source.store, first)) return from_index(*source.store, first);
  }
  return {hf_index::files_as_given(source.paths), {}, {}};
}

void note_others(const Hdf5Files& files, Catalog& catalog, Findings& findings) {
  if (!files.others.empty()) catalog.warnings.push_back(hf_index::others_warning(files.others));
  std::set<std::string_view> read;
  for (const File& file : catalog.files) read.insert(file.path);
  for (const std::string& name : files.data) {
    if (read.contains(name)) continue;
    findings.warn(Error(ErrorCode::kCorruption, "the checkpoint uses nothing in this file")
                      .in_file(name)
                      .of_kind(FindingKind::kExtraFile)
                      .because("it may be from a different save into the same folder"));
  }
}

}  // namespace shard::hdf5
