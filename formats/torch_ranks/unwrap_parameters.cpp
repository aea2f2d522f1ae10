#include "formats/torch_ranks/unwrap_parameters.h"

#include <algorithm>

#include "formats/torch/saved_file.h"
#include "libshard/catalog/tree.h"

namespace shard::torch_ranks {

namespace {

/// The number of a Parameter's tensor, or -1.
std::int64_t wrapped_tensor(const Value& value) {
  const bool is_call = value.is_call_of("torch._utils", "_rebuild_parameter") ||
                       value.is_call_of("torch._utils", "_rebuild_parameter_with_state");
  const bool is_parameter = is_call && !value.items().empty() && value.items()[0]->kind == ValueKind::kTensor;
  return is_parameter ? value.items()[0]->number : -1;
}

}  // namespace

Value* unwrap_parameters(Arena& arena, Value& root, const std::vector<bool>& is_cut, std::vector<bool>& is_parameter,
                         const std::function<void(std::string_view name)>& lose) {
  is_parameter.assign(is_cut.size(), false);
  std::vector<TreeEntry> entries;
  bool is_any = false;
  const auto visit = [&](const TreeLeaf& leaf) {
    TreeEntry entry{leaf.name, leaf.path, kNoIndex, leaf.value};
    const std::int64_t wrapped = wrapped_tensor(*leaf.value);
    if (wrapped >= 0 && is_cut[static_cast<std::size_t>(wrapped)]) {
      entry.tensor = static_cast<std::uint32_t>(wrapped);
      is_parameter[entry.tensor] = is_any = true;
      if (torch_save::has_attributes(*leaf.value)) lose(leaf.name);
    } else if (leaf.value->kind == ValueKind::kTensor) {
      entry.tensor = static_cast<std::uint32_t>(leaf.value->number);
    }
    entries.push_back(entry);
  };
  visit_leaves(
      arena, root, [](const Value&) { return false; }, visit);
  return is_any ? prune_tree(arena, root, entries) : &root;
}

}  // namespace shard::torch_ranks
