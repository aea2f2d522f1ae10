#include "libshard/map/flat_keys.h"

#include <fmt/format.h>

#include <algorithm>

#include "libshard/core/error.h"
#include "libshard/core/parse_number.h"
#include "libshard/map/wrong.h"

namespace shard {

namespace {

constexpr const char* kDigits = "[0-9]{1,18}";

Error too_many_orders() {
  return wrong("cannot use the layout document: the names of its flatten.order are too large");
}

}  // namespace

FlatKeys::FlatKeys(const MapFlatten& flatten) : flatten_(flatten) {
  for (const std::string& group : flatten.groups) groups_.push_back(std::make_unique<RE2>(group, quiet_patterns()));
  for (std::size_t item = 0; item < flatten.order.size(); ++item) {
    for (std::size_t i = 0; i < flatten.order[item].size(); ++i) {
      const NameTemplate& names = flatten.order[item][i];
      const auto number = static_cast<std::int64_t>(item), of_item = static_cast<std::int64_t>(i);
      if (names.placeholders().empty()) {
        const std::string name = names.fill({});
        if (!plain_.try_emplace(name, std::vector{number, of_item}).is_new)
          throw wrong(fmt::format("the map's flatten.order lists '{}' twice", name)).found(name);
        continue;
      }
      const std::string pattern = names.pattern([](const std::string&) { return kDigits; });
      auto compiled = sets_.add(patterns_.size(), pattern);
      if (compiled == nullptr || !compiled->ok()) throw too_many_orders();
      patterns_.push_back({std::move(compiled), number, of_item});
    }
  }
  for (std::size_t group = 0; group < flatten.param_shapes.size(); ++group) {
    for (const std::string& name : flatten.param_shapes[group]) {
      const auto number = static_cast<std::int64_t>(plain_.entries().size());
      plain_.try_emplace(name, std::vector{number});
      group_of_name_.try_emplace(name, std::to_string(group));
    }
  }
  if (!sets_.compile()) throw too_many_orders();
}

std::optional<FlatKeys::Place> FlatKeys::find(std::string_view key) const {
  const bool is_long = key.size() > MatchTime::kLongestName && !flatten_.takes_param_shapes;
  return is_long ? std::nullopt : time_(key, [&] { return place_of(key); });
}

std::optional<FlatKeys::Place> FlatKeys::place_of(std::string_view key) const {
  std::optional<std::string> group = group_of(key);
  if (!group) return std::nullopt;
  std::optional<std::vector<std::int64_t>> order = order_of(key);
  if (!order) return std::nullopt;
  return Place{std::move(*group), std::move(*order)};
}

std::optional<std::string> FlatKeys::group_of(std::string_view key) const {
  if (flatten_.takes_param_shapes) {
    const std::string* const group = group_of_name_.find(key);
    return group == nullptr ? std::nullopt : std::optional(*group);
  }
  if (groups_.empty()) return "0";
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    std::string captured;
    if (groups_[i]->NumberOfCapturingGroups() == 0) {
      if (RE2::FullMatch(key, *groups_[i])) return std::to_string(i);
    } else if (RE2::FullMatch(key, *groups_[i], &captured)) {
      return captured;
    }
  }
  return std::nullopt;
}

std::optional<std::vector<std::int64_t>> FlatKeys::order_of(std::string_view key) const {
  if (flatten_.order.empty() && !flatten_.takes_param_shapes) return std::vector<std::int64_t>();
  std::vector<std::size_t> numbers;
  sets_.append_matching(key, numbers);
  std::optional<std::vector<std::int64_t>> order;
  const auto set = [&](std::vector<std::int64_t> found) {
    if (order) throw wrong(fmt::format("the map's flatten.order has '{}' in two items", key)).of_tensor(key);
    order = std::move(found);
  };
  if (const auto* const found = plain_.find(key)) set(*found);
  for (const std::size_t number : numbers) {
    const Pattern& pattern = patterns_[number];
    const auto groups = static_cast<std::size_t>(pattern.compiled->NumberOfCapturingGroups());
    std::vector<re2::StringPiece> texts(groups + 1);
    if (!pattern.compiled->Match(key, 0, key.size(), RE2::ANCHOR_BOTH, texts.data(), static_cast<int>(texts.size()))) {
      continue;
    }
    std::vector<std::int64_t> place{pattern.item};
    for (std::size_t i = 1; i < texts.size(); ++i) {
      place.push_back(parse_number({texts[i].data(), texts[i].size()}).value());
    }
    place.push_back(pattern.name);
    set(std::move(place));
  }
  return order;
}

}  // namespace shard
