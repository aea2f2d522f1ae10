#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/hdf5/datatype.h"
#include "formats/hdf5/entry_paths.h"
#include "formats/hdf5/format.h"
#include "formats/hdf5/kept_content.h"
#include "formats/hdf5/parser.h"
#include "formats/hdf5/placed_dataset.h"
#include "formats/hdf5/reply.h"
#include "formats/hdf5/root_notes.h"
#include "formats/hdf5/source_files.h"
#include "formats/hdf5/values.h"
#include "formats/hdf5/virtual_datasets.h"
#include "formats/hdf5_source.h"
#include "formats/parts/decoded_view/decoded_view.h"
#include "formats/registry.h"
#include "libshard/catalog/tree.h"
#include "libshard/core/error.h"
#include "libshard/core/findings.h"
#include "libshard/core/short_text.h"
#include "libshard/core/value_equality.h"
#include "libshard/io/open_files.h"
#include "libshard/io/paths.h"
#include "libshard/io/source_store.h"

namespace shard::hdf5 {

namespace {

// The end of a file according to its superblock. Source: "HDF5 File Format Specification Version 3.0", II.A.
//
//   versions 0, 1   signature (8 bytes), version (1), versions of other parts (4), size of offsets (1), size of lengths
//                   (1), further fields (9 or 13), then base address, address of free space, end of file, ...
//   versions 2, 3   signature (8), version (1), size of offsets (1), size of lengths (1), flags (1), then base address,
//                   address of the extension, end of file, ...

using std::string_view_literals::operator""sv;
constexpr std::string_view kSignature = "\x89HDF\r\n\x1a\n"sv;
constexpr std::size_t kVersionAt = 8, kLongest = 64;

/// Offsets in a superblock, for offsets of 8 bytes.
struct Fields {
  std::size_t offset_size, base, end;
};

// Indexed by the version.
constexpr std::array kFields{
    Fields{13, 24, 40},
    Fields{13, 28, 44},
    Fields{9, 12, 28},
    Fields{9, 12, 28},
};

/// The end of the file in bytes, from the superblock at its start. Nothing if there is none at the start (it follows a
/// user block), or if addresses do not have 8 bytes. \throws Error kNotFound, kCorruption  the file cannot be read.
std::optional<std::int64_t> stated_end(const RandomReader& file) {
  std::array<std::byte, kLongest> head{};
  if (file.size() < std::ssize(head)) return std::nullopt;
  file.read_at(0, head);
  const auto version = static_cast<std::size_t>(head[kVersionAt]);
  const bool is_known = std::memcmp(head.data(), kSignature.data(), kSignature.size()) == 0 && version < kFields.size();
  if (!is_known || head[kFields[version].offset_size] != std::byte{8}) return std::nullopt;
  const auto number_at = [&](std::size_t at) {
    std::int64_t number = 0;
    std::memcpy(&number, head.data() + at, sizeof number);
    return number;
  };
  const std::int64_t end = number_at(kFields[version].end);
  return number_at(kFields[version].base) == 0 && end >= 0 ? std::optional(end) : std::nullopt;
}

/// Warns of bytes after that end, which HDF5 itself ignores. `shown` is the file's name.
void warn_of_bytes_behind(const RandomReader& file, const std::string& shown, Findings& findings) {
  const std::optional<std::int64_t> end = stated_end(file);
  if (!end || file.size() <= *end) return;
  findings.warn(Error(ErrorCode::kCorruption,
                      fmt::format("{} bytes follow the end of the file that its superblock states", file.size() - *end))
                    .in_file(shown)
                    .of_kind(FindingKind::kGap)
                    .expected(*end)
                    .found(file.size())
                    .because("something was appended to it"));
}

/// A range of a file as a file. \pre the range is in the file
/// Threads: as the file.
class FilePart final : public RandomReader {
 public:
  FilePart(std::shared_ptr<const RandomReader> file, std::int64_t offset, std::int64_t bytes)
      : file_(std::move(file)), offset_(offset), bytes_(bytes) {
    name_ = file_->name();
  }

