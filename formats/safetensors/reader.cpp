#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

#include "formats/format.h"
#include "formats/parts/hf_index/folder_names.h"
#include "formats/parts/hf_index/index_file.h"
#include "formats/parts/hf_index/indexed_folder.h"
#include "formats/safetensors/format.h"
#include "formats/safetensors/header.h"
#include "formats/safetensors/metadata.h"
#include "libshard/catalog/catalog_builder.h"
#include "libshard/core/box.h"
#include "libshard/core/error.h"
#include "libshard/core/pages.h"
#include "libshard/core/suffixes.h"
#include "libshard/io/open_files.h"
#include "libshard/io/paths.h"
#include "libshard/map/documents/document.h"

namespace shard::safetensors {

namespace {

// The files of a source: one file, several, a folder, or an index.

/// \throws Error kNotFound    the folder contains no such file.
/// \throws Error kCorruption  the folder has several indexes, and none has the usual name.
hf_index::DataFiles find_tensor_files(const Source& source);

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
    throw Error(ErrorCode::kNotFound, "the folder contains no .safetensors file")
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
  if (!store.is_file(path)) return false;
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
    if (!store.is_file(path)) continue;
    const auto file = store.open(path);
    if (names_sharding_info(*file)) return false;  // If one file is a shard, all are.
    is_any_whole = is_any_whole || looks_like_header(*file);
  }
  return is_any_whole;
}

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

/// Reserves room for `more` entries without moving the vector for every small file. \returns the room
template <class T>
std::span<std::byte> make_room(std::vector<T>& vector, std::size_t more) {
  const std::size_t needed = vector.size() + more;
  if (needed > vector.capacity()) vector.reserve(std::max(needed, vector.size() * 2));
  return {reinterpret_cast<std::byte*>(vector.data() + vector.size()), more * sizeof(T)};
}

class SafetensorsReader final : public Reader {
 public:
  SafetensorsReader(const Source& source, const OpenOptions& options)
      : store_(*source.store),
        findings_(*options.findings),
        threads_(options.threads),
        source_(options.rank_paths != nullptr ? hf_index::DataFiles{.folder = source.paths.front()}
                                              : find_tensor_files(source)),
        files_([this](std::uint32_t index) { return open_file(paths_[index]); }) {
    catalog_.format = "safetensors";
    if (options.rank_paths != nullptr) {
      read_named(*options.rank_paths);
    } else if (!index_.read_index()) {
      check_parts();
      for (std::size_t i = 0; i < source_.names.size(); ++i) try_file(source_.names[i], source_.shown[i], kNoIndex);
    } else {
      catalog_.arena->adopt(index_.arena());
      index_.read_files([this](const std::string& name, std::uint32_t file) { return try_file(name, name, file); });
      if (findings_.goes_on()) take_all();
      index_.finish(catalog_.warnings);
      if (findings_.goes_on()) drop_other_copies();
    }
    if (options.rank_paths == nullptr) warn_of_rank();
    note_shards();
    if (!source_.others.empty()) catalog_.warnings.push_back(hf_index::others_warning(source_.others));
    validate_catalog(catalog_, findings_, threads_);
    check_duplicates();
  }

  const Catalog& catalog() const override { return catalog_; }
  void locate(std::span<const std::uint32_t>) override {}  // Does nothing: headers contain all offsets.
  std::shared_ptr<const RandomReader> file(std::uint32_t index) const override { return files_.get(index); }

 private:
  /// Reads files whose ranks `paths` gives.
  void read_named(const RankPaths& paths) {
    catalog_.world_size = paths.ranks;
    catalog_.rank_files = RankFiles::kPlain;
    for (const RankPath& path : paths.files) {
      const std::size_t first = catalog_.tensors.size();
      try_file(path.path, path.path, kNoIndex);
      catalog_.files.back().rank = static_cast<int>(path.rank);
      for (Tensor& tensor : std::span(catalog_.tensors).subspan(first)) tensor.rank = static_cast<int>(path.rank);
    }
  }

