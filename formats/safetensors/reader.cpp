#include "formats/safetensors/reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "formats/parts/hf_index/folder_names.h"
#include "formats/parts/hf_index/index_findings.h"
#include "formats/parts/hf_index/weight_map.h"
#include "formats/safetensors/header.h"
#include "formats/safetensors/metadata.h"
#include "formats/safetensors/source_files.h"
#include "libshard/catalog/catalog_builder.h"
#include "libshard/core/box.h"
#include "libshard/core/error.h"
#include "libshard/io/open_files.h"
#include "libshard/io/paths.h"

namespace shard::safetensors {

namespace {

/// Makes room for `more` entries without moving the vector for every small file.
template <class T>
void make_room(std::vector<T>& vector, std::size_t more) {
  const std::size_t needed = vector.size() + more;
  if (needed > vector.capacity()) vector.reserve(std::max(needed, vector.size() * 2));
}

class SafetensorsReader final : public Reader {
 public:
  SafetensorsReader(const Source& source, const OpenOptions& options)
      : store_(*source.store),
        findings_(*options.findings),
        source_(options.rank_paths != nullptr ? SourceFiles{.folder = source.paths.front()}
                                              : find_tensor_files(source)),
        files_([this](std::uint32_t index) { return open_file(paths_[index]); }) {
    catalog_.format = "safetensors";
    if (options.rank_paths != nullptr) {
      read_named(*options.rank_paths);
    } else if (!has_index()) {
      check_parts();
      for (std::size_t i = 0; i < source_.names.size(); ++i) try_file(source_.names[i], source_.shown[i], kNoIndex);
    } else {
      read_indexed();
    }
    note_shards();
    if (!source_.others.empty()) catalog_.warnings.push_back(hf_index::others_warning(source_.others));
    validate_catalog(catalog_, findings_);
    check_duplicates();
  }

  const Catalog& catalog() const override { return catalog_; }
  void locate(std::span<const std::uint32_t>) override {}  // Headers hold all places.
  std::shared_ptr<const RandomReader> file(std::uint32_t index) const override { return files_.get(index); }

 private:
  /// Whether there is an index, which is read then. One that is damaged is no loss: the headers say all but the files.
  bool has_index() {
    if (source_.index.empty()) return false;
    const std::string index = base_name(source_.index);
    try {
      map_ = hf_index::read_weight_map(*store_.open(source_.index));
      const auto fault = hf_index::lacks_parts(index, source_.names, map_.files, ".safetensors");
      if (fault) (findings_.goes_on() ? throwing_findings() : findings_).report(*fault);
      check_stale(index);
    } catch (const Error& error) {
      if (!findings_.goes_on() || !is_damage(error)) throw;
      findings_.mend(fmt::format("{}: rebuilt the index from the headers: {}", index, reason_of(error)));
      return false;
    }
    catalog_.arena->adopt(map_.arena);
    return true;
  }

  /// An index of files that are missing, beside a whole checkpoint. For repair that is what is read, unless some of the
  /// index's own files are left.
  void check_stale(const std::string& index) {
    auto stale = hf_index::find_stale(store_, source_.folder, index, source_.names, map_.files, ".safetensors");
    if (!stale) return;
    stale->error.suggest(Remedy::kReadFiles, join_path(source_.folder, stale->whole.pattern));
    if (!findings_.goes_on()) return findings_.report(stale->error);
    if (!stale->is_all_missing) return;
    source_.names = source_.shown = std::move(stale->whole.names);
    throw Error(stale->error);
  }

  /// Ranks are what `paths` says.
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

  /// Parts count themselves in their names. Files that are named one by one may be some of them.
  void check_parts() {
    if (!source_.folder.empty()) {
      if (const auto fault = hf_index::counted_fault(source_.folder, source_.names, ".safetensors")) {
        fault->kind() ? findings_.report(*fault) : throw Error(*fault);
      }
      return;
    }
    std::vector<std::string> names;
    std::ranges::transform(source_.names, std::back_inserter(names), base_name);
    if (const auto others = hf_index::unnamed_parts(names, ".safetensors")) note_unnamed(*others);
  }

  void note_unnamed(const Error& others) {
    findings_.warn(others);
    catalog_.warnings.emplace_back(others.what());
  }

