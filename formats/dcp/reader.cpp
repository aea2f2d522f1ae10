#include "formats/dcp/reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "formats/dcp/check_items.h"
#include "formats/dcp/common_data.h"
#include "formats/dcp/inner_tensors.h"
#include "formats/dcp/item_store.h"
#include "formats/dcp/metadata.h"
#include "formats/dcp/names.h"
#include "formats/dcp/objects.h"
#include "formats/dcp/originals.h"
#include "formats/dcp/rank_copies.h"
#include "formats/dcp/rank_metadata.h"
#include "formats/dcp/rebuild.h"
#include "formats/dcp/source_files.h"
#include "formats/dcp/tensor_entry.h"
#include "formats/torch/check_saved.h"
#include "libshard/catalog/tree.h"
#include "libshard/core/error.h"
#include "libshard/io/paths.h"

namespace shard::dcp {
namespace {

class DcpReader : public Reader {
 public:
  DcpReader(const SourceStore& store, const std::string& folder, const OpenOptions& options, const FolderForm& form)
      : form_(form),
        store_(store),
        folder_(folder),
        findings_(*options.findings),
        salvage_(options.salvage),
        opaque_globals_(options.opaque_globals || form.keeps_objects_whole),
        items_(store_, folder_, catalog_, salvage_) {
    catalog_.format = form.format;
    originals_->format = form.format;
    if (form.keeps_objects_whole) catalog_.originals = originals_;
    Metadata metadata = salvage_ == nullptr ? read_metadata() : salvage_metadata(options.like);
    if (!metadata.lost_note.empty()) catalog_.metadata[kLostNote] = metadata.lost_note;
    if (form_.is_unreadable != nullptr) set_apart(metadata, form_.is_unreadable, form_.why_unreadable);
    add_files(store_, folder_, metadata, options, catalog_);
    read_common(metadata);
    CollectedFindings of_items;  // For repair each item is looked into.
    check_items(metadata, catalog_, salvage_ == nullptr ? findings_ : of_items,
                [this](std::uint32_t index) { return file(index); });
    if (salvage_ != nullptr) clip_items(metadata, lost_items_, catalog_, *salvage_);
    items_.set_items(std::move(metadata.items));
    objects_ = std::move(metadata.objects);
    fill_catalog(metadata, options.metadata_only);
  }

  const Catalog& catalog() const override { return catalog_; }

  std::shared_ptr<const RandomReader> file(std::uint32_t index) const override { return items_.file(index); }

  std::shared_ptr<const RandomReader> bytes_of(std::uint32_t storage) const override {
    return items_.bytes_of(storage);
  }

  void locate(std::span<const std::uint32_t> tensors) override { items_.locate(tensors); }

  bool check_container(std::uint32_t index, ContainerReport& report) const override {
    if (index < metadata_files_) {
      check_metadata_file(*file(index), report);
    } else if (index == common_index_) {
      torch_save::check_saved_file(file(index), report);
    } else {
      check_item_file(file(index), items_.of_file(index), report);
    }
    return true;
  }

  void load_objects() override {
    if (objects_loaded_ || (objects_.empty() && common_ == nullptr)) return;
    std::vector<Wanted> wanted;
    for (std::uint32_t i = 0; i < objects_.size(); ++i) {
      if (loaded_[i].root == nullptr && !is_lost_object(i)) wanted.push_back({items_.item(objects_[i].item), i, 0});
    }
    items_.for_each(std::move(wanted), [&](const std::shared_ptr<FetchedFile>& file, const Wanted& one) {
      try {
        loaded_[one.entry] = load(file, one, false);
      } catch (Error& error) {
        if (salvage_ != nullptr && is_damage(error)) return lose_object(one.entry, error);
        findings_.report(error.of_tensor(objects_[one.entry].name).in_file(file->name()));
      }
    });
    list_objects();
    if (form_.keeps_objects_whole) keep_originals();
    objects_loaded_ = true;
  }
  std::int64_t unread_object_bytes() const override {
    std::int64_t bytes = 0;
    for (std::uint32_t i = 0; !objects_loaded_ && i < objects_.size(); ++i) {
      if (loaded_[i].root != nullptr) continue;
      const Item& item = items_.item(objects_[i].item);
      const bool is_known = item.length >= 0 && !item.zstd;
      if (!is_known) return std::numeric_limits<std::int64_t>::max();
      bytes += item.length;
    }
    return bytes;
  }

