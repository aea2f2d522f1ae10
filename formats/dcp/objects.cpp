#include "formats/dcp/objects.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "formats/parts/pickle/pickle.h"
#include "formats/torch/foreign_classes.h"
#include "formats/torch/saved_file.h"
#include "formats/torch/saved_zip.h"
#include "formats/torch/tensor_pickle.h"
#include "libshard/catalog/tree.h"
#include "libshard/core/bytes.h"
#include "libshard/core/digest.h"
#include "libshard/core/hash_table.h"
#include "libshard/core/parse_number.h"
#include "libshard/core/value_equality.h"
#include "libshard/core/value_walk.h"

namespace shard::dcp {

namespace {

using torch_save::TensorView;

/// Replaces every tensor that is still a call by an opaque value.
class TensorHider {
 public:
  TensorHider(Arena& arena, std::string_view called, Originals* originals)
      : arena_(arena), called_(called), originals_(originals), hidden_(arena) {}

  void hide(Value& value, int depth = 0) {
    if (!visited_.insert(&value)) return;
    check_depth(depth);
    if (value.kind == ValueKind::kTensor) return;
    if (!is_read_parameter(value) && is_tensor(value)) {
      // The original is kept under its address, so that `saved_object` can write it again.
      if (originals_ != nullptr) originals_->values.try_emplace(&value, copy_of(arena_, value));
      value = *hidden_tensor(arena_, called_);
      hid_some_ = true;
      return;
    }
    for_each_child(value, [&](Value& child) { hide(child, depth + 1); });
  }

  bool hid_some() const { return hid_some_; }

 private:
  bool is_read_parameter(const Value& value) {
    const bool may_be =
        value.kind == ValueKind::kCall && !value.items().empty() && value.items()[0]->kind == ValueKind::kTensor;
    return may_be && torch_save::is_parameter(value, hidden_);
  }
  bool is_tensor(const Value& value) {
    return torch_save::as_tensor(arena_, value) || !torch_save::unsupported_tensor_kind(value).empty();
  }

  Arena& arena_;
  std::string_view called_;
  Originals* originals_;
  torch_save::HiddenTensors hidden_;
  VisitedSet visited_;
  bool hid_some_ = false;
};

/// The path of a leaf of an object, from the checkpoint's root.
Path path_below(Arena& arena, const ObjectEntry& entry, Path inside) {
  const PathPart key = PathPart::of_key(entry.name);
  const Path front = entry.path.empty() ? Path({}, key) : entry.path;
  const std::span<PathPart> path = arena.array<PathPart>(front.size() + inside.size());
  std::copy(inside.begin(), inside.end(), std::copy(front.begin(), front.end(), path.begin()));
  return Path(path);
}

std::string_view name_below(Arena& arena, const ObjectEntry& entry, const TreeLeaf& leaf) {
  return leaf.path.empty() ? entry.name : copy_name(arena, fmt::format("{}.{}", entry.name, leaf.name));
}

/// Finds the tensors inside an object. Each becomes a node of kind kTensor, numbered in the order of the visit.
class InnerTensorFinder {
 public:
  InnerTensorFinder(Arena& arena, const OpenItem& item, const ObjectEntry& entry, LoadedObject& out)
      : arena_(arena), item_(item), entry_(entry), out_(out), hidden_(arena) {}

  void run() {
    const auto none = [](const Value&) { return false; };
    visit_leaves(arena_, *out_.root, none, [this](const TreeLeaf& leaf) { visit(leaf); });
  }

 private:
  void visit(const TreeLeaf& leaf) {
    const bool lost_attributes = torch_save::drop_attributes(arena_, *leaf.value, hidden_);
    const bool wrapped = torch_save::is_parameter(*leaf.value, hidden_);
    Value& node = wrapped ? *leaf.value->items()[0] : *leaf.value;
    if (node.kind == ValueKind::kTensor) {  // A node that was seen before, under a different name.
      add(leaf, node, out_.tensors[static_cast<std::size_t>(node.number)]);
      return;
    }
    std::optional<TensorView> view = torch_save::as_tensor(arena_, node);
    if (!view || view->inside) return;
    if (wrapped) view->requires_grad = leaf.value->items()[1]->boolean();
    view->has_attributes = view->has_attributes || lost_attributes;
    InnerTensor tensor;
    tensor.view = *view;
    tensor.location = location_of(*view);
    become_tensor(node, std::ssize(out_.tensors));
    add(leaf, node, tensor);
  }