  std::unique_ptr<RandomReader> open_file(const std::string& name) const {
    return source_.folder.empty() ? store_.open(name) : store_.open_below(source_.folder, name);
  }

  /// Checks the parts whose names count them. Files that were named one by one may be a subset.
  void check_parts() {
    if (!source_.folder.empty()) {
      if (const auto fault = hf_index::counted_fault(source_.folder, source_.names, kSafetensorsSuffix)) {
        fault->kind() ? findings_.report(*fault) : throw Error(*fault);
      }
      return;
    }
    hf_index::note_unnamed_parts(source_.names, std::array{kSafetensorsSuffix}, findings_, catalog_.warnings);
  }

  /// Reads one file's header. A fault in it is a finding, and the file is skipped.
  /// \returns whether it was read.
  bool try_file(const std::string& name, const std::string& shown, std::uint32_t index_file) {
    const auto index = static_cast<std::uint32_t>(catalog_.files.size());
    const std::size_t tensors = catalog_.tensors.size();
    CatalogMark mark(catalog_, CatalogMark::Storages::kRemoved);
    paths_.push_back(name);
    catalog_.files.push_back({shown, 0, -1});
    index_files_.push_back(index_file);
    try {
      read_file(index, index_file);
      mark.keep();
      return true;
    } catch (Error& error) {
      error.in_file(shown);
      const bool is_cut = error.kind() == FindingKind::kTruncated && catalog_.tensors.size() > tensors;
      if (is_cut) {  // The header is complete, and only data is missing.
        mark.keep();
        findings_.report(error.of_tensor(mark_cut(tensors, catalog_.files[index].bytes)));
        return true;
      }
      const std::string repeated = error.kind() == FindingKind::kOverlap ? repeated_name(tensors) : std::string();
      mark.roll_back();
      findings_.report(repeated.empty() ? error : duplicate(repeated).in_file(shown));
      return false;
    }
  }

  static Error duplicate(std::string_view name) {
    return Error(ErrorCode::kCorruption, fmt::format("tensor '{}' appears twice", name))
        .of_tensor(name)
        .of_kind(FindingKind::kDuplicateName);
  }

  /// A name that occurs twice among the tensors from `begin` on, or empty.
  std::string repeated_name(std::size_t begin) const {
    std::vector<std::string_view> names;
    for (std::size_t i = begin; i < catalog_.tensors.size(); ++i) names.push_back(catalog_.tensors[i].name);
    std::ranges::sort(names);
    const auto twice = std::ranges::adjacent_find(names);
    return twice == names.end() ? std::string() : std::string(*twice);
  }

  /// Marks tensors from `begin` on that extend past the end of a file of `file_bytes`. \returns the first name.
  std::string mark_cut(std::size_t begin, std::int64_t file_bytes) {
    std::string first;
    for (std::size_t i = begin; i < catalog_.tensors.size(); ++i) {
      const Storage& storage = catalog_.storages[i];
      catalog_.tensors[i].damaged = storage.offset + storage.bytes > file_bytes;
      if (catalog_.tensors[i].damaged && first.empty()) first = catalog_.tensors[i].name;
    }
    return first;
  }

  /// Reserves room for `more` tensors. \returns the thread that takes the room's pages, if they are many
  std::jthread make_room_for(std::size_t more) {
    constexpr std::size_t kWorthThread = 1 << 16;
    const std::vector<std::span<std::byte>> room{make_room(catalog_.storages, more), make_room(catalog_.stored, more),
                                                 make_room(catalog_.chunks, more), make_room(catalog_.tensors, more)};
    return threads_ > 1 && more >= kWorthThread ? take_pages(room) : std::jthread();
  }