 private:
  using Wanted = ItemStore::Wanted;

  // --- Opening ---

  Metadata read_metadata() { return read_files(find_metadata(store_, folder_, findings_, catalog_.warnings)); }

  Metadata read_files(const std::vector<MetadataFile>& files) {
    std::vector<RankMetadata> ranks;
    for (const MetadataFile& each : files) {
      const std::unique_ptr<RandomReader> file = store_.open_below(folder_, each.name);
      const std::vector<std::byte> bytes = shard::read_metadata(*file, 0, file->size(), *catalog_.arena);
      catalog_.files.push_back({each.name, file->size(), each.rank, file->identity()});
      const MetadataOptions options{opaque_globals_, form_.sets_short_apart, form_.names_megatron};
      ranks.push_back({each.rank, each.name, parse_metadata(*catalog_.arena, bytes, each.name, options)});
    }
    metadata_files_ = static_cast<std::uint32_t>(catalog_.files.size());
    is_of_ranks_ = ranks.front().rank >= 0;
    return is_of_ranks_ ? merge_ranks(std::move(ranks)) : std::move(ranks.front().metadata);
  }

  void read_common(const Metadata& metadata) {
    const std::string name(form_.common_file);
    if (name.empty()) return;
    if (store_.status(join_path(folder_, name)).kind != FileKind::kFile) {
      if (form_.needs_common &&
          std::ranges::none_of(metadata.objects, [this](auto& each) { return is_common(each); })) {
        catalog_.warnings.push_back(fmt::format("{} is not there: what it held (arguments, iteration) is lost", name));
        findings_.tolerate(Error(ErrorCode::kNotFound, "the file of the common data is missing")
                               .in_file(name)
                               .of_kind(FindingKind::kMissingFile)
                               .because("metadata.json says that there is one"));
      }
      return;
    }
    common_index_ = static_cast<std::uint32_t>(catalog_.files.size());
    common_ = read_common_file(store_, folder_, name, catalog_, salvage_, *originals_);
  }

  /// The metadata that is whole: .metadata, else what a save that was stopped left of it, else that of ranks; else it
  /// is made anew.
  Metadata salvage_metadata(const Source* like) {
    std::string why;
    for (const MetadataChoice& choice : metadata_choices(store_, folder_, findings_)) {
      try {
        Metadata metadata = read_files(choice.files);
        if (!why.empty()) salvage_->mend(fmt::format(".metadata was made anew from {}: {}", choice.shown, why));
        return metadata;
      } catch (const Error& error) {
        if (!is_damage(error)) throw;
        catalog_.files.clear();
        why += fmt::format("{}{}", why.empty() ? "" : "; ", reason_of(error));
      }
    }
    catalog_.files.push_back({std::string(kMetadataName), 0, -1});
    is_of_ranks_ = false;
    return rebuild_metadata({store_, folder_, like, opaque_globals_}, why, *catalog_.arena, *salvage_, lost_items_);
  }

  void fill_catalog(const Metadata& metadata, bool metadata_only) {
    catalog_.format_version = metadata.maker;
    catalog_.warnings.insert(catalog_.warnings.end(), metadata.warnings.begin(), metadata.warnings.end());
    if (metadata.defect) findings_.tolerate(Error(*metadata.defect).in_file(catalog_.files.front().path));
    try {
      add_tensors(metadata);
      if (salvage_ != nullptr) check_all_items();
      if (is_of_ranks_) rank_copies_.split_differing();
      loaded_.resize(objects_.size());
      hide_reshaped();
      const bool looks_inside = !form_.keeps_objects_whole && (!metadata_only || !metadata.has_paths);
      if (looks_inside) look_into_objects();
      add_objects();
      finish();
    } catch (Error& error) {
      add_details(error);
      throw;
    }
  }

