#include "formats/torch/unnamed_tensors.h"

#include <algorithm>
#include <cstdint>
#include <span>

#include "libshard/catalog/tree.h"
#include "libshard/core/value_walk.h"

namespace shard::torch_save {

namespace {

constexpr std::size_t kNoContainer = SIZE_MAX;

// A container that was visited, with the number of its parent and its key there; without a key, its index.
struct MetContainer {
  const Value* value;
  std::size_t holder = kNoContainer;
  const Value* key = nullptr;
  std::size_t index = 0;
};

class ContainerSearch {
 public:
  explicit ContainerSearch(HiddenTensors& hidden) : hidden_(hidden) {}

  std::vector<std::string> search(const Value& root) {
    meet({&root});
    for (std::size_t i = 0; i < met_.size(); ++i) {
      const Value& value = *met_[i].value;
      if (holds_unnamed(value)) names_.push_back(name_of(i));
      if (is_mapping(value)) {
        for (const auto [key, item] : ItemPairs(value)) meet({item, i, key});
      } else {
        for (std::size_t k = 0; k < value.items().size(); ++k) meet({value.items()[k], i, nullptr, k});
      }
    }
    return std::move(names_);
  }

 private:
  void meet(const MetContainer& met) {
    const ValueKind kind = met.value->kind;
    const bool is_container = kind == ValueKind::kList || kind == ValueKind::kTuple || is_mapping(*met.value);
    if (is_container && visited_.insert(met.value)) met_.push_back(met);
  }

  bool holds(const Value* value) { return value != nullptr && !hidden_.kind_in(*value).empty(); }

  bool holds_unnamed(const Value& value) {
    if (value.kind != ValueKind::kCall) return false;
    const std::span<Value* const> pairs = mapping_items(value);
    const auto is_searched = [&](const Value* argument) {
      const bool has_pairs = !pairs.empty() && mapping_items(*argument).data() == pairs.data();
      return !has_pairs && holds(argument);
    };
    return std::ranges::any_of(value.items(), is_searched) || holds(value.state());
  }

  std::string name_of(std::size_t number) const {
    std::vector<std::string> parts;
    for (const MetContainer* met = &met_[number]; met->holder != kNoContainer; met = &met_[met->holder]) {
      parts.push_back(met->key != nullptr ? text_of_key(*met->key) : std::to_string(met->index));
    }
    std::string name;
    for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
      if (part != parts.rbegin()) name += '.';
      name += *part;
    }
    return name;
  }

  HiddenTensors& hidden_;
  VisitedSet visited_;
  std::vector<MetContainer> met_;
  std::vector<std::string> names_;
};

}  // namespace

std::vector<std::string> containers_with_unnamed_tensors(const Value& root, HiddenTensors& hidden) {
  return ContainerSearch(hidden).search(root);
}

}  // namespace shard::torch_save
