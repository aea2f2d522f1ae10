/// \file
/// Sets as sorted vectors.
#pragma once

#include <algorithm>
#include <vector>

namespace shard {

/// Sorts the elements and removes repeated ones.
template <class T>
void sort_unique(std::vector<T>& elements) {
  std::ranges::sort(elements);
  const auto repeated = std::ranges::unique(elements);
  elements.erase(repeated.begin(), repeated.end());
}

}  // namespace shard