  void read_at(std::int64_t offset, std::span<std::byte> out) const override {
    decoded_view::check_within(offset, out.size(), bytes_, name_);
    file_->read_at(offset_ + offset, out);
  }
  void read_many(std::span<const RangedRead> ranges) const override {
    std::vector<RangedRead> moved(ranges.begin(), ranges.end());
    for (RangedRead& range : moved) {
      decoded_view::check_within(range.offset_bytes, range.out.size(), bytes_, name_);
      range.offset_bytes += offset_;
    }
    file_->read_many(moved);
  }
  std::int64_t size() const override { return bytes_; }
  FileIdentity identity() const override { return file_->identity(); }
  std::int64_t modified_ns() const override { return file_->modified_ns(); }
  std::int64_t allocated_bytes(std::int64_t offset, std::int64_t count) const override {
    return file_->allocated_bytes(offset_ + offset, count);
  }

 private:
  std::shared_ptr<const RandomReader> file_;
  std::int64_t offset_, bytes_;
};

constexpr std::string_view kOwnFile = ".";

class Hdf5Reader final : public Reader {
 public:
  Hdf5Reader(const Source& source, const OpenOptions& options)
      : store_(*source.store),
        findings_(*options.findings),
        opaque_(options.opaque_globals),
        source_(find_hdf5_files(source)),
        files_([this](std::uint32_t index) { return open_file(index); }),
        virtual_(catalog_, views_) {
    catalog_.format = "hdf5";
    originals_->format = kOriginalsFormat;
    catalog_.originals = originals_;
    for (std::size_t i = 0; i < source_.names.size(); ++i) read_main_file(add_file(source_.names[i], source_.shown[i]));
    if (!source_.index.empty()) check_index();
    if (source_.folder.empty()) {
      hf_index::note_unnamed_parts(source_.names, kHdf5Suffixes, findings_, catalog_.warnings);
    }
    note_other_suffixes();
    drop_differing();
    read_virtual();
    take_tree();
    note_others(source_, catalog_, findings_);
    validate_catalog(catalog_, findings_, options.threads);
    check_duplicates();
  }

  const Catalog& catalog() const override { return catalog_; }

  bool check_container(std::uint32_t index, ContainerReport& report) const override {
    warn_of_bytes_behind(*file(index), catalog_.files[index].path, report.findings());
    return false;  // The caller reads storages.
  }
  void locate(std::span<const std::uint32_t>) override {}  // Does nothing: the parser returns all offsets.
  std::shared_ptr<const RandomReader> file(std::uint32_t index) const override { return files_.get(index); }
  std::shared_ptr<const RandomReader> bytes_of(std::uint32_t storage) const override {
    const Storage& stored = catalog_.storages[storage];
    return stored.plain ? file(stored.file) : views_.get(catalog_, storage, file(stored.file));
  }

 private:
  /// A file whose entries become tensors and objects.
  struct MainFile {
    std::uint32_t file;
    EntryPaths paths;
  };

  std::uint32_t add_file(const std::string& name, const std::string& shown) {
    paths_.push_back(name);
    catalog_.files.push_back({shown, 0, -1});
    return static_cast<std::uint32_t>(paths_.size() - 1);
  }

  std::unique_ptr<RandomReader> open_file(std::uint32_t index) const {
    if (!source_.folder.empty()) return store_.open_below(source_.folder, paths_[index]);
    std::unique_ptr<RandomReader> file = store_.open(paths_[index]);
    if (!paths_[index].ends_with(kKerasArchiveSuffix)) return file;
    const std::shared_ptr<const RandomReader> archive = std::move(file);
    const std::optional<KerasWeights> weights = keras_weights_in(archive);
    if (!weights) return store_.open(paths_[index]);
    return std::make_unique<FilePart>(archive, weights->offset, weights->bytes);
  }

  /// Parses the file and calls `each` for each entry. \returns the facts of the file; errors name the file.
  FileFacts parse(std::uint32_t index, const std::function<void(const Entry&)>& each) {
    const std::shared_ptr<const RandomReader> opened = files_.get(index);
    catalog_.files[index].bytes = opened->size();
    catalog_.files[index].identity = opened->identity();
    try {
      return parse_file(*opened, *catalog_.arena, time_, each);
    } catch (Error& error) {
      throw error.in_file(catalog_.files[index].path);
    }
  }

