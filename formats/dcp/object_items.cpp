#include "formats/dcp/object_items.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "formats/dcp/check_items.h"
#include "formats/parts/pickle/attributes.h"
#include "formats/torch/saved_file.h"
#include "libshard/catalog/catalog_builder.h"
#include "libshard/catalog/tree.h"
#include "libshard/core/error.h"
#include "libshard/core/object_faults.h"
#include "libshard/core/short_text.h"
#include "libshard/core/value_walk.h"
#include "libshard/io/paths.h"
#include "libshard/io/source_store.h"

namespace shard::dcp {

namespace {

// Tensors inside objects, as tensors of the catalog.

struct Inner {
  InnerTensor* tensor;
  int rank;       // The rank of its object.
  bool is_first;  // The first name of its node.
  std::uint32_t storage;
};

std::vector<Inner> add_storages(std::span<const ObjectEntry> objects, std::span<LoadedObject> loaded, ItemStore& items,
                                const Catalog& catalog) {
  std::vector<Inner> inner;
  for (std::size_t i = 0; i < loaded.size(); ++i) {
    const auto first = static_cast<std::uint32_t>(catalog.storages.size());
    const std::uint32_t file = items.item(objects[i].item).file;
    for (const Location& location : loaded[i].locations) items.add_storage(location, file);
    for (std::size_t k = 0; k < loaded[i].tensors.size(); ++k) {
      InnerTensor& tensor = loaded[i].tensors[k];
      const bool is_first = tensor.node->number == static_cast<std::int64_t>(k);
      inner.push_back({&tensor, objects[i].rank, is_first, first + tensor.location});
    }
  }
  return inner;
}

bool are_copies(const Inner& a, const Inner& b) {
  return a.tensor->name == b.tensor->name && a.rank != b.rank && a.tensor->view.shape == b.tensor->view.shape &&
         a.tensor->view.dtype == b.tensor->view.dtype;
}

/// Merges the last `count` tensors into one if they are equal. Otherwise each becomes a tensor of its rank. \returns
/// whether they differ.
bool join(std::uint32_t first, std::size_t count, RankCopies& rank_copies, Catalog& catalog) {
  if (count == 1) return false;
  catalog.tensors[first].chunk_count = static_cast<std::uint32_t>(count);
  catalog.tensors.resize(first + 1);
  return rank_copies.split_unless_equal(first);
}

void add_copies(std::span<const Inner> copies, RankCopies& rank_copies, Catalog& catalog) {
  const auto begin = static_cast<std::uint32_t>(catalog.tensors.size());
  for (const Inner& inner : copies) {
    const InnerTensor& from = *inner.tensor;
    StoredTensor stored = torch_save::stored_tensor(from.view, inner.storage);
    stored.rank = catalog.files[catalog.storages[inner.storage].file].rank;
    CatalogBuilder(catalog).add_tensor(from.name, compact_path(from.path, from.name), stored);
  }
  const bool differ = join(begin, copies.size(), rank_copies, catalog);
  for (std::size_t i = 0; i < copies.size(); ++i) {
    if (copies[i].is_first) copies[i].tensor->node->number = static_cast<std::int64_t>(begin + (differ ? i : 0));
  }
}

/// Appends the tensors that were found in loaded objects, and their storages. Tensors of one name on several ranks
/// become one tensor if they are equal, otherwise one tensor per rank. kTensor values get their numbers.
/// \param loaded  one entry per object of `objects`, which are sorted by name and rank
/// \throws Error kCorruption  see CatalogBuilder::add_tensor. Cost: n log n in tensors.
void add_inner_tensors(std::span<const ObjectEntry> objects, std::span<LoadedObject> loaded, ItemStore& items,
                       RankCopies& rank_copies, Catalog& catalog) {
  std::vector<Inner> inner = add_storages(objects, loaded, items, catalog);
  // Objects are sorted by name and rank, so this list is nearly sorted already.
  std::ranges::stable_sort(inner, [](const Inner& a, const Inner& b) { return a.tensor->name < b.tensor->name; });
  for (std::size_t i = 0; i < inner.size();) {
    std::size_t end = i + 1;
    while (end < inner.size() && are_copies(inner[i], inner[end])) ++end;
    add_copies(std::span(inner).subspan(i, end - i), rank_copies, catalog);
    i = end;
  }
}

void warn_of_attributes(std::span<const LoadedObject> loaded, std::vector<std::string>& warnings) {
  FirstNames names;
  for (const LoadedObject& object : loaded) {
    for (const InnerTensor& tensor : object.tensors) {
      if (tensor.view.has_attributes) names.add(tensor.name);
    }
  }
  if (names.count() == 0) return;
  warnings.push_back(torch_save::lost_attributes_text(names));
}

// Data in a folder of dcp files beside its items: one dict of plain data. Megatron-Core stores its arguments this way,
// in `common.pt`. The entries become objects of the checkpoint under their own names.

/// The attributes of an argparse.Namespace or a types.SimpleNamespace; null for any other value.
Value* attributes_of(const Value& value) {
  const bool is_namespace = value.is_call_of("argparse", "Namespace") || value.is_call_of("types", "SimpleNamespace");
  if (!is_namespace || value.state() == nullptr) return nullptr;
  return is_mapping(*value.state()) ? value.state() : nullptr;
}

/// The dict, with its namespaces converted to dicts.
Value* plain_common(Arena& arena, const Value& common, Originals& originals) {
  if (!is_mapping(common)) throw pickle::malformed("common data", "it is not a dict").found(type_name(common));
  Value* const plain = change_items(arena, common, [&](const Value& key, Value* value) {
    if (!key.is_string())
      throw pickle::malformed("common data", "one of its keys is not a string").found(type_name(key));
    Value* const attributes = attributes_of(*value);
    if (attributes != nullptr) originals.values.try_emplace(attributes, value);
    return attributes == nullptr ? value : attributes;
  });
  hide_tensors(arena, *plain, kInnerTensor, &originals);
  return plain;
}

/// Reads the torch.save file `name` in `folder`, which becomes the catalog's last file. Tensors and classes outside the
/// list are opaque. \returns the dict; it is stored in the catalog's arena.
/// \throws Error kCorruption, kUnsupported  with the file's name: as open_saved_file; the file contains no dict.
Value* read_common_file(const SourceStore& store, const std::string& folder, const std::string& name, Catalog& catalog,
                        Findings& findings, Originals& originals) {
  const std::shared_ptr<const RandomReader> file = store.open_below(folder, name);
  catalog.files.push_back({name, file->size(), -1, file->identity()});
  catalog.arena->earn(0, file->allocated_bytes(0, file->size()));
  try {
    HashMap<const Value*, Value*> behind_opaque;
    const auto saved = torch_save::open_saved_file(file, *catalog.arena, {name, true, &findings, &behind_opaque});
    originals.add(behind_opaque, false);
    return plain_common(*catalog.arena, saved->root(), originals);
  } catch (Error& error) {
    throw error.in_file(name);
  }
}

/// Does the same for a loaded item: a list of one dict. \throws Error kCorruption  it has a different content.
Value* common_of_item(Arena& arena, const Value& loaded, Originals& originals) {
  if (loaded.kind != ValueKind::kList || loaded.items().size() != 1) {
    throw pickle::malformed("common data", "it is not a list of one dict").found(type_name(loaded));
  }
  return plain_common(arena, *loaded.items().front(), originals);
}

/// Appends the leaves of the dict to `objects`, and its entries to those of the checkpoint's tree. Namespaces become
/// dicts of their attributes. Cost: linear in leaves.
void list_common(Arena& arena, Value& common, std::vector<Object>& objects, std::vector<TreeEntry>& entries) {
  const auto none = [](const Value&) { return false; };
  visit_leaves(arena, common, none, [&](const TreeLeaf& leaf) {
    objects.push_back({leaf.name, compact_path(leaf.path, leaf.name), leaf.value});
  });
  for (const auto [key, value] : ItemPairs(common)) entries.push_back({key->text(), {}, kNoIndex, value});
}

Error cannot_keep(std::string_view name, std::string_view file, const Error& why) {
  Error error(ErrorCode::kUnsupported,
              fmt::format("cannot repair the checkpoint without '{}', which is not read", name));
  return error.of_tensor(name).in_file(file).because(reason_of(why)).found(why.found());
}

bool is_carried(const Item& item) { return item.length >= 0 && !item.zstd; }

}  // namespace

void ItemKeeper::keep_tensor(std::uint32_t index, const Error& why) {
  Tensor& tensor = catalog.tensors[index];
  Originals::Kept kept{.name = tensor.name, .path = tensor.path, .shape = tensor.shape, .dtype = tensor.dtype};
  std::vector<std::uint32_t> storages;
  bool is_whole = true;
  for (const Chunk& chunk : catalog.chunks_of(tensor)) {
    const StoredTensor& stored = catalog.stored[chunk.stored];
    const bool is_reshaped = chunk.sizes.size() != stored.shape.size();
    const bool can_be = items.is_item(stored.storage) && is_copied(items.item(stored.storage)) && !is_reshaped;
    if (!can_be) throw cannot_keep(tensor.name, why.file(), why);
    if (findings.lost_storage(stored.storage) != nullptr) {
      is_whole = false;
    } else if (const std::optional<Error> fault = fault_of(stored.storage)) {
      findings.lose_storage(stored.storage, *fault);
      is_whole = false;
    }
    kept.requires_grad = kept.requires_grad || stored.requires_grad;
    storages.push_back(stored.storage);
  }
  if (!is_whole) return;
  for (std::size_t i = 0; i < storages.size(); ++i) {
    const Chunk& chunk = catalog.chunks[tensor.first_chunk + i];
    Originals::KeptItem& item = kept.items.emplace_back(keep(storages[i]));
    item.offsets = chunk.offsets;
    item.sizes = chunk.sizes;
  }
  tensor.damaged = true;
  originals.kept.push_back(std::move(kept));
}

std::optional<Error> ItemKeeper::keep_object(const ObjectEntry& object, const Error& why) {
  if (object.rank >= 0 || !is_copied(items.item(object.item))) throw cannot_keep(object.name, why.file(), why);
  if (std::optional<Error> fault = fault_of(object.item)) return fault;
  Originals::Kept kept{.name = object.name, .path = object.path, .is_object = true};
  kept.items.push_back(keep(object.item));
  originals.kept.push_back(std::move(kept));
  return std::nullopt;
}

std::optional<Error> ItemKeeper::fault_of(std::uint32_t index) const {
  const Item& item = items.item(index);
  return fault_of_item(items.file(item.file), item);
}

Originals::KeptItem ItemKeeper::keep(std::uint32_t index) {
  items.resolve_whole(index);
  const Item& item = items.item(index);
  return {.item = {.storage = index, .bytes = item.length}, .rank = catalog.files[item.file].rank};
}

ObjectItems::ObjectItems(const FolderForm& form, bool opaque_globals, Catalog& catalog, ItemStore& items,
                         Findings& findings)
    : form_(form), opaque_globals_(opaque_globals), catalog_(catalog), items_(items), findings_(findings) {
  originals_->format = form.format;
  originals_->iteration = form.iteration;
  if (form.keeps_objects_whole) catalog_.originals = originals_;
}

void ObjectItems::read_common(const SourceStore& store, const std::string& folder,
                              std::span<const ObjectEntry> objects) {
  const std::string name(form_.common_file);
  if (name.empty()) return;
  if (!store.is_file(join_path(folder, name))) {
    if (form_.needs_common && std::ranges::none_of(objects, [this](auto& each) { return is_common(each); })) {
      catalog_.warnings.push_back(fmt::format("{} is missing: its contents (arguments, iteration) are lost", name));
      const Error missing = Error(ErrorCode::kNotFound, "the file of the common data is missing")
                                .in_file(name)
                                .of_kind(FindingKind::kMissingFile)
                                .because("metadata.json lists it");
      findings_.tolerate(missing);
      findings_.lose({.what = Loss::What::kFile, .file = name, .why = reason_of(missing)});
    }
    return;
  }
  const auto file = static_cast<std::uint32_t>(catalog_.files.size());
  try {
    common_ = read_common_file(store, folder, name, catalog_, findings_, *originals_);
    common_file_ = file;
  } catch (const Error& error) {
    if (!findings_.goes_on() || !is_damage(error) || is_unread(error)) throw;
    catalog_.files.resize(file);
    catalog_.warnings.push_back(fmt::format("{} is damaged: its contents (arguments, iteration) are lost", name));
    findings_.lose({.what = Loss::What::kFile, .file = name, .why = reason_of(error)});
  }
}

void ObjectItems::open(std::vector<ObjectEntry> objects, RankCopies& rank_copies, bool looks_inside) {
  objects_ = std::move(objects);
  loaded_.resize(objects_.size());
  is_reported_.resize(objects_.size());
  hide_reshaped();
  if (looks_inside && !form_.keeps_objects_whole) look_inside(rank_copies);
  list_names();
}

std::vector<Value*> ObjectItems::roots() const {
  std::vector<Value*> roots;
  for (const LoadedObject& object : loaded_) {
    if (object.root != nullptr) roots.push_back(object.root);
  }
  return roots;
}

void ObjectItems::load_all() {
  if (objects_loaded_ || (objects_.empty() && common_ == nullptr)) return;
  std::vector<Wanted> wanted;
  for (std::uint32_t i = 0; i < objects_.size(); ++i) {
    if (loaded_[i].root == nullptr && !is_reported_[i] && !is_lost_object(i))
      wanted.push_back({items_.item(objects_[i].item), i, 0});
  }
  items_.for_each(
      std::move(wanted),
      [&](const std::shared_ptr<FetchedFile>& file, const Wanted& one) {
        try {
          loaded_[one.entry] = load(file, one, false);
        } catch (Error& error) {
          take_failure(one.entry, error, file->name());
        }
      },
      [&](Error& error, const Wanted& one) { take_unread(error, one); });
  list_leaves();
  if (form_.keeps_objects_whole) keep_originals();
  objects_loaded_ = true;
}

std::int64_t ObjectItems::unread_bytes() const {
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

/// A reshaped tensor is treated like a tensor without a path, because no writer can write its original shape.
void ObjectItems::hide_reshaped() {
  for (std::size_t i = 0; i < objects_.size(); ++i) {
    if (!objects_[i].is_reshaped) continue;
    loaded_[i].root = hidden_tensor(*catalog_.arena);
    loaded_[i].hides_tensors = true;
  }
}

/// Values are read on request, except that an object with hidden tensors must be opened now.
void ObjectItems::list_names() {
  for (std::size_t i = 0; i < objects_.size(); ++i) {
    const bool is_known = !catalog_.objects.empty() && catalog_.objects.back().name == objects_[i].name;
    if (!is_known) catalog_.objects.push_back({objects_[i].name, objects_[i].path, nullptr, -1});
    if (loaded_[i].hides_tensors) catalog_.objects.back().value = loaded_[i].root;
  }
  std::vector<TreeEntry> ignored;
  if (common_ != nullptr) list_common(*catalog_.arena, *common_, catalog_.objects, ignored);
  sort_objects();
}

void ObjectItems::sort_objects() {
  std::ranges::stable_sort(catalog_.objects, {}, [](const Object& each) { return std::pair(each.name, each.rank); });
}

void ObjectItems::look_inside(RankCopies& rank_copies) {
  std::vector<Wanted> wanted;
  for (std::uint32_t i = 0; i < objects_.size(); ++i) {
    const Item& item = items_.item(objects_[i].item);
    const bool may_hold_tensors = item.zstd || item.length >= kLeastWithTensor;
    if (may_hold_tensors && !objects_[i].is_reshaped && !is_lost_object(i)) wanted.push_back({item, i, 0});
  }
  items_.for_each(
      std::move(wanted),
      [&](const std::shared_ptr<FetchedFile>& file, const Wanted& one) {
        try {
          loaded_[one.entry] = load(file, one, true);
        } catch (Error& error) {  // The object may contain tensors, which must not be missing unnoticed.
          take_failure(one.entry, error, file->name());
          is_reported_[one.entry] = true;
        }
      },
      [&](Error& error, const Wanted& one) {
        take_unread(error, one);
        is_reported_[one.entry] = true;
      });
  add_inner_tensors(objects_, loaded_, items_, rank_copies, catalog_);
  warn_of_attributes(loaded_, catalog_.warnings);
}

ItemKeeper ObjectItems::keeper() {
  catalog_.originals = originals_;
  return {catalog_, items_, findings_, *originals_};
}

void ObjectItems::take_failure(std::uint32_t object, Error& error, const std::string& file) {
  error.in_file(file);
  if (!findings_.goes_on()) return report_bad(object, error);
  error.of_tensor(objects_[object].name);
  std::optional<Error> damage = error;
  if (is_unread(error)) damage = keeper().keep_object(objects_[object], error);
  if (!damage) return;
  is_damage(*damage) ? lose_object(object, *damage) : findings_.report(*damage);
}

void ObjectItems::take_unread(Error& error, const Wanted& one) {
  // If the system does not deliver bytes, the checkpoint may be intact, and no object is at fault.
  const bool is_collected = error.kind() && dynamic_cast<ObjectFaults*>(&findings_) == nullptr;
  if (!findings_.goes_on() && !is_collected) throw Error(error);
  take_failure(one.entry, error, catalog_.files[one.item.file].path);
}

bool ObjectItems::is_lost_object(std::uint32_t object) {
  const Error* const why = findings_.lost_storage(objects_[object].item);
  if (why != nullptr) lose_object(object, *why);
  return why != nullptr;
}

void ObjectItems::lose_object(std::uint32_t object, const Error& why) {
  findings_.lose_storage(objects_[object].item, why);
  Loss loss;
  loss.what = Loss::What::kObject;
  loss.name = objects_[object].name;
  loss.file = catalog_.files[items_.item(objects_[object].item).file].path;
  loss.why = reason_of(why);
  findings_.lose(std::move(loss));
}

void ObjectItems::report_bad(std::uint32_t object, const Error& error) {
  const std::string_view name = objects_[object].name;
  Error named = error;
  if (error.tensor().empty()) named = error.with_message(fmt::format("object '{}': {}", name, error.what()));
  report_object(findings_, name, named.of_tensor(name));
}

LoadedObject ObjectItems::load(const std::shared_ptr<FetchedFile>& file, const Wanted& one, bool if_tensors) {
  items_.earn(*file, one.item);
  catalog_.arena->charge(Charge::kEntries, 0);  // Stops decoding once the checkpoint has exhausted its budget.
  const OpenItem item(file, one.item, kMaxDecodedObject, *catalog_.arena, findings_.goes_on());
  if (if_tensors && !item.has_storages()) return {};
  Originals originals;
  LoadedObject loaded = load_object(*catalog_.arena, item, objects_[one.entry],
                                    {.file = file->name(),
                                     .opaque_globals = opaque_globals_,
                                     .with_tensors = if_tensors,
                                     .hidden_as = form_.keeps_objects_whole ? kInnerTensor : "torch.Tensor",
                                     .originals = form_.keeps_objects_whole ? &originals : nullptr});
  if (loaded.foreign && findings_.goes_on()) throw Error(*loaded.foreign);
  if (loaded.foreign) report_bad(one.entry, loaded.foreign->in_file(file->name()));
  const bool in_item = !is_common(objects_[one.entry]);
  if (in_item && form_.keeps_objects_whole && findings_.goes_on()) check_copied(file, one.item, loaded);
  if (!in_item || is_carried(one.item)) originals_->add(originals.values, in_item);
  return loaded;
}

void ObjectItems::check_copied(const std::shared_ptr<FetchedFile>& file, const Item& item, LoadedObject& loaded) {
  if (!is_carried(item)) return;
  const std::optional<Error> fault = fault_of_item(file, item);
  if (!fault) return;
  loaded.is_mended = true;
  const auto is_opaque = [](const Value& each) { return each.kind == ValueKind::kOpaque; };
  if (find_below(*loaded.root, is_opaque) != nullptr) throw Error(*fault);
}

/// Replaces the objects by their leaves, and builds a tree that preserves tuples and similar containers.
void ObjectItems::list_leaves() {
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
      common = take_common(static_cast<std::uint32_t>(i));
      if (common == nullptr) list_if_faulty(objects_[i]);
      continue;
    }
    if (loaded_[i].root != nullptr) ranks.push_back({&objects_[i], &loaded_[i]});
    if (i + 1 < objects_.size() && objects_[i + 1].name == objects_[i].name) continue;
    if (ranks.empty()) {  // All were lost or reported.
      list_if_faulty(objects_[i]);
      continue;
    }
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
  // A tree cannot contain values that differ between ranks.
  if (!differ) catalog_.root = tree_of_paths(*catalog_.arena, entries);
}

/// Keeps the name of an object that could not be read, so that a selection which includes it is refused.
void ObjectItems::list_if_faulty(const ObjectEntry& object) {
  if (has_fault(findings_, object.name)) catalog_.objects.push_back({object.name, object.path});
}

Value* ObjectItems::take_common(std::uint32_t object) {
  try {
    return common_of_item(*catalog_.arena, *loaded_[object].root, *originals_);
  } catch (Error& error) {
    loaded_[object].root = nullptr;
    if (findings_.goes_on() && is_damage(error)) {
      lose_object(object, error);
    } else {
      report_bad(object, error.in_file(items_.file(items_.item(objects_[object].item).file)->name()));
    }
    return nullptr;
  }
}

void ObjectItems::keep_originals() {
  for (std::size_t i = 0; i < objects_.size(); ++i) {
    const Item& item = items_.item(objects_[i].item);
    if (loaded_[i].root == nullptr || objects_[i].is_reshaped) continue;
    if (is_common(objects_[i])) {
      keep_common(items_.file(item.file), item);
    } else if (is_carried(item) && !loaded_[i].is_mended) {
      items_.resolve_whole(objects_[i].item);
      originals_->items.try_emplace(loaded_[i].root, Originals::Item{objects_[i].item, item.length});
    }
  }
  if (common_file_ != kNoIndex) {
    keep_common(items_.file(common_file_), {.offset = 0, .length = catalog_.files[common_file_].bytes});
  }
}

void ObjectItems::keep_common(const std::shared_ptr<const RandomReader>& file, const Item& item) {
  try {
    const auto fetched = std::make_shared<FetchedFile>(file);
    keep_storages(*catalog_.arena, *common_, OpenItem(fetched, item, kMaxDecodedObject, *catalog_.arena), *originals_);
  } catch (const Error& error) {  // A legacy file, or a damaged one that is being repaired.
    if (!is_damage(error)) throw;
    originals_->forget();
  }
}

bool ObjectItems::is_common(const ObjectEntry& object) const {
  return !form_.common_item.empty() && object.name == form_.common_item;
}

bool ObjectItems::is_inner(const Tensor& tensor) const {
  if (tensor.chunk_count == 0) return false;
  return !items_.is_item(catalog_.stored_of(tensor).storage);
}

}  // namespace shard::dcp