  /// Says in which file what is wrong with a tensor is stated.
  void add_details(Error& error) const {
    if (is_of_ranks_) name_overlapping_ranks(error, catalog_);
    error.in_file(catalog_.files.front().path);
  }

  void check_all_items() {
    std::vector<std::uint32_t> all(catalog_.tensors.size());
    std::iota(all.begin(), all.end(), 0U);
    items_.locate(all);
  }

  // Like tensors that no path leads to: a writer refuses what it cannot put into its own shape.
  void hide_reshaped() {
    for (std::size_t i = 0; i < objects_.size(); ++i) {
      if (!objects_[i].is_reshaped) continue;
      loaded_[i].root = hidden_tensor(*catalog_.arena);
      loaded_[i].hides_tensors = true;
    }
  }

  // Values are read when they are asked for; but one in which tensors are hidden must be seen by all.
  void add_objects() {
    for (std::size_t i = 0; i < objects_.size(); ++i) {
      const bool is_known = !catalog_.objects.empty() && catalog_.objects.back().name == objects_[i].name;
      if (!is_known) catalog_.objects.push_back({objects_[i].name, objects_[i].path, nullptr, -1});
      if (loaded_[i].hides_tensors) catalog_.objects.back().value = loaded_[i].root;
    }
    std::vector<TreeEntry> ignored;
    if (common_ != nullptr) list_common(*catalog_.arena, *common_, catalog_.objects, ignored);
    sort_objects();
  }

  void sort_objects() {
    std::ranges::stable_sort(catalog_.objects, {}, [](const Object& each) { return std::pair(each.name, each.rank); });
  }

  // Numbers inside objects follow the order of tensors, as those of a tree do.
  void finish() {
    std::vector<Value*> roots;
    for (const LoadedObject& object : loaded_) {
      if (object.root != nullptr) roots.push_back(object.root);
    }
    catalog_.root = make_list(*catalog_.arena, ValueKind::kList, roots);
    DetailedFindings detailed(findings_, [this](Error& error) { add_details(error); });
    validate_catalog(catalog_, detailed);
    catalog_.root = nullptr;
  }

  void add_tensors(const Metadata& metadata) {
    catalog_.tensors.reserve(metadata.tensors.size());
    catalog_.chunks.reserve(metadata.chunks.size());
    catalog_.stored.reserve(metadata.chunks.size());
    for (const TensorEntry& entry : metadata.tensors) {
      const std::size_t chunks = catalog_.chunks.size(), stored = catalog_.stored.size();
      try {
        add_tensor(catalog_, metadata, entry);
      } catch (Error& error) {
        catalog_.chunks.resize(chunks);
        catalog_.stored.resize(stored);
        if (!error.kind()) error.of_kind(FindingKind::kBadPickle);
        findings_.report(error.of_tensor(entry.name).in_file(catalog_.files.front().path));
      }
    }
  }

  // --- Tensors inside objects ---

  void look_into_objects() {
    std::vector<Wanted> wanted;
    for (std::uint32_t i = 0; i < objects_.size(); ++i) {
      const Item& item = items_.item(objects_[i].item);
      const bool may_hold_tensors = item.zstd || item.length >= kLeastWithTensor;
      if (may_hold_tensors && !objects_[i].is_reshaped && !is_lost_object(i)) wanted.push_back({item, i, 0});
    }
    items_.for_each(std::move(wanted), [&](const std::shared_ptr<FetchedFile>& file, const Wanted& one) {
      try {
        loaded_[one.entry] = load(file, one, true);
      } catch (Error& error) {  // Tensors may be in it that nobody would miss.
        if (salvage_ != nullptr && is_damage(error)) return lose_object(one.entry, error);
        findings_.report(error.of_tensor(objects_[one.entry].name).in_file(file->name()));
      }
    });
    add_inner_tensors(objects_, loaded_, items_, rank_copies_, catalog_);
  }

