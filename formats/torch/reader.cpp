#include "formats/torch/reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "formats/parts/hf_index/folder_names.h"
#include "formats/parts/hf_index/index_findings.h"
#include "formats/parts/hf_index/weight_map.h"
#include "formats/torch/foreign_classes.h"
#include "formats/torch/load_tree.h"
#include "formats/torch/saved_reader.h"
#include "formats/torch/source_files.h"
#include "libshard/catalog/catalog_builder.h"
#include "libshard/core/error.h"
#include "libshard/core/first_names.h"
#include "libshard/io/paths.h"

namespace shard::torch_save {

namespace {

using hf_index::WeightMap;
using hf_index::WeightMapEntry;

std::string and_more(std::size_t count) { return count == 0 ? std::string() : fmt::format(" and {} more", count); }

class TorchReader final : public SavedReader {
 public:
  TorchReader(const Source& source, const OpenOptions& options)
      : TorchReader(source, options, find_saved_files(source, *options.findings)) {}

 private:
  TorchReader(const Source& source, const OpenOptions& options, SourceFiles files)
      : SavedReader(*source.store, {files.folder, true, options.findings}),
        store_(*source.store),
        takes_foreign_(options.opaque_globals),
        findings_(*options.findings),
        source_(std::move(files)) {
    catalog_.format = "torch";
    if (!has_index()) {
      note_unnamed_parts();
      lose_missing_part();
      for (const std::string& name : source_.names) try_file(name);
    } else {
      read_indexed();
    }
    merge_roots();
    validate_catalog(catalog_, findings_);
    check_duplicates();
  }

  /// Whether there is an index, which is read then. One that is damaged is no loss: the parts say all but their names.
  bool has_index() {
    if (source_.index.empty()) return false;
    const std::string index = base_name(source_.index);
    try {
      map_ = hf_index::read_weight_map(*store_.open(source_.index));
      const auto fault = hf_index::lacks_parts(index, source_.names, map_.files, ".bin");
      if (fault) (findings_.goes_on() ? throwing_findings() : findings_).report(*fault);
      check_stale(index);
    } catch (const Error& error) {
      if (!findings_.goes_on() || !is_damage(error)) throw;
      findings_.mend(fmt::format("{} was made anew from the parts: {}", index, reason_of(error)));
      return false;
    }
    return true;
  }

  /// An index of files that are missing, beside a whole checkpoint. For repair that is what is read, unless some of the
  /// index's own files are left.
  void check_stale(const std::string& index) {
    auto stale = hf_index::find_stale(store_, source_.folder, index, source_.names, map_.files, ".bin");
    if (!stale) return;
    stale->error.hint("repair the checkpoint, which rebuilds the index");
    if (!findings_.goes_on()) return findings_.report(stale->error);
    if (!stale->is_all_missing) return;
    source_.names = std::move(stale->whole.names);
    throw Error(stale->error);
  }

  /// A file that is named by itself may be one of the parts that its name counts.
  void note_unnamed_parts() {
    if (!source_.folder.empty() || source_.names.empty()) return;
    const std::string name = base_name(source_.names.front());
    for (const std::string_view suffix : {".bin", ".pt", ".pth"}) {
      if (const auto others = hf_index::unnamed_parts({name}, suffix)) {
        findings_.warn(*others);
        catalog_.warnings.emplace_back(others->what());
      }
    }
  }

  /// Parts without an index count themselves in their names. \pre only for repair there are any
  void lose_missing_part() {
    const std::string missing = source_.folder.empty() ? std::string() : hf_index::missing_part(source_.names, ".bin");
    if (missing.empty()) return;
    findings_.report(Error(ErrorCode::kNotFound, "a part that the names of the others count is missing")
                         .in_file(join_path(source_.folder, missing))
                         .of_kind(FindingKind::kMissingFile));
  }

  /// Reads one file; what is wrong with it is a finding, and the file is left out.
  void try_file(const std::string& name) {
    CatalogMark mark(catalog_);
    try {
      read_file(name);
      mark.keep();
    } catch (const Error& error) {
      findings_.report(error);
    }
  }

