#include "formats/hdf5/list_arrays.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "libshard/catalog/tree.h"
#include "libshard/core/hash_table.h"

namespace shard::hdf5 {

namespace {

bool is_sequence(const Value& value) { return value.kind == ValueKind::kList || value.kind == ValueKind::kTuple; }

bool is_element(const Value& value) {
  switch (value.kind) {
    case ValueKind::kBool:
    case ValueKind::kInt:
    case ValueKind::kFloat:
      return true;
    case ValueKind::kString:
      return is_plain_text(value.text());
    default:
      return false;
  }
}

bool becomes_array(const Value& value) {
  if (!is_sequence(value) || value.items().empty()) return false;
  const ValueKind kind = value.items().front()->kind;
  return std::ranges::all_of(value.items(), [&](const Value* each) { return each->kind == kind && is_element(*each); });
}

/// One content of all elements. \pre becomes_array(list)
OutgoingContent array_content(const Value& list) {
  OutgoingContent array;
  for (const Value* const each : list.items()) {
    OutgoingContent element = content_of(*each);
    array.type = std::move(element.type);
    array.bytes += element.bytes;
    std::ranges::move(element.strings, std::back_inserter(array.strings));
  }
  array.space = {SpaceKind::kSimple, {std::ssize(list.items())}};
  return array;
}

/// The objects of a target by their names.
class ObjectNumbers {
 public:
  explicit ObjectNumbers(const Catalog& target) : target_(target) {
    for (std::uint32_t i = 0; i < target.objects.size(); ++i) numbers_.try_emplace(target.objects[i].name, i);
  }

  /// The objects of a list's elements. Nothing if one of them is not an object, or is marked.
  std::optional<std::vector<std::uint32_t>> of(const TreeLeaf& list, const std::vector<bool>& is_written) const {
    std::vector<std::uint32_t> numbers;
    const std::span<Value* const> items = list.value->items();
    for (std::size_t i = 0; i < items.size(); ++i) {
      const std::string name = list.path.empty() ? fmt::format("{}", i) : fmt::format("{}.{}", list.name, i);
      const std::uint32_t* const number = numbers_.find(std::string_view(name));
      if (number == nullptr || is_written[*number] || target_.objects[*number].value != items[i]) return std::nullopt;
      numbers.push_back(*number);
    }
    return numbers;
  }

 private:
  const Catalog& target_;
  HashMap<std::string_view, std::uint32_t> numbers_;
};

}  // namespace

std::vector<KeptContent> take_lists(const Catalog& target, Arena& arena, std::vector<bool>& is_written,
                                    std::vector<bool>& needs_no_tree) {
  std::vector<KeptContent> contents;
  if (target.root == nullptr || target.objects.empty()) return contents;
  const ObjectNumbers numbers(target);
  visit_leaves(arena, *target.root, becomes_array, [&](const TreeLeaf& leaf) {
    if (leaf.path.empty() || !becomes_array(*leaf.value)) return;
    const std::optional<std::vector<std::uint32_t>> objects = numbers.of(leaf, is_written);
    if (!objects) return;
    for (const std::uint32_t object : *objects) {
      is_written[object] = true;
      needs_no_tree[object] = leaf.value->kind == ValueKind::kList;
    }
    contents.push_back(
        {KeptAs::kList, {}, std::string(leaf.name), {leaf.path.begin(), leaf.path.end()}, array_content(*leaf.value)});
  });
  return contents;
}

}  // namespace shard::hdf5