  /// For repair: also notes what the storage of its item was lost for.
  bool is_lost_object(std::uint32_t object) {
    if (salvage_ == nullptr) return false;
    const Error* const why = salvage_->lost_storage(objects_[object].item);
    if (why != nullptr) lose_object(object, *why);
    return why != nullptr;
  }

  void lose_object(std::uint32_t object, const Error& why) {
    salvage_->lose_storage(objects_[object].item, why);
    Loss loss;
    loss.what = Loss::What::kObject;
    loss.name = objects_[object].name;
    loss.file = catalog_.files[items_.item(objects_[object].item).file].path;
    loss.why = reason_of(why);
    salvage_->lose(std::move(loss));
  }

  /// \param if_tensors  nothing is loaded where the item holds none.
  LoadedObject load(const std::shared_ptr<FetchedFile>& file, const Wanted& one, bool if_tensors) {
    items_.earn(*file, one.item);
    const OpenItem item(file, one.item, kMaxDecodedObject, *catalog_.arena, salvage_ != nullptr);
    if (if_tensors && !item.has_storages()) return {};
    Originals originals;
    const LoadedObject loaded = load_object(*catalog_.arena, item, objects_[one.entry],
                                            {.file = file->name(),
                                             .opaque_globals = opaque_globals_,
                                             .with_tensors = if_tensors,
                                             .hidden_as = form_.keeps_objects_whole ? kInnerTensor : "torch.Tensor",
                                             .originals = form_.keeps_objects_whole ? &originals : nullptr});
    const bool in_item = !is_common(objects_[one.entry]);
    if (!in_item || is_carried(one.item)) originals_->add(originals.values, in_item);
    return loaded;
  }

  // --- Objects ---

  // Puts the objects' leaves in the place of the objects, and everything into a tree that keeps tuples and the like.
  void list_objects() {
    catalog_.objects.clear();
    std::vector<TreeEntry> entries;
    entries.reserve(catalog_.tensors.size() + objects_.size());
    for (std::uint32_t i = 0; i < catalog_.tensors.size(); ++i) {
      if (!is_inner(catalog_.tensors[i]))
        entries.push_back({catalog_.tensors[i].name, catalog_.tensors[i].path, i, nullptr});
    }
    Value* common = common_;
    std::vector<RankObject> ranks;
    for (std::size_t i = 0; i < objects_.size(); ++i) {
      if (is_common(objects_[i]) && loaded_[i].root != nullptr) {
        common = common_of_item(*catalog_.arena, *loaded_[i].root, *originals_);
        continue;
      }
      if (loaded_[i].root != nullptr) ranks.push_back({&objects_[i], &loaded_[i]});
      if (i + 1 < objects_.size() && objects_[i + 1].name == objects_[i].name) continue;
      if (ranks.empty()) continue;  // Lost, or a finding.
      list_object(*catalog_.arena, ranks, catalog_.objects);
      entries.push_back({ranks[0].entry->name, ranks[0].entry->path, kNoIndex, ranks[0].object->root});
      ranks.clear();
    }
    if (common != nullptr) list_common(*catalog_.arena, *common, catalog_.objects, entries);
    common_ = common;
    sort_objects();
    const auto is_of_one_rank = [](const auto& each) { return each.rank >= 0; };
    const bool differ =
        std::ranges::any_of(catalog_.tensors, is_of_one_rank) || std::ranges::any_of(catalog_.objects, is_of_one_rank);
    if (!differ) catalog_.root = tree_of_paths(*catalog_.arena, entries);  // No tree holds what ranks have each.
  }

  // --- What a writer of the same format carries over ---

  static bool is_carried(const Item& item) { return item.length >= 0 && !item.zstd; }

