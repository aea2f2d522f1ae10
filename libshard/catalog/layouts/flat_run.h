/// \file Converts runs of a tensor's elements in row-major order, such as its parts in flat buffers, to boxes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>

namespace shard {

/// Calls `visit` with the boxes that together are elements [begin, begin + count) of a row-major tensor of that shape,
/// in order, and with the number of the run's elements before each box. There are at most 2 x dimensions - 1 boxes.
///
/// Method: split into a part of a row at the front, whole rows, and a part of a row at the end, and split the two parts
/// again in the same way.
/// \pre the run is inside the tensor, whose elements were counted without overflow. An empty run has no boxes.
void for_each_box_of_run(std::span<const std::int64_t> shape, std::int64_t begin, std::int64_t count,
                         const std::function<void(std::span<const std::int64_t> offsets,
                                                  std::span<const std::int64_t> sizes, std::int64_t before)>& visit);

/// Calls `visit` with the parts of run [begin, begin + count) of a buffer that is divided into slices of `slice`
/// elements, in order: the number of the slice, the position of the part in it, the number of the run's elements before
/// the part, and its size. \pre slice is positive, or the run is empty
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
