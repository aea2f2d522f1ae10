/// \file
/// Which pieces overlap which boxes. Inside libshard/plan and libshard/exec only.
///
/// Method: pieces are sorted by offsets, so their begins rise along the first dimension in which they are cut, but
/// their ends need not. Each piece therefore keeps the running maximum of the ends; it rises too, and both borders of
/// the range that may overlap a box are found by binary search. (An interval tree flattened for queries from one side;
/// what layouts make has few candidates that do not overlap.)
#pragma once

#include <cstdint>
#include <span>
#include <utility>

#include "libshard/plan/plan.h"

namespace shard {

/// Sets `running_end` of sorted pieces: the largest end in their first cut dimension among the pieces up to each.
void set_running_ends(std::span<Piece> pieces);

/// The range of pieces that may overlap `box`; all others do not. The caller intersects each. \pre set_running_ends
/// Cost: log n.
std::pair<std::uint32_t, std::uint32_t> candidates(std::span<const Piece> pieces, const Box& box);

/// How many pairs of a source and a target piece overlap. \pre set_running_ends, for both
/// Cost: n log n where the source pieces form a grid or a line, which is what layouts make; else by candidates.
std::int64_t count_overlaps(std::span<const Piece> from, std::span<const Piece> to);

}  // namespace shard