  void read_main_file(std::uint32_t index) {
    MainFile main{index, EntryPaths(*catalog_.arena)};
    const FileFacts facts = parse(index, [&](const Entry& entry) {
      try {
        take(main, entry);
      } catch (Error& error) {
        throw error.tensor().empty() ? error.of_tensor(fmt::format("{}", fmt::join(entry.links, "."))) : error;
      }
    });
    catalog_.format_version = fmt::format("superblock {}", facts.superblock_version);
    if (!facts.skipped.empty()) {
      catalog_.warnings.push_back(
          fmt::format("{}: skipped: {}", catalog_.files[index].path, first_names(facts.skipped)));
    }
  }

  void take(MainFile& main, const Entry& entry) {
    if (entry.links.empty()) take_root(main, entry);
    main.paths.move_to(entry.links);
    if (!source_.index.empty()) seen_.insert(seen_key(main.file, fmt::format("{}", fmt::join(entry.links, "/"))));
    switch (entry.kind) {
      case EntryKind::kGroup:
        return take_group(main, entry);
      case EntryKind::kDataset:
        return take_dataset(main, entry);
      case EntryKind::kUnread:
        add_unread(main, main.paths.place(), entry.why);
        return add_attributes(main, entry);
    }
  }

  static std::string seen_key(std::uint32_t file, std::string_view path) { return fmt::format("{}:{}", file, path); }

  void take_root(MainFile& main, const Entry& root) {
    const RootNotes notes = root_notes(*catalog_.arena, root);
    if (notes.rank) refuse_rank_file(main.file, *notes.rank);
    if (notes.are_names_encoded) main.paths.decode_names();
    if (notes.world_size) catalog_.world_size = notes.world_size;
    if (!notes.tree.empty()) tree_ = notes.tree;
    for (const auto& [key, text] : notes.metadata) catalog_.metadata.try_emplace(key, text);
  }

  [[noreturn]] void refuse_rank_file(std::uint32_t file, std::int64_t rank) const {
    throw Error(ErrorCode::kUnsupported, "this file contains the pieces of one rank, not whole tensors")
        .in_file(catalog_.files[file].path)
        .of_rank(static_cast<int>(rank))
        .because("master.h5 in the same folder describes how to join them")
        .suggest(Remedy::kReadFolder, source_.folder.empty() ? parent_path(paths_[file]) : source_.folder);
  }

  void take_group(const MainFile& main, const Entry& entry) {
    std::int64_t objects = 0;
    for (const Attribute& attribute : entry.attributes) {
      if (entry.links.empty() && is_root_note(attribute.name)) continue;
      objects += add_object(main, main.paths.in_group(attribute.name), attribute, KeptAs::kGroupAttribute) ? 1 : 0;
    }
    const bool is_bare = entry.members == 0 && objects == 0 && !entry.links.empty();
    if (is_bare) add_value(main.paths.place(), make_value(*catalog_.arena, ValueKind::kDict));
  }

  void take_dataset(MainFile& main, const Entry& entry) {
    const EntryPaths::Place place = main.paths.place();
    const bool has_no_elements = entry.space.kind == SpaceKind::kNull;
    if (has_no_elements || entry.type.kind == TypeClass::kString) {
      add_object(main, place, {{}, {entry.type, entry.space, {}, entry.strings}}, KeptAs::kDataset);
    } else {
      try {
        add_tensor(main, place, entry);
      } catch (const Error& error) {
        if (error.code() != ErrorCode::kUnsupported) throw;
        add_unread(main, place, error.what());
      }
    }
    add_attributes(main, entry);
  }

  void add_attributes(const MainFile& main, const Entry& entry) {
    for (const Attribute& attribute : entry.attributes) {
      if (attribute.name == kShapeAttribute ||
          (attribute.name == kDtypeAttribute && entry.type.kind == TypeClass::kOpaque))
        continue;
      add_object(main, main.paths.beside_dataset(attribute.name), attribute, KeptAs::kDatasetAttribute);
    }
  }

