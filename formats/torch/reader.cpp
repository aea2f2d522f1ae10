#include "formats/torch/reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "formats/hub/weight_map.h"
#include "formats/torch/load_tree.h"
#include "formats/torch/saved_file.h"
#include "formats/torch/source_files.h"
#include "libshard/core/error.h"
#include "libshard/io/open_files.h"

namespace shard::torch_save {

namespace {

using hub::WeightMap;
using hub::WeightMapEntry;

// Zips hold their files open; of checkpoints with more files places are looked up at once and the zips closed.
constexpr std::size_t kMaxOpenZips = 128;

std::string and_more(std::size_t count) { return count == 0 ? std::string() : fmt::format(" and {} more", count); }

class TorchReader final : public Reader {
 public:
  TorchReader(const Source& source, const OpenOptions& options)
      : fs_(*source.fs),
        findings_(*options.findings),
        source_(find_source_files(source)),
        files_([this](std::uint32_t index) { return open_file(names_[index]); }) {
    catalog_.format = "torch";
    if (source_.index.empty()) {
      for (const std::string& name : source_.names) try_file(name);
    } else {
      read_indexed();
    }
    merge_roots();
    finish_catalog(catalog_);
    check_duplicates();
  }

  const Catalog& catalog() const override { return catalog_; }
  std::shared_ptr<const RandomReader> file(std::uint32_t index) const override { return files_.get(index); }

  void locate(std::span<const std::uint32_t> tensors) override {
    std::vector<std::uint32_t> wanted;
    for (const std::uint32_t tensor : tensors) {
      for (const Chunk& chunk : catalog_.chunks_of(catalog_.tensors[tensor])) {
        wanted.push_back(catalog_.stored[chunk.stored].storage);
      }
    }
    locate_storages(std::move(wanted));
  }

 private:
  std::unique_ptr<RandomReader> open_file(const std::string& name) const {
    return source_.folder.empty() ? fs_.open(name) : fs_.open_below(source_.folder, name);
  }

  void locate_storages(std::vector<std::uint32_t> wanted) {
    std::erase_if(wanted,
                  [&](std::uint32_t i) { return catalog_.storages[i].offset >= 0 || !catalog_.storages[i].plain; });
    std::ranges::sort(
        wanted, {}, [&](std::uint32_t i) { return std::pair(catalog_.storages[i].file, records_[i]->header_offset); });
    for (const std::uint32_t i : wanted) {
      Storage& storage = catalog_.storages[i];
      if (storage.offset < 0) storage.offset = zips_[storage.file]->data_offset(*records_[i]);
    }
  }

  /// Reads one file; what is wrong with it is a finding, and the file is left out.
  void try_file(const std::string& name) {
    try {
      read_file(name);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kUnsupported) throw;
      findings_.report(error);
    }
  }

  void read_file(const std::string& name) {
    const std::uint32_t index = static_cast<std::uint32_t>(names_.size());
    names_.push_back(name);
    zips_.emplace_back();
    roots_.push_back(nullptr);
    const std::string shown = source_.folder.empty() ? base_name(name) : name;
    catalog_.files.push_back({shown, 0, -1});
    const std::shared_ptr<const RandomReader> file = files_.get(index);
    catalog_.files.back().bytes = file->size();
    SavedFile saved = open_saved_file(file, *catalog_.arena, shown);
    const std::size_t first_storage = catalog_.storages.size();
    TreeLoader(catalog_, records_, saved, index).load();
    roots_[index] = saved.root;
    zips_[index] = std::move(saved.zip);
    if (catalog_.format_version.empty()) catalog_.format_version = saved.version;
    if (source_.names.size() > kMaxOpenZips) close_zip(index, first_storage);
  }

  void close_zip(std::uint32_t index, std::size_t first_storage) {
    std::vector<std::uint32_t> storages;
    for (std::size_t i = first_storage; i < catalog_.storages.size(); ++i) {
      storages.push_back(static_cast<std::uint32_t>(i));
    }
    locate_storages(std::move(storages));
    zips_[index].reset();
  }

