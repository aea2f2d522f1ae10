#include "libshard/catalog/target_tree.h"

#include <algorithm>
#include <vector>

#include "libshard/catalog/tree.h"

namespace shard {

namespace {

/// Whether a tensor that is an alias in the source is a first one here.
bool has_parted_aliases(const TargetDraft& draft) {
  return std::ranges::any_of(draft.target.tensors, [&](const Tensor& tensor) {
    return tensor.alias_of == kNoIndex && draft.source.tensors[tensor.source].alias_of != kNoIndex;
  });
}

Value* make_root(TargetDraft& draft, bool aliases_apart) {
  const Catalog &source = draft.source, &target = draft.target;
  const Selection& selection = draft.selection;
  const bool is_complete = selection.tensors.size() == source.tensors.size() &&
                           selection.objects.size() == source.objects.size() && !selection.renamed;
  if (source.root != nullptr && is_complete && !aliases_apart && !has_parted_aliases(draft)) return source.root;
  std::vector<TreeEntry> entries;
  entries.reserve(target.tensors.size() + target.objects.size());
  for (const Tensor& tensor : target.tensors) {
    entries.push_back({tensor.name, tensor.path, static_cast<std::uint32_t>(entries.size()), nullptr});
  }
  for (const Object& object : target.objects) entries.push_back({object.name, object.path, kNoIndex, object.value});
  const bool is_pruned = source.root != nullptr && !selection.renamed;
  return is_pruned ? prune_tree(*target.arena, *source.root, entries) : tree_of_paths(*target.arena, entries);
}

}  // namespace

void add_objects(TargetDraft& draft, bool aliases_apart) {
  if (!draft.traits.objects) return;
  draft.target.objects.reserve(draft.selection.objects.size());
  for (const SelectedObject& object : draft.selection.objects) {
    draft.target.objects.push_back({object.name, object.path, draft.source.objects[object.source].value, -1});
  }
  draft.target.root = make_root(draft, aliases_apart);
}

}  // namespace shard
