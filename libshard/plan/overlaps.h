/// \file Finds the pieces that overlap a box. Inside libshard/plan and libshard/exec only.
///
/// Method: pieces are sorted by offsets, so their begins rise along the first dimension in which they differ, but their
/// ends need not. Each piece therefore stores the running maximum of the ends, which rises as well. Binary search then
/// finds both borders of the range that may overlap a box. (This is an interval tree flattened for queries from one
/// side. In the pieces of real layouts, few candidates turn out not to overlap.)
#pragma once

#include <cstdint>
#include <span>
#include <utility>

#include "libshard/plan/plan.h"

namespace shard {

/// Sets `running_end` of sorted pieces: the largest end, in the first dimension in which they differ, among the pieces
/// up to each one.
void set_running_ends(std::span<Piece> pieces);

/// The range of pieces that may overlap `box`. No other piece does. The caller intersects each of them. \pre
/// set_running_ends
/// Cost: log n.
std::pair<std::uint32_t, std::uint32_t> candidates(std::span<const Piece> pieces, const Box& box);

/// The number of overlapping pairs of a source and a target piece. \pre set_running_ends, for both
/// Cost: n log n if the source pieces form a grid or a line, as those of real layouts do. Otherwise it tests all
/// candidates.
std::int64_t count_overlaps(std::span<const Piece> from, std::span<const Piece> to);

}  // namespace shard
