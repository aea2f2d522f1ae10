/// \file
/// Do boxes cover a tensor exactly once?
///
/// Method: a box is the sum of 2^d signed corners of its indicator function's differences (the identity behind summed-
/// area tables, Crow 1984). The boxes cover the tensor exactly once if and only if their corners sum to those of the
/// whole tensor. The first corner (lexicographically) that does not match is the first element that is covered zero
/// times (a gap) or more than once (an overlap), so the same sum also says where and which. No pair of boxes is ever
/// compared: cost n 2^d log(n 2^d), where d counts the dimensions that are cut at all.
#pragma once

#include <span>
#include <string_view>

#include "libshard/catalog/catalog.h"

namespace shard {

/// Checks that the non-empty boxes of `chunks`, equal ones counted once, cover `shape` exactly.
/// \pre every box lies inside `shape` (empty ones may lie past the end); `chunks` are sorted by offsets.
/// Reports the first element (in row-major order) that is not covered once: kCorruption of kind gap or overlap, naming
/// `tensor` and the element.
/// \returns whether nothing was reported.
/// \throws Error kUnsupported  more than 12 dimensions are cut.
bool check_coverage(std::string_view tensor, Dims shape, std::span<const Chunk> chunks,
                    Findings& findings = throwing_findings());

}  // namespace shard