  /// Adds a dataset whose elements cannot be read, as an object that no verb writes, compares or hashes.
  void add_unread(const MainFile& main, const EntryPaths::Place& place, std::string_view why) {
    catalog_.arena->charge(Charge::kEntries);
    Value* const value = make_global(*catalog_.arena, "h5py", fmt::format("Dataset ({})", why));
    value->kind = ValueKind::kOpaque;
    catalog_.objects.push_back({place.name, place.path, value, -1});
    unread_.add(place.name);
    findings_.warn(Error(ErrorCode::kUnsupported, fmt::format("cannot check a dataset: {}", why))
                       .of_tensor(place.name)
                       .found(fmt::format("h5py.Dataset ({})", why))
                       .in_file(catalog_.files[main.file].path));
  }

  /// \returns false if an object cannot have its type; a warning names it.
  bool add_object(const MainFile& main, const EntryPaths::Place& place, const Attribute& attribute, KeptAs as) {
    if (!is_read(attribute.content)) {
      lost_.add(fmt::format("{} ({})", place.name, to_string(attribute.content.type)));
      return false;
    }
    if (becomes_bytes(attribute.content)) bytes_.add(place.name);
    if (is_repeated(place, attribute.content)) return true;
    try {
      Value* const value = value_of(*catalog_.arena, attribute.content, opaque_);
      const std::size_t first = catalog_.objects.size();
      const std::optional<std::uint32_t> depth = add_value(place, value);
      if (!depth || is_pickle(attribute.content)) return true;
      const std::string_view name = as == KeptAs::kDataset ? std::string_view() : main.paths.key_of(attribute.name);
      const auto added = std::span(catalog_.objects).subspan(first);
      const StoredObject* const stored =
          keep_content(*catalog_.arena, as, name, attribute.content, static_cast<std::uint32_t>(added.size()), *depth);
      if (stored == nullptr) return true;
      for (const Object& object : added) originals_->stored.try_emplace(object.value, stored);
      return true;
    } catch (Error& error) {
      throw error.of_tensor(place.name);
    }
  }

  /// True if an earlier file has an attribute at the same place, because files may share groups. Records differing
  /// contents, which are dropped at the end.
  bool is_repeated(const EntryPaths::Place& place, const Content& content) {
    if (source_.names.size() == 1) return false;
    Entry entry;
    entry.attributes.push_back({{}, content});
    const std::string encoded = encode(entry);
    const auto [first, is_new] = contents_.try_emplace(std::string(place.name), encoded);
    if (!is_new && first != encoded) differing_.emplace_back(place.name);
    return !is_new;
  }

  /// Adds a value. Lists are listed element by element. \returns the number of indexes of each element, if it is the
  /// same for all
  std::optional<std::uint32_t> add_value(const EntryPaths::Place& place, Value* value) {
    const auto none = [](const Value&) { return false; };
    std::optional<std::size_t> depth;
    bool is_even = true;
    visit_leaves(*catalog_.arena, *value, none, [&](const TreeLeaf& leaf) {
      catalog_.arena->charge(Charge::kEntries);
      const EntryPaths::Place at = place_below(*catalog_.arena, place, leaf);
      catalog_.objects.push_back({at.name, at.path, leaf.value, -1});
      is_even = is_even && depth.value_or(leaf.path.size()) == leaf.path.size();
      depth = leaf.path.size();
    });
    return is_even && depth ? std::optional(static_cast<std::uint32_t>(*depth)) : std::nullopt;
  }

  void add_tensor(const MainFile& main, const EntryPaths::Place& place, const Entry& entry) {
    const auto index = static_cast<std::uint32_t>(catalog_.tensors.size());
    const auto object = std::pair(main.file, entry.object);
    if (const std::uint32_t* const known = tensor_of_object_.find(object)) return add_again(place, *known);
    const bool is_virtual = entry.storage == StorageKind::kVirtual;
    const std::int32_t rank = catalog_.world_size ? 0 : -1;
    const PlacedDataset placed =
        is_virtual ? virtual_.add(entry, main.file, index) : place_dataset(catalog_, views_, main.file, rank, entry);
    tensor_of_object_.try_emplace(object, index);
    if (placed.is_enum) enums_.add(place.name);
    builder_.begin(place.name, place.path, placed.dtype, catalog_.arena->dims(placed.shape));
    if (!is_virtual) append_whole(builder_, views_, placed);
  }

