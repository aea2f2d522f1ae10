/// \file Checks that boxes cover a tensor exactly once.
///
/// Method: straight cuts, then corner sums. A region is cut along a dimension at all positions that no box crosses,
/// into slabs. The slabs are then cut along the other dimensions, and so on. Uncovered elements between slabs are a
/// gap. Grids, including uneven and nested ones, end as regions of one box each (they are guillotine partitions:
/// Gilmore and Gomory 1965).
///
/// Boxes that no straight cut separates (a pinwheel, an overlap) are checked by their corners. A box is the sum of 2^d
/// signed corners of its indicator function's differences (the identity behind summed-area tables, Crow 1984).
/// Therefore boxes cover a region exactly once if and only if their corners sum to those of the region. The first
/// corner (lexicographically) that does not match is the first element that is covered zero times (a gap) or more than
/// once (an overlap). Regions are disjoint, so the first of their faults is the tensor's first.
///
/// No pair of boxes is ever compared. Cost: O(d n log n) for each of at most 32 levels of cuts, and O(64 n log n) for
/// corners, because boxes may interlock along at most 6 dimensions.
#pragma once

#include <span>
#include <string_view>

#include "libshard/catalog/catalog.h"

namespace shard {

/// Checks that the non-empty boxes of `chunks`, equal ones counted once, cover `shape` exactly.
/// \pre every box is inside `shape` (empty ones may be past the end); `chunks` are sorted by offsets.
/// Reports the first element (in row-major order) that is not covered once: kCorruption of kind gap or overlap, naming
/// `tensor` and the element.
/// \returns whether nothing was reported.
/// \throws Error kUnsupported  boxes that no straight cut separates differ along more than 6 dimensions.
bool check_coverage(std::string_view tensor, Dims shape, std::span<const Chunk> chunks,
                    Findings& findings = throwing_findings());

}  // namespace shard