  void keep_originals() {
    for (std::size_t i = 0; i < objects_.size(); ++i) {
      const Item& item = items_.item(objects_[i].item);
      if (loaded_[i].root == nullptr || objects_[i].is_reshaped) continue;
      if (is_common(objects_[i])) {
        keep_common(file(item.file), item);
      } else if (is_carried(item)) {
        items_.settle_whole(objects_[i].item);
        originals_->items.try_emplace(loaded_[i].root, Originals::Item{objects_[i].item, item.length});
      }
    }
    if (common_index_ != kNoIndex) {
      keep_common(file(common_index_), {.offset = 0, .length = catalog_.files[common_index_].bytes});
    }
  }

  void keep_common(const std::shared_ptr<const RandomReader>& file, const Item& item) {
    try {
      const auto fetched = std::make_shared<FetchedFile>(file);
      keep_storages(*catalog_.arena, *common_, OpenItem(fetched, item, kMaxDecodedObject, *catalog_.arena),
                    *originals_);
    } catch (const Error& error) {  // A legacy file, or a damaged one that is being repaired.
      if (!is_damage(error)) throw;
      originals_->forget();
    }
  }

  bool is_common(const ObjectEntry& object) const {
    return !form_.common_item.empty() && object.name == form_.common_item;
  }

  bool is_inner(const Tensor& tensor) const {
    if (tensor.chunk_count == 0) return false;
    return !items_.is_item(catalog_.stored[catalog_.chunks[tensor.first_chunk].stored].storage);
  }

  FolderForm form_;
  const SourceStore& store_;
  std::string folder_;
  Findings& findings_;
  Salvage* salvage_;
  std::uint32_t metadata_files_ = 0;       // They are the catalog's first.
  std::uint32_t common_index_ = kNoIndex;  // Of the common file, where there is one.
  Value* common_ = nullptr;                // What it holds.
  std::shared_ptr<Originals> originals_ = std::make_shared<Originals>();
  bool opaque_globals_ = false, is_of_ranks_ = false, objects_loaded_ = false;
  Catalog catalog_ = source_catalog();
  ItemStore items_;
  RankCopies rank_copies_{catalog_, items_, salvage_};
  std::vector<std::uint32_t> lost_items_;  // Of metadata that was made anew: those that were not found.
  std::vector<ObjectEntry> objects_;       // By name and rank where they are of ranks.
  std::vector<LoadedObject> loaded_;       // Of each object; without a root until it is loaded.
};

}  // namespace

bool detect(const Source& source) {
  if (source.paths.size() != 1 || source.store->status(source.paths[0]).kind != FileKind::kFolder) return false;
  bool has_metadata = false;
  for (const std::string& name : source.store->list(source.paths[0])) {
    if (file_numbers(name).rank >= 0 || metadata_rank(name) >= 0) return true;
    has_metadata = has_metadata || name == kMetadataName;
  }
  if (!has_metadata) return false;
  const std::unique_ptr<RandomReader> file = source.store->open(join_path(source.paths[0], kMetadataName));
  std::byte first{};
  if (file->size() < 2) return false;
  file->read_at(0, {&first, 1});
  return first == std::byte{0x80};
}

std::unique_ptr<Reader> open(const Source& source, const OpenOptions& options) {
  if (source.paths.size() == 1 && source.store->status(source.paths[0]).kind == FileKind::kAbsent) {
    throw Error(ErrorCode::kNotFound, "no such folder").in_file(source.paths[0]).of_kind(FindingKind::kMissingFile);
  }
  if (source.paths.size() != 1 || source.store->status(source.paths[0]).kind != FileKind::kFolder) {
    throw Error(ErrorCode::kInvalidArgument, "a dcp checkpoint is one folder")
        .hint("name the folder that holds .metadata");
  }
  return open_folder(*source.store, source.paths[0], options, {});
}

std::unique_ptr<Reader> open_folder(const SourceStore& store, const std::string& folder, const OpenOptions& options,
                                    const FolderForm& form) {
  return std::make_unique<DcpReader>(store, folder, options, form);
}

}  // namespace shard::dcp
