/// \file contains: std::ranges::contains of C++23.
#pragma once

#include <algorithm>
#include <functional>
#include <ranges>

namespace shard {

/// Whether an element of the list, or its projection, equals `item`. Cost: linear.
template <std::ranges::input_range List, class Item, class Projection = std::identity>
constexpr bool contains(const List& list, const Item& item, Projection projection = {}) {
  return std::ranges::find(list, item, projection) != std::ranges::end(list);
}

}  // namespace shard
