/// \file Searches for two boxes that share an element, without comparing all pairs. Pure.
///
/// Method: Zomorodian and Edelsbrunner, "Fast software for box intersections" (2000); here it stops at the first pair.
/// Two intervals intersect if and only if one of them contains the begin of the other. So for each dimension a tree
/// over the begins splits the boxes. An interval that covers all begins below a node intersects them in that dimension,
/// and only the remaining dimensions are compared. One that covers some of them descends. The last dimension is a
/// sweep. The tensor's shape may be unknown; coverage.h checks boxes of a known shape.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

namespace shard {

/// A box whose numbers belong to the caller.
struct BoxView {
  std::span<const std::int64_t> offsets, sizes;
};

/// The indices of two of `boxes` that share an element, the lower one first; nothing if there are none. A box without
/// elements shares none. An end past 63 bits counts as infinite.
/// \pre all boxes have the same number of dimensions, and no number is negative
/// Cost: O(n log^d n) for d dimensions in which boxes differ.
std::optional<std::pair<std::size_t, std::size_t>> find_overlap(std::span<const BoxView> boxes);

}  // namespace shard