  void add(const TreeLeaf& leaf, Value& node, InnerTensor tensor) {
    tensor.name = name_below(arena_, entry_, leaf);
    tensor.path = path_below(arena_, entry_, leaf.path);
    tensor.node = &node;
    out_.tensors.push_back(tensor);
  }

  /// Tensors that share a storage, dtype and flags share a location, so that their bytes are read once.
  std::uint32_t location_of(const TensorView& view) {
    const std::string key =
        fmt::format("{} {} {} {}", dtype_name(view.dtype), view.conj ? 1 : 0, view.neg ? 1 : 0, view.key);
    const auto [known, is_new] = locations_.try_emplace(key, static_cast<std::uint32_t>(out_.locations.size()));
    if (is_new) out_.locations.push_back(item_.location_of(view));
    return known;
  }

  Arena& arena_;
  const OpenItem& item_;
  const ObjectEntry& entry_;
  LoadedObject& out_;
  torch_save::HiddenTensors hidden_;
  HashMap<std::string, std::uint32_t> locations_;
};

/// Visits all leaves that are not tensors, which are listed elsewhere.
void visit_object_leaves(Arena& arena, const RankObject& rank, const std::function<void(const TreeLeaf&)>& visit) {
  const auto none = [](const Value&) { return false; };
  torch_save::HiddenTensors hidden(arena);
  visit_leaves(arena, *rank.object->root, none, [&](const TreeLeaf& leaf) {
    const bool wrapped = torch_save::is_parameter(*leaf.value, hidden);
    const Value& node = wrapped ? *leaf.value->items()[0] : *leaf.value;
    if (node.kind != ValueKind::kTensor) visit(leaf);
  });
}

Object object_of(Arena& arena, const ObjectEntry& entry, const TreeLeaf& leaf, int rank) {
  if (leaf.path.empty()) return {entry.name, entry.path, leaf.value, rank};
  return {name_below(arena, entry, leaf), path_below(arena, entry, leaf.path), leaf.value, rank};
}

/// Lists the leaves of ranks whose pickles differ. A leaf that is equal on all ranks that have it becomes one entry.
void list_differing(Arena& arena, std::span<const RankObject> ranks, std::vector<Object>& objects) {
  struct Known {
    const Value* value;
    bool differs = false, is_listed = false;
  };
  ValueEquality equality({.opaque_by_class = false, .budget = arena.budget().get()});
  HashMap<std::string_view, Known> known;
  std::vector<Object> found;
  for (const RankObject& rank : ranks) {
    visit_object_leaves(arena, rank, [&](const TreeLeaf& leaf) {
      found.push_back(object_of(arena, *rank.entry, leaf, rank.entry->rank));
      const auto [first, is_new] = known.try_emplace(found.back().name, Known{leaf.value});
      if (!is_new && !first.differs) first.differs = !equality.is_equal(*first.value, *leaf.value);
    });
  }
  for (Object& object : found) {
    Known& same = *known.find(object.name);
    if (!same.differs) {
      object.rank = -1;
      if (std::exchange(same.is_listed, true)) continue;
    }
    objects.push_back(object);
  }
}

/// The refusal of the first object of an unknown class, or none.
std::optional<Error> refusal_of_foreign(const Value& root, const ObjectEntry& entry) {
  VisitedSet met;
  const torch_save::Opaques found = torch_save::find_opaques(root, met);
  if (found.first == nullptr) return std::nullopt;
  return torch_save::foreign_class(*found.first, root, entry.name);
}

}  // namespace

Value* hidden_tensor(Arena& arena, std::string_view called) {
  const std::size_t dot = called.find('.');
  Value* tensor = make_global(arena, called.substr(0, dot), called.substr(dot + 1));
  tensor->kind = ValueKind::kOpaque;
  return tensor;
}

bool hide_tensors(Arena& arena, Value& value, std::string_view called, Originals* originals) {
  TensorHider hider(arena, called, originals);
  hider.hide(value);
  return hider.hid_some();
}

LoadedObject load_object(Arena& arena, const OpenItem& item, const ObjectEntry& entry, const ObjectOptions& options) {
  LoadedObject loaded;
  const auto data_pkl = std::make_shared<const std::vector<std::byte>>(item.data_pkl(arena));
  arena.adopt(data_pkl);
  loaded.pickle = as_text(*data_pkl);
  pickle::LoadOptions load;
  load.file = options.file;
  load.allow = pickle::is_known_global;
  load.opaque_unknown = true;
  if (options.originals != nullptr) load.behind_opaque = &options.originals->values;
  loaded.root = pickle::load(arena, *data_pkl, load);
  if (options.with_tensors) InnerTensorFinder(arena, item, entry, loaded).run();
  if (!options.opaque_globals) loaded.foreign = refusal_of_foreign(*loaded.root, entry);
  loaded.hides_tensors = hide_tensors(arena, *loaded.root, options.hidden_as, options.originals);
  return loaded;
}

void list_object(Arena& arena, std::span<const RankObject> ranks, std::vector<Object>& objects) {
  const RankObject& first = ranks.front();
  const auto is_equal = [&](const RankObject& each) { return each.object->pickle == first.object->pickle; };
  if (!std::ranges::all_of(ranks, is_equal)) return list_differing(arena, ranks, objects);
  visit_object_leaves(arena, first,
                      [&](const TreeLeaf& leaf) { objects.push_back(object_of(arena, *first.entry, leaf, -1)); });
}

namespace {

constexpr std::size_t kKeyPart = 2;  // The index of the key in ('storage', class, key, location, count).

/// Calls `visit` once for each persistent id that is written in place of `value`.
void visit_persistent_ids(const Value& value, const Originals& originals,
                          const std::function<void(const Value& id)>& visit) {
  VisitedSet ids;
  ValueWalk walk(value);
  while (const Value* const next = walk.next()) {
    if (next->kind == ValueKind::kPersid && ids.insert(next)) visit(*next);
    if (next->kind != ValueKind::kOpaque || !ids.insert(next)) continue;
    Value* const* behind = originals.values.find(next);
    if (behind != nullptr && *behind != nullptr) walk.add(**behind);
  }
}

/// Null if the id does not name a storage.
Value* key_of(const Value& id) {
  const std::span<Value*> parts = id.items()[0]->items();
  return parts.size() > kKeyPart && parts[kKeyPart]->is_string() ? parts[kKeyPart] : nullptr;
}

std::size_t number_of(const Value& id) { return parse_number<std::size_t>(key_of(id)->text()).value_or(0); }

}  // namespace

void keep_storages(Arena& arena, const Value& common, const OpenItem& item, Originals& originals) {
  std::vector<std::pair<Value*, std::string>> keys;
  HashMap<std::string, std::size_t> numbers;
  std::int64_t left = kMaxKeptStorages;
  bool are_kept = true;
  visit_persistent_ids(common, originals, [&](const Value& id) {
    Value* const key = key_of(id);
    are_kept = are_kept && key != nullptr;
    if (!are_kept) return;
    const auto [number, is_new] = numbers.try_emplace(key->text(), numbers.size());
    if (is_new) {
      std::optional<std::vector<std::byte>> bytes = item.storage_bytes(key->text(), left);
      are_kept = bytes.has_value();
      if (!are_kept) return;
      left -= std::ssize(*bytes);
      originals.storages.push_back(std::move(*bytes));
    }
    keys.emplace_back(id.items()[0], std::to_string(number));
  });
  if (!are_kept) originals.forget();
  for (const auto& [id, key] : keys) {
    if (are_kept) id->items()[kKeyPart] = make_string(arena, key);
  }
}

std::string saved_object(const std::string& folder, const Value& value, const Originals* originals) {
  static const Originals kNone;
  if (originals == nullptr) originals = &kNone;
  const std::string pickle = torch_save::dump(value, originals->values);
  std::vector<std::span<const std::byte>> storages(originals->storages.size());
  visit_persistent_ids(value, *originals, [&](const Value& id) {
    const std::size_t number = number_of(id);
    storages[number] = originals->storages[number];
  });
  while (!storages.empty() && storages.back().empty()) storages.pop_back();
  std::vector<std::int64_t> sizes;
  std::vector<std::uint32_t> crcs;
  for (const std::span<const std::byte> bytes : storages) {
    sizes.push_back(std::ssize(bytes));
    crcs.push_back(crc32(bytes));
  }
  const torch_save::SavedZip zip(folder, std::ssize(pickle), sizes);
  std::string content(static_cast<std::size_t>(zip.total_bytes()), '\0');
  for (const torch_save::SavedZip::Span& span : zip.frame(pickle, crcs)) {
    content.replace(static_cast<std::size_t>(span.offset), span.content.size(), span.content);
  }
  for (std::size_t i = 0; i < storages.size(); ++i) {
    content.replace(static_cast<std::size_t>(zip.data_offset(i)), storages[i].size(), as_text(storages[i]));
  }
  return content;
}

}  // namespace shard::dcp