  void read_file(std::uint32_t index, std::uint32_t index_file) {
    const std::shared_ptr<const RandomReader> opened = files_.get(index);
    File& file = catalog_.files[index];
    file.bytes = opened->size();
    file.identity = opened->identity();
    const HeaderText header = read_header_text(*opened, file.path, threads_, *catalog_.arena);
    const std::jthread taking = make_room_for(header.max_entries);
    MetadataMap metadata;
    CollectedFindings ends;
    const std::size_t first_storage = catalog_.storages.size();
    const auto take = [&](const HeaderEntry& entry) {
      // For repair, all tensors are taken, because the index may be damaged.
      const bool takes_all = index_file == kNoIndex || findings_.goes_on();
      if (takes_all || index_.take(entry.name, index_file)) add_tensor(entry, index);
    };
    parse_header(header, file.path, file.bytes, metadata, take, findings_.goes_on() ? ends : throwing_findings());
    drop_sharding_info(metadata, file.path);
    merge_metadata(catalog_, metadata, file.path);
    for (const Error& end : ends.all()) lose_beyond(file, first_storage, end);
  }

  /// For repair: tensors whose bytes extend past the end of the file are losses; the others are kept.
  void lose_beyond(const File& file, std::size_t first_storage, const Error& end) {
    findings_.mend(fmt::format("{}: {}", file.path, reason_of(end)));
    for (std::size_t i = first_storage; i < catalog_.storages.size(); ++i) {
      const Storage& storage = catalog_.storages[i];
      if (storage.bytes > 0 && storage.offset + storage.bytes > file.bytes) {
        findings_.lose_storage(static_cast<std::uint32_t>(i), end);
      }
    }
  }

  /// The shape fills the bytes, as the header's parser has checked.
  void add_tensor(const HeaderEntry& entry, std::uint32_t file) {
    StoredTensor stored;
    set_shape(entry.shape, stored);
    stored.dtype = entry.dtype;
    stored.storage = builder_.add_storage({.offset = entry.offset, .bytes = entry.bytes, .file = file});
    builder_.begin(catalog_.arena->copy(entry.name), {}, stored.dtype, stored.shape);
    builder_.add_whole(builder_.add_stored(stored));
  }

  void set_shape(std::span<const std::int64_t> shape, StoredTensor& stored) {
    std::array<std::int64_t, kMaxDims> strides;
    const std::span<std::int64_t> used(strides.data(), shape.size());
    row_major_strides(shape, used);
    stored.shape = catalog_.arena->dims(shape);
    stored.strides = catalog_.arena->dims(used);
  }

  /// Refuses pieces. Accepts whole tensors with offsets 0, as torch's writer of full checkpoints records.
  static void drop_sharding_info(MetadataMap& metadata, const std::string& file) {
    const auto info = metadata.find(kShardingInfoKey);
    if (info == metadata.end()) return;
    bool are_pieces = base_name(file).starts_with("shard-");
    parse_sharding_info(info->second, file, [&](const ShardingEntry& entry) {
      are_pieces = are_pieces || entry.tensor != entry.key ||
                   std::ranges::any_of(entry.offsets, [](std::int64_t offset) { return offset != 0; });
    });
    if (are_pieces) {
      throw Error(ErrorCode::kUnsupported, "this is a shard of a dcp-hf checkpoint, not whole tensors")
          .in_file(file)
          .because("its __metadata__ contains DCP_SHARDING_INFO, so its tensors are pieces")
          .suggest(Remedy::kReadAs, "dcp-hf");
    }
    metadata.erase(info);
    metadata.erase(kDcpVersionKey);
  }

  /// vLLM's files of one rank (`sharded_state`) record neither the number of ranks nor whole shapes. Only those of a
  /// single rank have whole tensors, and shardctl's own record it.
  void warn_of_rank() {
    const auto ranks = catalog_.metadata.extract(kWorldSizeKey);
    if (!ranks.empty() && ranks.mapped() == "1") return;
    const auto is_of_rank = [](const std::string& name) { return base_name(name).starts_with("model-rank-"); };
    const auto file = std::ranges::find_if(source_.names, is_of_rank);
    if (file == source_.names.end()) return;
    const Error error = Error(ErrorCode::kCorruption, "files of other ranks that are missing could not be noticed")
                            .in_file(base_name(*file))
                            .of_kind(FindingKind::kWorldSizeMismatch)
                            .because(
                                "vLLM's files do not record how many ranks wrote them, and tensors of several "
                                "ranks are only parts");
    findings_.warn(error);
    catalog_.warnings.push_back(fmt::format("{}: {}: {}", error.file(), error.what(), error.why()));
  }

