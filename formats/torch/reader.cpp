#include "formats/torch/reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <utility>
#include <vector>

#include "formats/parts/hf_index/folder_names.h"
#include "formats/parts/hf_index/index_file.h"
#include "formats/parts/hf_index/indexed_folder.h"
#include "formats/parts/zip/bytes.h"
#include "formats/torch/foreign_classes.h"
#include "formats/torch/format.h"
#include "formats/torch/legacy_file.h"
#include "formats/torch/load_tree.h"
#include "formats/torch/saved_reader.h"
#include "libshard/catalog/catalog_builder.h"
#include "libshard/core/error.h"
#include "libshard/core/suffixes.h"
#include "libshard/io/paths.h"
#include "libshard/io/small_text.h"

namespace shard::torch_save {

namespace {

/// The files of a torch source: one torch.save file, or Hugging Face's folder of them. If `findings.goes_on()` and the
/// index of a folder is lost, the result is the parts in it. \throws Error kNotFound  no files, or parts without their
/// index. kCorruption  several indexes, none with the usual name. kUnsupported  several files without an index, which
/// are probably one per rank.
hf_index::DataFiles find_saved_files(const Source& source, Findings& findings);

class TorchReader final : public SavedReader {
 public:
  TorchReader(const Source& source, const OpenOptions& options)
      : TorchReader(source, options, find_saved_files(source, *options.findings)) {}

 private:
  TorchReader(const Source& source, const OpenOptions& options, hf_index::DataFiles files)
      : SavedReader(*source.store, {files.folder, true, options.findings}),
        store_(*source.store),
        takes_foreign_(options.opaque_globals),
        findings_(*options.findings),
        source_(std::move(files)) {
    catalog_.format = "torch";
    if (!index_.read_index()) {
      note_missing_parts();
      for (const std::string& name : source_.names) try_file(name, kNoIndex);
    } else {
      index_.read_files([this](const std::string& name, std::uint32_t file) { return try_file(name, file); });
      for (const Tensor& tensor : catalog_.tensors) index_.take(listed_name(tensor), index_files_[file_of(tensor)]);
      index_.finish(catalog_.warnings);
      if (findings_.goes_on()) drop_other_copies();
    }
    merge_roots();
    validate_catalog(catalog_, findings_, options.threads);
    check_duplicates();
  }

  void note_missing_parts() {
    if (source_.folder.empty()) {
      return hf_index::note_unnamed_parts(source_.names, kTorchSuffixes, findings_, catalog_.warnings);
    }
    // Parts without their index are read only for repair. Their names contain the count.
    const std::string missing = hf_index::missing_part(source_.names, kBinSuffix);
    if (missing.empty()) return;
    findings_.report(Error(ErrorCode::kNotFound, "a part is missing: the names of the others show it")
                         .in_file(join_path(source_.folder, missing))
                         .of_kind(FindingKind::kMissingFile));
  }

  /// Reads one file. A fault in it is a finding, and the file is skipped.
  /// \returns whether it was read.
  bool try_file(const std::string& name, std::uint32_t index_file) {
    CatalogMark mark(catalog_);
    try {
      read_file(name, index_file);
      mark.keep();
      return true;
    } catch (const Error& error) {
      findings_.report(error);
      return false;
    }
  }

  void read_file(const std::string& name, std::uint32_t index_file) {
    const auto index = static_cast<std::uint32_t>(roots_.size());
    roots_.push_back(nullptr);
    index_files_.push_back(index_file);
    Value* root = files_.add(name);
    const std::size_t objects = catalog_.objects.size();
    TreeLoader(catalog_, files_, index).load(*root);
    const auto file_of = [&](const Object&) { return std::string_view(catalog_.files[index].path); };
    if (!takes_foreign_) refuse_foreign_classes(catalog_, objects, file_of, findings_);
    roots_[index] = root;
    if (catalog_.format_version.empty()) catalog_.format_version = files_.version(index);
  }

  /// The index's name for a tensor. Indexes of optimizers (ColossalAI) list only the parameter's number in the file.
  std::string_view listed_name(const Tensor& tensor) {
    if (tensor.path.size() < 2 || index_.lists(tensor.name)) return tensor.name;
    const std::string_view first = tensor.name.substr(0, tensor.name.find('.'));
    return index_.lists(first) ? first : tensor.name;
  }