  /// Adds a further name of a dataset. Its chunks are added last, because those of a virtual dataset are added late.
  void add_again(const EntryPaths::Place& place, std::uint32_t first) {
    again_.push_back({static_cast<std::uint32_t>(catalog_.tensors.size()), first});
    const Tensor original = catalog_.tensors[first];
    builder_.begin(place.name, place.path, original.dtype, original.shape);
  }

  void read_virtual() {
    virtual_.resolve([this](std::string_view name, const VirtualDatasets::Take& take) { read_source(name, take); });
    for (const auto& [index, first] : again_) {
      builder_.resume(index);
      builder_.add_alias_chunks(first);
    }
    warn_of("datasets that cannot be read are listed as objects", unread_);
    warn_of("skipped attributes of unsupported types", lost_);
    warn_of("attributes of compounds become bytes in other formats", bytes_);
    warn_of("names of enums' values are not kept", enums_);
  }
  void warn_of(std::string_view what, const FirstNames& names) {
    if (names.count() > 0) catalog_.warnings.push_back(fmt::format("{}: {}", what, names.text()));
  }

  /// Reads a file of which virtual datasets use parts.
  void read_source(std::string_view name, const VirtualDatasets::Take& take) {
    if (source_.names.size() > 1) {
      throw Error(ErrorCode::kUnsupported, "cannot read several files at once if one has virtual datasets")
          .in_file(catalog_.files.front().path);
    }
    std::uint32_t file = 0;
    if (name != kOwnFile) file = add_sibling(std::string(name));
    std::int32_t rank = -1;
    parse(file, [&](const Entry& entry) {
      if (entry.links.empty()) rank = rank_of(name, root_notes(*catalog_.arena, entry));
      if (file > 0) catalog_.files[file].rank = rank;
      take(entry, file, rank);
    });
  }

  /// The rank that a file records; -1 if none. It must match its name, and the number of ranks that of the master.
  std::int32_t rank_of(std::string_view name, const RootNotes& notes) const {
    if (!notes.rank) return -1;
    if (notes.world_size != catalog_.world_size) {
      const auto text = [](std::optional<std::int64_t> size) { return size ? fmt::format("{}", *size) : "nothing"; };
      throw Error(ErrorCode::kCorruption, "the file and its master state different numbers of ranks")
          .in_file(std::string(name))
          .of_kind(FindingKind::kWorldSizeMismatch)
          .expected(text(catalog_.world_size))
          .found(text(notes.world_size));
    }
    const std::string own = rank_file_name(*notes.rank, notes.world_size.value_or(0));
    if (name.starts_with("rank-") && name != own) {
      throw Error(ErrorCode::kCorruption, "the file states a different rank from its name")
          .in_file(std::string(name))
          .of_kind(FindingKind::kRankMismatch)
          .expected(name)
          .found(own);
    }
    return static_cast<std::int32_t>(*notes.rank);
  }

  std::uint32_t add_sibling(std::string name) {
    // The single main file was named by its path; names of others are relative to its folder.
    if (source_.folder.empty()) {
      source_.folder = parent_path(paths_.front());
      paths_.front() = base_name(paths_.front());
    }
    const std::string path = join_path(source_.folder, name);
    if (!store_.exists(path)) {
      throw Error(ErrorCode::kNotFound, fmt::format("a virtual dataset names {}, which is missing", name))
          .in_file(path)
          .because("HDF5 would read fill values in its place")
          .hint("fetch the missing file")
          .of_kind(FindingKind::kMissingFile);
    }
    return add_file(name, name);
  }

  /// The content decides the format of a file. Other programs may decide by its name, and expect a different format.
  void note_other_suffixes() {
    for (const std::string& name : source_.shown) {
      const std::string_view other = format_of_suffix(name);
      if (other.empty() || other == catalog_.format) continue;
      const std::string text = fmt::format("{} is an HDF5 file, but its name is one of the format {}", name, other);
      findings_.warn(Error(ErrorCode::kCorruption, text).in_file(name).of_kind(FindingKind::kBadHeader));
      catalog_.warnings.push_back(text);
    }
  }

