/// \file Questions about lists and ends of names. `contains` is std::ranges::contains of C++23.
#pragma once

#include <algorithm>
#include <functional>
#include <ranges>
#include <string_view>

namespace shard {

/// Whether an element of the list, or its projection, equals `item`. Cost: linear.
template <std::ranges::input_range List, class Item, class Projection = std::identity>
constexpr bool contains(const List& list, const Item& item, Projection projection = {}) {
  return std::ranges::find(list, item, projection) != std::ranges::end(list);
}

inline bool ends_in_any(std::string_view name, const auto& suffixes) {
  return std::ranges::any_of(suffixes, [&](std::string_view suffix) { return name.ends_with(suffix); });
}

/// The text after the last dot, or the whole name.
inline std::string_view last_part(std::string_view name) { return name.substr(name.rfind('.') + 1); }

/// Whether a name is `end`, or ends with it after a dot. False for an empty end.
inline bool ends_with_part(std::string_view name, std::string_view end) {
  return !end.empty() && name.ends_with(end) &&
         (name.size() == end.size() || name[name.size() - end.size() - 1] == '.');
}

}  // namespace shard
