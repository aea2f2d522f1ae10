/// \file Visits a box that is stored with strides in two places, run by run. Inside libshard/exec only.
#pragma once

#include <cstdint>
#include <span>

#include "libshard/plan/order.h"

namespace shard {

/// The number of elements from the first to the last of a box of `sizes`, including gaps. \pre no size is 0
inline std::int64_t span_of(std::span<const std::int64_t> sizes, std::span<const std::int64_t> strides) {
  std::int64_t span = 1;
  for (std::size_t d = 0; d < sizes.size(); ++d) span += (sizes[d] - 1) * strides[d];
  return span;
}

/// Whether a box is one run without gaps and without elements that share an address.
inline bool is_one_run(std::span<const std::int64_t> sizes, std::span<const std::int64_t> strides) {
  const Order order = order_of(strides);
  std::int64_t run = 1;
  for (std::size_t i = sizes.size(); i-- > 0;) {
    const auto d = static_cast<std::size_t>(order[i]);
    if (sizes[d] != 1 && strides[d] != run) return false;
    run *= sizes[d];
  }
  return true;
}

/// The number of elements between two points of a strided array.
inline std::int64_t distance(const std::int64_t* from, const std::int64_t* to, std::span<const std::int64_t> strides) {
  std::int64_t distance = 0;
  for (std::size_t d = 0; d < strides.size(); ++d) distance += (to[d] - from[d]) * strides[d];
  return distance;
}

/// The strides of a box that is packed without gaps in the order of `strides`.
inline void pack(std::span<const std::int64_t> sizes, std::span<const std::int64_t> strides, Numbers& packed) {
  const Order order = order_of(strides);
  std::int64_t step = 1;
  for (std::size_t i = sizes.size(); i-- > 0;) {
    const auto d = static_cast<std::size_t>(order[i]);
    packed[d] = step;
    step *= sizes[d];
  }
}

/// Calls `each(a_offset, b_offset, elements)` for the longest runs that are contiguous in both places, in the order of
/// the first place. Offsets are in elements from the first one of the box. \pre no size is 0
template <class Each>
void walk_runs(std::span<const std::int64_t> sizes, std::span<const std::int64_t> a, std::span<const std::int64_t> b,
               const Each& each) {
  const Order order = order_of(a);
  Numbers side, step_a, step_b, at;
  std::size_t dims = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const auto d = static_cast<std::size_t>(order[i]);
    if (sizes[d] == 1) continue;
    side[dims] = sizes[d], step_a[dims] = a[d], step_b[dims] = b[d], at[dims] = 0;
    ++dims;
  }
  std::int64_t run = 1;
  while (dims > 0 && step_a[dims - 1] == run && step_b[dims - 1] == run) run *= side[--dims];
  std::int64_t in_a = 0, in_b = 0;
  for (;;) {
    each(in_a, in_b, run);
    std::size_t d = dims;
    // Advances to the next index, like an odometer: a dimension that reaches its end restarts at 0 and advances the one
    // before it.
    for (; d-- > 0;) {
      in_a += step_a[d], in_b += step_b[d];
      if (++at[d] < side[d]) break;
      in_a -= side[d] * step_a[d], in_b -= side[d] * step_b[d], at[d] = 0;
      if (d == 0) return;
    }
    if (dims == 0) return;
  }
}

}  // namespace shard