  void read_indexed() {
    WeightMap map = hub::read_weight_map(*fs_.open(source_.index));
    for (const std::string& name : source_.names) {
      if (!std::ranges::binary_search(map.files, name)) {
        catalog_.warnings.push_back(fmt::format("{} is left out: the index does not name it", name));
      }
    }
    source_.names = map.files;
    std::vector<bool> was_read;
    for (const std::string& name : map.files) {
      was_read.push_back(false);
      if (fs_.status(join_path(source_.folder, name)).kind != FileKind::kAbsent) {
        try_file(name);
        was_read.back() = roots_.back() != nullptr;
      } else {
        findings_.report(Error(ErrorCode::kNotFound, fmt::format("the index names {}, which is not there", name))
                             .in_file(join_path(source_.folder, name))
                             .of_kind("missing_file")
                             .hint("fetch the missing file"));
      }
    }
    check_index(map, was_read);
  }

  std::string_view file_of(const Tensor& tensor) const {
    const Chunk& chunk = catalog_.chunks[tensor.first_chunk];
    return catalog_.files[catalog_.storages[catalog_.stored[chunk.stored].storage].file].path;
  }

  void check_index(WeightMap& map, const std::vector<bool>& was_read) {
    std::vector<std::string_view> unlisted;
    for (const Tensor& tensor : catalog_.tensors) {
      WeightMapEntry* entry = map.find(tensor.name);
      if (entry == nullptr) {
        unlisted.push_back(tensor.name);
      } else if (map.files[entry->file] == file_of(tensor)) {
        entry->seen = true;
      }
    }
    if (!unlisted.empty()) {
      catalog_.warnings.push_back(fmt::format("tensors that the index does not list are read from its files: '{}'{}",
                                              unlisted[0], and_more(unlisted.size() - 1)));
    }
    for (const WeightMapEntry& entry : map.entries) {
      if (entry.seen || !was_read[entry.file]) continue;
      const std::string& file = map.files[entry.file];
      findings_.report(
          Error(ErrorCode::kCorruption, fmt::format("the index places '{}' in {}, which lacks it", entry.name, file))
              .in_file(base_name(source_.index))
              .of_tensor(entry.name)
              .of_kind("index_mismatch"));
    }
  }

  /// The files of a folder hold one dict between them.
  void merge_roots() {
    std::erase(roots_, nullptr);
    if (roots_.size() == 1) catalog_.root = roots_.front();
    if (roots_.size() < 2) return;
    std::vector<Value*> items;
    for (const Value* root : roots_) {
      if (!is_mapping(*root)) {
        throw Error(ErrorCode::kCorruption, "a file of the folder holds no dict")
            .in_file(source_.folder)
            .found(type_name(*root))
            .of_kind("bad_pickle");
      }
      const std::span<Value*> more = mapping_items(*root);
      items.insert(items.end(), more.begin(), more.end());
    }
    catalog_.root = make_list(*catalog_.arena, ValueKind::kDict, items);
  }

  void check_duplicates() {
    const std::vector<Tensor>& tensors = catalog_.tensors;
    for (std::size_t i = 1; i < tensors.size(); ++i) {
      if (tensors[i].name != tensors[i - 1].name || file_of(tensors[i]) == file_of(tensors[i - 1])) continue;
      findings_.report(Error(ErrorCode::kCorruption, fmt::format("tensor '{}' is in {} and in {}", tensors[i].name,
                                                                 file_of(tensors[i - 1]), file_of(tensors[i])))
                           .in_file(file_of(tensors[i]))
                           .of_tensor(tensors[i].name)
                           .of_kind("duplicate_name"));
    }
  }

  const FileSystem& fs_;
  Findings& findings_;
  SourceFiles source_;
  std::vector<std::string> names_;                     ///< Of each file of the catalog, to be opened again.
  std::vector<std::unique_ptr<zip::ZipReader>> zips_;  ///< One each; null once closed or where the file is damaged.
  std::vector<Value*> roots_;
  mutable OpenFiles files_;
  Catalog catalog_;
  std::vector<const zip::Record*> records_;  ///< Of each storage.
};

}  // namespace

std::unique_ptr<Reader> open_torch(const Source& source, const OpenOptions& options) {
  return std::make_unique<TorchReader>(source, options);
}

}  // namespace shard::torch_save
