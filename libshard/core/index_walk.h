/// \file
/// Walks over the indices of a box of elements, the last dimension fastest.
#pragma once

#include <cstddef>
#include <span>

namespace shard {

/// Advances `index` to the next index below `sizes`, in row-major order. \pre all sizes are positive
/// \returns the dimension that advanced (those after it are 0 again); -1 after the last index, which becomes the first.
template <class Number>
int next_index(std::span<Number> index, std::span<const Number> sizes) {
  for (std::size_t d = sizes.size(); d-- > 0;) {
    if (++index[d] < sizes[d]) return static_cast<int>(d);
    index[d] = 0;
  }
  return -1;
}

/// Sets `index` to the index of element `number`, counted in row-major order, among the indices below `sizes`.
/// \pre all sizes are positive, and `number` is less than their product
template <class Number>
void set_index(std::span<Number> index, std::span<const Number> sizes, Number number) {
  for (std::size_t d = sizes.size(); d-- > 0;) {
    index[d] = number % sizes[d];
    number /= sizes[d];
  }
}

}  // namespace shard