  std::uint32_t file_of(const Tensor& tensor) const { return catalog_.storage_of(tensor).file; }

  void drop_other_copies() {
    for (Tensor& tensor : catalog_.tensors) {
      tensor.damaged = index_.is_other_copy(listed_name(tensor), index_files_[file_of(tensor)]);
    }
  }

  /// The names of damaged tensors, with their files.
  std::set<std::pair<std::uint32_t, std::string_view>> damaged_names() const {
    std::set<std::pair<std::uint32_t, std::string_view>> names;
    for (const Tensor& tensor : catalog_.tensors) {
      if (tensor.damaged) names.emplace(file_of(tensor), tensor.name);
    }
    return names;
  }

  /// Merges the dicts of the files of a folder into one, without damaged tensors, because another file may have the
  /// same key.
  void merge_roots() {
    const std::ptrdiff_t count = std::ssize(roots_) - std::ranges::count(roots_, nullptr);
    if (count == 1) catalog_.root = *std::ranges::find_if(roots_, [](const Value* root) { return root != nullptr; });
    if (count < 2) return;
    const auto damaged = damaged_names();
    std::vector<Value*> items;
    for (std::uint32_t file = 0; file < roots_.size(); ++file) {
      const Value* const root = roots_[file];
      if (root == nullptr) continue;
      if (!is_mapping(*root)) {
        throw Error(ErrorCode::kCorruption, "a file of the folder does not contain a dict")
            .in_file(source_.folder)
            .found(type_name(*root))
            .of_kind(FindingKind::kBadPickle);
      }
      for (const auto [key, value] : ItemPairs(*root)) {
        if (key->is_string() && damaged.contains({file, key->text()})) continue;
        items.insert(items.end(), {key, value});
      }
    }
    catalog_.root = make_list(*catalog_.arena, ValueKind::kDict, items);
  }

  void check_duplicates() {
    std::vector<Tensor>& tensors = catalog_.tensors;
    for (std::size_t i = 1; i < tensors.size(); ++i) {
      if (tensors[i].name != tensors[i - 1].name || file_of(tensors[i]) == file_of(tensors[i - 1])) continue;
      if (findings_.goes_on() && index_.lists(tensors[i].name)) continue;  // The index has decided.
      const std::string &first = catalog_.files[file_of(tensors[i - 1])].path,
                        &second = catalog_.files[file_of(tensors[i])].path;
      findings_.report(
          Error(ErrorCode::kCorruption, fmt::format("tensor '{}' is in {} and in {}", tensors[i].name, first, second))
              .in_file(second)
              .of_tensor(tensors[i].name)
              .of_kind(FindingKind::kDuplicateName));
      tensors[i - 1].damaged = tensors[i].damaged = true;  // It is unknown which of the two is the original.
    }
  }