  /// Reads one file's header. A fault in it is a finding, and the file is left out.
  /// \returns whether it was read.
  bool try_file(const std::string& name, const std::string& shown, std::uint32_t index_file) {
    const auto index = static_cast<std::uint32_t>(catalog_.files.size());
    const std::size_t tensors = catalog_.tensors.size();
    CatalogMark mark(catalog_, CatalogMark::Storages::kRemoved);
    paths_.push_back(name);
    catalog_.files.push_back({shown, 0, -1});
    try {
      read_file(index, index_file);
      mark.keep();
      return true;
    } catch (Error& error) {
      error.in_file(shown);
      const bool is_cut = error.kind() == FindingKind::kTruncated && catalog_.tensors.size() > tensors;
      if (is_cut) {  // The header is whole.
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

  /// A name that several tensors from `begin` on have, or empty.
  std::string repeated_name(std::size_t begin) const {
    std::vector<std::string_view> names;
    for (std::size_t i = begin; i < catalog_.tensors.size(); ++i) names.push_back(catalog_.tensors[i].name);
    std::ranges::sort(names);
    const auto twice = std::ranges::adjacent_find(names);
    return twice == names.end() ? std::string() : std::string(*twice);
  }

  /// Marks tensors from `begin` on that a file of so many bytes does not hold. \returns the first one's name.
  std::string mark_cut(std::size_t begin, std::int64_t file_bytes) {
    std::string first;
    for (std::size_t i = begin; i < catalog_.tensors.size(); ++i) {
      const Storage& storage = catalog_.storages[i];
      catalog_.tensors[i].damaged = storage.offset + storage.bytes > file_bytes;
      if (catalog_.tensors[i].damaged && first.empty()) first = catalog_.tensors[i].name;
    }
    return first;
  }

  void read_file(std::uint32_t index, std::uint32_t index_file) {
    const std::shared_ptr<const RandomReader> opened = files_.get(index);
    File& file = catalog_.files[index];
    file.bytes = opened->size();
    file.identity = opened->identity();
    const HeaderText header = read_header_text(*opened, file.path);
    catalog_.arena->earn(opened->allocated_bytes(0, header.bytes));
    const std::size_t entries = max_entries(header);
    make_room(catalog_.storages, entries);
    make_room(catalog_.stored, entries);
    make_room(catalog_.chunks, entries);
    make_room(catalog_.tensors, entries);
    MetadataMap metadata;
    CollectedFindings ends;
    const std::size_t first_storage = catalog_.storages.size();
    const auto take = [&](const HeaderEntry& entry) {
      if (index_file == kNoIndex || is_wanted(entry.name, index_file)) add_tensor(entry, index);
    };
    parse_header(header, file.path, file.bytes, metadata, take, findings_.goes_on() ? ends : throwing_findings());
    drop_sharding_info(metadata, file.path);
    merge_metadata(catalog_, metadata, file.path);
    for (const Error& end : ends.all()) lose_beyond(file, first_storage, end);
  }

  /// For repair: tensors whose bytes reach past the end of the file are lost; all others are not.
  void lose_beyond(const File& file, std::size_t first_storage, const Error& end) {
    findings_.mend(fmt::format("{}: {}", file.path, reason_of(end)));
    for (std::size_t i = first_storage; i < catalog_.storages.size(); ++i) {
      const Storage& storage = catalog_.storages[i];
      if (storage.bytes > 0 && storage.offset + storage.bytes > file.bytes) {
        findings_.lose_storage(static_cast<std::uint32_t>(i), end);
      }
    }
  }

  void add_tensor(const HeaderEntry& entry, std::uint32_t file) {
    StoredTensor stored;
    set_shape(entry.shape, stored);
    stored.dtype = entry.dtype;
    stored.storage = builder_.add_storage({.offset = entry.offset, .bytes = entry.bytes, .file = file});
    builder_.add_tensor(catalog_.arena->copy(entry.name), {}, stored);
  }

  void set_shape(std::span<const std::int64_t> shape, StoredTensor& stored) {
    std::array<std::int64_t, kMaxDims> strides;
    const std::span<std::int64_t> used(strides.data(), shape.size());
    row_major_strides(shape, used);
    stored.shape = catalog_.arena->dims(shape);
    stored.strides = catalog_.arena->dims(used);
  }

  /// Refuses pieces. Whole tensors may say where they begin, at 0, as torch's writer of full checkpoints does.
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
          .because("its __metadata__ holds DCP_SHARDING_INFO: the tensors in it are pieces")
          .suggest(Remedy::kReadAs, "dcp-hf");
    }
    metadata.erase(info);
    metadata.erase(kDcpVersionKey);
  }

  void read_indexed() {
    std::vector<bool> is_read;
    for (std::uint32_t i = 0; i < map_.files.size(); ++i) is_read.push_back(try_indexed_file(i));
    check_index(is_read);
    std::vector<std::string> outside;
    std::ranges::set_difference(source_.names, map_.files, std::back_inserter(outside));
    for (const std::string& name : outside) findings_.warn(hf_index::extra_file(name));
    const std::string index = base_name(source_.index);
    for (const std::string& name : unlisted_) findings_.tolerate(hf_index::unlisted_tensor(name, index));
    for (const std::string& name : elsewhere_) findings_.tolerate(hf_index::misplaced_tensor(name, index));
    warn("skipped files that the index does not list", outside);
    warn("tensors that the index does not list are read from its files", unlisted_);
    warn("tensors in another file than the index says are left out there", elsewhere_);
  }

  void warn(const char* what, const std::vector<std::string>& names) {
    if (!names.empty()) catalog_.warnings.push_back(fmt::format("{}: {}", what, hf_index::first_few(names)));
  }

  /// \returns whether its tensors are known now.
  bool try_indexed_file(std::uint32_t index_file) {
    const std::string& name = map_.files[index_file];
    const std::string path = join_path(source_.folder, name);
    const bool is_listed = std::ranges::binary_search(source_.names, name);
    if (is_listed || store_.status(path).kind != FileKind::kAbsent) return try_file(name, name, index_file);
    findings_.report(Error(ErrorCode::kNotFound, fmt::format("the index names {}, which is missing", name))
                         .in_file(path)
                         .hint("fetch the missing file")
                         .of_kind(FindingKind::kMissingFile));
    return false;
  }

  /// As transformers does, all tensors of a listed file are taken; where the index places one elsewhere, it decides.
  bool is_wanted(std::string_view name, std::uint32_t index_file) {
    hf_index::WeightMapEntry* entry = map_.find(name);
    if (entry == nullptr) {
      unlisted_.emplace_back(name);
      return true;
    }
    if (entry->file != index_file) {
      elsewhere_.emplace_back(name);
      return false;
    }
    entry->seen = true;
    return true;
  }

  /// Files that were not read are findings already, not each of their tensors.
  void check_index(const std::vector<bool>& is_read) {
    for (const hf_index::WeightMapEntry& entry : map_.entries) {
      const std::string& file = map_.files[entry.file];
      if (!is_read[entry.file])
        findings_.lose_tensor(entry.name, file, "the index places it in a file that is missing or damaged");
      if (entry.seen || !is_read[entry.file]) continue;
      findings_.report(Error(ErrorCode::kCorruption,
                             fmt::format("the index places '{}' in {}, whose header lacks it", entry.name, file))
                           .in_file(base_name(source_.index))
                           .of_tensor(entry.name)
                           .of_kind(FindingKind::kIndexMismatch));
    }
  }

  /// What torch leaves beside the files when it saves with enable_consolidation.
  void note_shards() {
    const auto shards = std::ranges::find(source_.others, "sharded");
    if (shards == source_.others.end()) return;
    if (store_.status(join_path(source_.folder, *shards)).kind != FileKind::kFolder) return;
    catalog_.warnings.emplace_back(
        "sharded/ holds the shards from which this checkpoint was assembled; they are not read");
    source_.others.erase(shards);
  }

  std::string_view file_of(const Tensor& tensor) const { return catalog_.file_of(tensor).path; }

  void check_duplicates() {
    std::vector<Tensor>& tensors = catalog_.tensors;
    for (std::size_t i = 1; i < tensors.size(); ++i) {
      if (tensors[i].name != tensors[i - 1].name || tensors[i].rank != tensors[i - 1].rank) continue;
      const std::string_view first = file_of(tensors[i - 1]), second = file_of(tensors[i]);
      Error error = duplicate(tensors[i].name);
      if (first != second) {
        error =
            Error(ErrorCode::kCorruption, fmt::format("tensor '{}' is in {} and in {}", tensors[i].name, first, second))
                .of_tensor(tensors[i].name)
                .of_kind(FindingKind::kDuplicateName)
                .hint("pass only files that belong together, or add their index");
      }
      findings_.report(error.in_file(second));
      tensors[i - 1].damaged = tensors[i].damaged = true;  // Nothing says which of them it is.
    }
  }

  const SourceStore& store_;
  Findings& findings_;
  SourceFiles source_;
  std::vector<std::string> paths_;  ///< The path of each file of the catalog, to open it again.
  mutable OpenFiles files_;
  Catalog catalog_ = source_catalog();
  CatalogBuilder builder_{catalog_};
  hf_index::WeightMap map_;  ///< Empty without an index.
  std::vector<std::string> unlisted_, elsewhere_;
};

}  // namespace

std::unique_ptr<Reader> open(const Source& source, const OpenOptions& options) {
  return std::make_unique<SafetensorsReader>(source, options);
}

}  // namespace shard::safetensors
