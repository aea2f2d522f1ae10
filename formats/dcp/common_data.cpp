#include "formats/dcp/common_data.h"

#include "formats/dcp/objects.h"
#include "formats/parts/pickle/attributes.h"
#include "formats/torch/saved_file.h"
#include "libshard/core/error.h"

namespace shard::dcp {
namespace {

/// The attributes of an argparse.Namespace or a types.SimpleNamespace; null of everything else.
Value* attributes_of(const Value& value) {
  const bool is_namespace = value.is_call_of("argparse", "Namespace") || value.is_call_of("types", "SimpleNamespace");
  if (!is_namespace || value.extra() == nullptr || value.extra()->state == nullptr) return nullptr;
  return is_mapping(*value.extra()->state) ? value.extra()->state : nullptr;
}

/// The dict with its namespaces as dicts.
Value* plain_common(Arena& arena, const Value& common, Originals& originals) {
  if (!is_mapping(common)) throw pickle::malformed("common data", "it is not a dict").found(type_name(common));
  std::vector<Value*> items;
  const std::span<Value*> all = mapping_items(common);
  for (std::size_t i = 0; i < all.size(); i += 2) {
    if (!all[i]->is_string())
      throw pickle::malformed("common data", "a key of it is not a string").found(type_name(*all[i]));
    Value* const attributes = attributes_of(*all[i + 1]);
    if (attributes != nullptr) originals.values.try_emplace(attributes, all[i + 1]);
    items.insert(items.end(), {all[i], attributes == nullptr ? all[i + 1] : attributes});
  }
  Value* const plain = make_list(arena, ValueKind::kDict, items);
  hide_tensors(arena, *plain, kInnerTensor, &originals);
  return plain;
}

}  // namespace

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

Value* common_of_item(Arena& arena, const Value& loaded, Originals& originals) {
  if (loaded.kind != ValueKind::kList || loaded.items().size() != 1) {
    throw pickle::malformed("common data", "it is not a list of one dict").found(type_name(loaded));
  }
  return plain_common(arena, *loaded.items().front(), originals);
}

void list_common(Arena& arena, Value& common, std::vector<Object>& objects, std::vector<TreeEntry>& entries) {
  const auto none = [](const Value&) { return false; };
  visit_leaves(arena, common, none, [&](const TreeLeaf& leaf) {
    objects.push_back({leaf.name, compact_path(leaf.path, leaf.name), leaf.value});
  });
  const std::span<Value*> items = mapping_items(common);
  for (std::size_t i = 0; i < items.size(); i += 2) entries.push_back({items[i]->text(), {}, kNoIndex, items[i + 1]});
}

}  // namespace shard::dcp