  const SourceStore& store_;
  bool takes_foreign_;
  Findings& findings_;
  hf_index::DataFiles source_;
  hf_index::IndexedFolder index_{store_, source_, {kBinSuffix, "parts"}, findings_};
  std::vector<Value*> roots_;               ///< By file; null if the file is damaged.
  std::vector<std::uint32_t> index_files_;  ///< The number of each file in the index.
};

constexpr std::string_view kIndexSuffix = ".bin.index.json";
constexpr std::string_view kUsualIndex = "pytorch_model.bin.index.json";
constexpr std::string_view kSingle = "pytorch_model.bin";
constexpr std::int64_t kNameProbeBytes = 512;

using hf_index::DataFiles;

bool is_index_name(std::string_view name) { return hf_index::is_index_name(name, kIndexSuffix); }
bool is_part_name(std::string_view name) { return name.starts_with("pytorch_model-") && name.ends_with(kBinSuffix); }

// True if all records are in one top folder, as torch writes them. Other zips (.npz) differ.
bool is_saved_zip(const RandomReader& file) {
  const std::string head = front_of(file, zip::kLocalBytes + kNameProbeBytes);
  const auto bytes = std::as_bytes(std::span(head));
  if (bytes.size() < static_cast<std::size_t>(zip::kLocalBytes)) return false;
  if (zip::load<std::uint32_t>(bytes, 0) != zip::kLocalSignature) return false;
  const std::size_t name_bytes = zip::load<std::uint16_t>(bytes, 26);
  return std::string_view(head).substr(static_cast<std::size_t>(zip::kLocalBytes), name_bytes).find('/') !=
         std::string_view::npos;
}

/// The files of a folder that could belong to its index.
std::vector<std::string> beside_index(const std::vector<std::string>& names) {
  std::vector<std::string> files;
  std::ranges::copy_if(names, std::back_inserter(files),
                       [](const std::string& name) { return is_part_name(name) || name == kSingle; });
  return files;
}

DataFiles from_folder(const SourceStore& store, const std::string& folder, Findings& findings) {
  const std::vector<std::string> names = store.list(folder);
  DataFiles files;
  files.folder = folder;
  if (const std::string index = hf_index::choose_index(folder, names, kIndexSuffix, kUsualIndex); !index.empty()) {
    files.index = join_path(folder, index);
    files.names = beside_index(names);
    return files;
  }
  if (std::ranges::find(names, kSingle) != names.end()) {
    files.names.emplace_back(kSingle);
    return files;
  }
  const bool has_parts = std::ranges::any_of(names, is_part_name);
  if (has_parts && findings.goes_on()) {
    findings.mend(fmt::format("{}: rebuilt the index from the parts", kUsualIndex));
    std::ranges::copy_if(names, std::back_inserter(files.names), is_part_name);
    return files;
  }
  Error error(ErrorCode::kNotFound, has_parts ? "the folder contains parts of a checkpoint, but not their index"
                                              : "the folder contains no pytorch_model.bin");
  error.in_file(join_path(folder, has_parts ? kUsualIndex : kSingle)).of_kind(FindingKind::kMissingFile);
  if (has_parts) error.hint("fetch the index, or repair the checkpoint, which rebuilds it from the parts");
  throw Error(error);
}

constexpr std::array<std::string_view, 5> kSuffixes{".pt", ".pth", ".bin", ".ckpt", ".pth.tar"};

DataFiles find_saved_files(const Source& source, Findings& findings) {
  if (source.paths.empty()) throw Error(ErrorCode::kInvalidArgument, "no source was named");
  const std::string& first = source.paths.front();
  if (source.paths.size() > 1) {
    throw Error(ErrorCode::kUnsupported, "several torch.save files without an index are one per rank")
        .in_file(first)
        .because("this build reads one file, or a folder with an index");
  }
  if (is_one_folder(source)) return from_folder(*source.store, first, findings);
  DataFiles files;
  const auto file = source.store->open(first);
  if (!is_saved_zip(*file) && !is_legacy_file(*file) && hf_index::is_index_file(*file, kBinSuffix)) {
    files.folder = parent_path(first);
    files.index = first;
    files.names = beside_index(source.store->list(files.folder));
  } else {
    files.names = {first};
  }
  return files;
}

}  // namespace

bool detect(const Source& source) {
  if (source.paths.size() != 1) return false;
  const std::string& path = source.paths.front();
  if (is_one_folder(source)) {
    return std::ranges::any_of(source.store->list(path), [](const std::string& name) {
      return is_index_name(name) || name == kSingle || is_part_name(name);
    });
  }
  const auto file = source.store->open(path);
  return is_saved_zip(*file) || is_legacy_file(*file) || hf_index::is_index_file(*file, kBinSuffix);
}

std::unique_ptr<Reader> open(const Source& source, const OpenOptions& options) {
  return std::make_unique<TorchReader>(source, options);
}

}  // namespace shard::torch_save

const shard::Format shard::kTorchFormat{
    .traits = {.name = "torch", .objects = true, .sharing = true, .aliases = true},
    .suffixes = torch_save::kSuffixes,
    .suffixes_tell_folders = false,  // Folders of this format are recognised by their files' names.
    .loader_suffix = kBinSuffix,
    .objects_apart = false,
    .detect = torch_save::detect,
    .open = torch_save::open,
    .make_writer = torch_save::make_writer,
};