  /// Checks that every group that Keras' index assigns to a file is in it.
  void check_index() {
    for (const KerasIndex::Entry& entry : source_.keras.entries) {
      if (seen_.contains(seen_key(entry.file, entry.path))) continue;
      const bool is_of_tensorflow = source_.index.ends_with(kTensorFlowIndexSuffix);
      if (is_of_tensorflow && seen_.contains(seen_key(entry.file, without_model_name(entry.path)))) continue;
      findings_.report(Error(ErrorCode::kCorruption, fmt::format("the index places '{}' in {}, which lacks it",
                                                                 entry.path, source_.keras.files[entry.file]))
                           .in_file(base_name(source_.index))
                           .of_kind(FindingKind::kIndexMismatch));
    }
  }

  /// Drops the differing objects, and the elements of differing lists, by their common name.
  void drop_differing() {
    if (differing_.empty()) return;
    std::ranges::sort(differing_);
    const auto is_part_of_one = [&](const Object& object) {
      for (std::size_t end = object.name.find('.'); true; end = object.name.find('.', end + 1)) {
        if (std::ranges::binary_search(differing_, object.name.substr(0, end))) return true;
        if (end == std::string_view::npos) return false;
      }
    };
    std::erase_if(catalog_.objects, is_part_of_one);
    catalog_.warnings.push_back(
        fmt::format("skipped attributes that differ between the files: {}", first_names(differing_)));
  }

  void take_tree() {
    if (tree_.empty() || load_tree(catalog_, tree_)) return;
    catalog_.warnings.push_back(
        fmt::format("ignored {}: it does not match the file's contents; containers are read as dicts", kTreeAttribute));
  }

  std::string_view file_of(const Tensor& tensor) const {
    if (tensor.chunk_count == 0) return catalog_.files.front().path;
    const Chunk& chunk = catalog_.chunks[tensor.first_chunk];
    return catalog_.file_of(chunk).path;
  }

  /// Several files may have the same groups with equal attributes.
  void check_duplicates() {
    if (source_.names.size() == 1) return;
    ValueEquality equality({.budget = catalog_.arena->budget().get()});
    const auto is_repeated = [&](const Object& a, const Object& b) {
      return a.name == b.name && a.path == b.path && equality.is_equal(*a.value, *b.value);
    };
    const auto end = std::unique(catalog_.objects.begin(), catalog_.objects.end(), is_repeated);
    catalog_.objects.erase(end, catalog_.objects.end());
    for (std::size_t i = 1; i < catalog_.tensors.size(); ++i) {
      const Tensor &first = catalog_.tensors[i - 1], &second = catalog_.tensors[i];
      if (first.name != second.name) continue;
      findings_.report(Error(ErrorCode::kCorruption, fmt::format("tensor '{}' is in {} and in {}", second.name,
                                                                 file_of(first), file_of(second)))
                           .in_file(file_of(second))
                           .of_tensor(second.name)
                           .of_kind(FindingKind::kDuplicateName));
    }
  }

  struct Again {
    std::uint32_t index, first;
  };

  const SourceStore& store_;
  Findings& findings_;
  bool opaque_;
  /// Files that were named one by one get a folder if one of them has virtual datasets.
  Hdf5Files source_;
  std::vector<std::string> paths_;  ///< The path of each file of the catalog, to open it again.
  mutable OpenFiles files_;
  ParserTime time_;
  Catalog catalog_ = source_catalog();
  CatalogBuilder builder_{catalog_};
  std::shared_ptr<Originals> originals_ = std::make_shared<Originals>();
  StoredViews views_;
  VirtualDatasets virtual_;
  HashMap<std::pair<std::uint32_t, std::uint64_t>, std::uint32_t> tensor_of_object_;  ///< By file and object.
  std::vector<Again> again_;                    ///< Tensors that are further names of datasets.
  HashSet<std::string> seen_;                   ///< For files under Keras' index: "FILE:path" of each entry.
  std::span<const std::byte> tree_;             ///< The attribute shardctl.tree; in the arena.
  HashMap<std::string, std::string> contents_;  ///< With several files: objects by name, encoded.
  std::vector<std::string> differing_;          ///< Names whose contents differ between files.
  FirstNames enums_, unread_, lost_, bytes_;
};

}  // namespace

std::unique_ptr<Reader> open(const Source& source, const OpenOptions& options) {
  return std::make_unique<Hdf5Reader>(source, options);
}

}  // namespace shard::hdf5