  void read_file(const std::string& name) {
    const auto index = static_cast<std::uint32_t>(roots_.size());
    roots_.push_back(nullptr);
    Value* root = files_.add(name);
    const std::size_t objects = catalog_.objects.size();
    TreeLoader(catalog_, files_, index).load(*root);
    if (!takes_foreign_) refuse_foreign_classes(catalog_, objects, catalog_.files[index].path, findings_);
    roots_[index] = root;
    if (catalog_.format_version.empty()) catalog_.format_version = files_.version(index);
  }

  void read_indexed() {
    WeightMap& map = map_;
    FirstNames left_out;
    for (const std::string& name : source_.names) {
      if (std::ranges::binary_search(map.files, name)) continue;
      left_out.add(name);
      findings_.warn(hf_index::extra_file(name));
    }
    if (left_out.count() > 0) {
      catalog_.warnings.push_back(fmt::format("files that the index does not name are left out: {}", left_out.text()));
    }
    source_.names = map.files;
    std::vector<bool> was_read;
    for (const std::string& name : map.files) {
      was_read.push_back(false);
      if (store_.status(join_path(source_.folder, name)).kind != FileKind::kAbsent) {
        try_file(name);
        was_read.back() = roots_.back() != nullptr;
      } else {
        findings_.report(Error(ErrorCode::kNotFound, fmt::format("the index names {}, which is not there", name))
                             .in_file(join_path(source_.folder, name))
                             .of_kind(FindingKind::kMissingFile)
                             .hint("fetch the missing file"));
      }
    }
    check_index(map, was_read);
  }

  std::string_view file_of(const Tensor& tensor) const { return catalog_.file_of(tensor).path; }

  void check_index(WeightMap& map, const std::vector<bool>& was_read) {
    std::vector<std::string_view> unlisted;
    for (const Tensor& tensor : catalog_.tensors) {
      WeightMapEntry* entry = map.find(tensor.name);
      if (entry == nullptr) {
        unlisted.push_back(tensor.name);
        findings_.tolerate(hf_index::unlisted_tensor(tensor.name, base_name(source_.index)));
      } else if (map.files[entry->file] == file_of(tensor)) {
        entry->seen = true;
      }
    }
    if (!unlisted.empty()) {
      catalog_.warnings.push_back(fmt::format("tensors that the index does not list are read from its files: '{}'{}",
                                              unlisted[0], and_more(unlisted.size() - 1)));
    }
    for (const WeightMapEntry& entry : map.entries) {
      const std::string& file = map.files[entry.file];
      if (!was_read[entry.file]) {
        findings_.lose_tensor(entry.name, file, "the index places it in a file that is missing or damaged");
      }
      if (entry.seen || !was_read[entry.file]) continue;
      findings_.report(
          Error(ErrorCode::kCorruption, fmt::format("the index places '{}' in {}, which lacks it", entry.name, file))
              .in_file(base_name(source_.index))
              .of_tensor(entry.name)
              .of_kind(FindingKind::kIndexMismatch));
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
            .of_kind(FindingKind::kBadPickle);
      }
      const std::span<Value*> more = mapping_items(*root);
      items.insert(items.end(), more.begin(), more.end());
    }
    catalog_.root = make_list(*catalog_.arena, ValueKind::kDict, items);
  }

  void check_duplicates() {
    std::vector<Tensor>& tensors = catalog_.tensors;
    for (std::size_t i = 1; i < tensors.size(); ++i) {
      if (tensors[i].name != tensors[i - 1].name || file_of(tensors[i]) == file_of(tensors[i - 1])) continue;
      findings_.report(Error(ErrorCode::kCorruption, fmt::format("tensor '{}' is in {} and in {}", tensors[i].name,
                                                                 file_of(tensors[i - 1]), file_of(tensors[i])))
                           .in_file(file_of(tensors[i]))
                           .of_tensor(tensors[i].name)
                           .of_kind(FindingKind::kDuplicateName));
      tensors[i - 1].damaged = tensors[i].damaged = true;  // Nothing says which of them it is.
    }
  }

  const SourceStore& store_;
  bool takes_foreign_;
  Findings& findings_;
  SourceFiles source_;
  WeightMap map_;              ///< Empty without an index.
  std::vector<Value*> roots_;  ///< By file; null where it is damaged.
};

}  // namespace

std::unique_ptr<Reader> open(const Source& source, const OpenOptions& options) {
  return std::make_unique<TorchReader>(source, options);
}

}  // namespace shard::torch_save
