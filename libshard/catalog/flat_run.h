/// \file
/// Runs of a tensor's elements in row-major order, as boxes: what flat buffers hold of it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>

namespace shard {

/// Calls `visit` with the boxes that elements [begin, begin + count) of a row-major tensor of that shape make, in
/// order, at most 2 x dimensions - 1 of them, and with how many elements of the run stand before each.
///
/// Method: a part of a row at the front, whole rows, a part of a row at the end; the parts again in the same way.
/// \pre the run lies in the tensor, whose elements were counted without overflow. An empty run has no boxes.
void for_each_box_of_run(std::span<const std::int64_t> shape, std::int64_t begin, std::int64_t count,
                         const std::function<void(std::span<const std::int64_t> offsets,
                                                  std::span<const std::int64_t> sizes, std::int64_t before)>& visit);

/// Calls `visit` with the parts of run [begin, begin + count) of a buffer that is cut into slices of `slice` elements,
/// in order: the number of the slice, where in it the part begins, how many elements of the run stand before the part,
/// and its size. \pre slice is positive, or the run is empty
template <class Visit>
void for_each_slice_of_run(std::int64_t begin, std::int64_t count, std::int64_t slice, Visit&& visit) {
  for (std::int64_t before = 0; before < count;) {
    const std::int64_t at = begin + before, first = at % slice;
    const std::int64_t part = std::min(count - before, slice - first);
    visit(at / slice, first, before, part);
    before += part;
  }
}

}  // namespace shard