  /// Adds a warning about the folder that torch leaves beside the files when it saves with enable_consolidation.
  void note_shards() {
    const auto shards = std::ranges::find(source_.others, "sharded");
    if (shards == source_.others.end()) return;
    if (!store_.is_folder(join_path(source_.folder, *shards))) return;
    catalog_.warnings.emplace_back(
        "sharded/ contains the shards from which this checkpoint was assembled; they are not read");
    source_.others.erase(shards);
  }

  std::uint32_t index_file_of(const Tensor& tensor) const { return index_files_[catalog_.storage_of(tensor).file]; }

  void take_all() {
    for (const Tensor& tensor : catalog_.tensors) index_.take(tensor.name, index_file_of(tensor));
  }

  void drop_other_copies() {
    for (Tensor& tensor : catalog_.tensors) {
      tensor.damaged = tensor.damaged || index_.is_other_copy(tensor.name, index_file_of(tensor));
    }
  }

  /// Whether the index has decided which file's tensor is kept, so that all others are damaged already. For repair.
  bool is_decided(std::string_view tensor) { return findings_.goes_on() && index_.lists(tensor); }

  std::string_view file_of(const Tensor& tensor) const { return catalog_.file_of(tensor).path; }

  void check_duplicates() {
    std::vector<Tensor>& tensors = catalog_.tensors;
    for (std::size_t i = 1; i < tensors.size(); ++i) {
      if (tensors[i].name != tensors[i - 1].name || tensors[i].rank != tensors[i - 1].rank) continue;
      const std::string_view first = file_of(tensors[i - 1]), second = file_of(tensors[i]);
      if (first != second && is_decided(tensors[i].name)) continue;
      Error error = duplicate(tensors[i].name);
      if (first != second) {
        error =
            Error(ErrorCode::kCorruption, fmt::format("tensor '{}' is in {} and in {}", tensors[i].name, first, second))
                .of_tensor(tensors[i].name)
                .of_kind(FindingKind::kDuplicateName)
                .hint("pass only files that belong together, or add their index");
      }
      findings_.report(error.in_file(second));
      tensors[i - 1].damaged = tensors[i].damaged = true;  // It is unknown which of the two is the original.
    }
  }

  const SourceStore& store_;
  Findings& findings_;
  const int threads_;
  hf_index::DataFiles source_;
  std::vector<std::string> paths_;          ///< The path of each file of the catalog, to open it again.
  std::vector<std::uint32_t> index_files_;  ///< The number of each of these files in the index.
  mutable OpenFiles files_;
  Catalog catalog_ = source_catalog();
  CatalogBuilder builder_{catalog_};
  // Reads all tensors of a listed file except those that the index places in a different file, as transformers does.
  hf_index::IndexedFolder index_{store_, source_, {kSafetensorsSuffix, "headers", true, true}, findings_};
};

constexpr std::array<std::string_view, 1> kSuffixes{kSafetensorsSuffix};

}  // namespace

bool detect(const Source& source) {
  const SourceStore& store = *source.store;
  if (is_one_folder(source)) return is_safetensors_folder(store, source.paths.front());
  if (source.paths.size() == 1) {
    const std::string& path = source.paths.front();
    return is_whole_file(store, path) || hf_index::is_index_file(*store.open(path), kSafetensorsSuffix);
  }
  return std::ranges::all_of(source.paths, [&](const std::string& path) { return is_whole_file(store, path); });
}

std::unique_ptr<Reader> open(const Source& source, const OpenOptions& options) {
  return std::make_unique<SafetensorsReader>(source, options);
}

}  // namespace shard::safetensors

const shard::Format shard::kSafetensorsFormat{
    .traits = {.name = "safetensors", .notes = true},
    .suffixes = safetensors::kSuffixes,
    .loader_suffix = kSafetensorsSuffix,
    .map_container = MapContainer::kSafetensors,
    .detect = safetensors::detect,
    .open = safetensors::open,
    .make_writer = safetensors::make_writer,
};
