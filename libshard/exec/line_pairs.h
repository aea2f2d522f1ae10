/// \file Visits the bytes of a plan that are copied unchanged, pair by pair of pieces. Inside libshard/exec only.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "libshard/plan/plan.h"

namespace shard {

/// Whether the unit is a line of bytes of which each is written once.
inline bool is_line_without_replicas(const Plan& plan, const Unit& unit) {
  if (!unit.is_line) return false;
  std::int64_t end = 0;
  for (const Piece& piece : plan.to(unit)) {
    if (piece.offsets[0] != end) return false;
    end += piece.sizes[0];
  }
  return true;
}

/// Calls each(from, to, begin, end) for the bytes [begin, end) of a line that a source piece and a target piece have in
/// common, within `tiles`, in order. \pre is_line_without_replicas
template <class Each>
void for_each_line_pair(const Plan& plan, const Unit& unit, const TileRange& tiles, const Each& each) {
  // The rank's tiles of this unit are a contiguous range of the line's bytes.
  const std::int64_t low = std::max<std::int64_t>(0, tiles.begin - unit.first_tile) * unit.tile[0];
  const std::int64_t tiles_before_end = std::min(unit.tile_count, tiles.end - unit.first_tile);
  const std::int64_t high = tiles_before_end >= unit.tile_count ? unit.shape[0] : tiles_before_end * unit.tile[0];
  const std::span<const Piece> from = plan.from(unit), to = plan.to(unit);
  for (std::size_t i = 0, j = 0; low < high && i < from.size() && j < to.size();) {
    const std::int64_t from_end = from[i].offsets[0] + from[i].sizes[0], to_end = to[j].offsets[0] + to[j].sizes[0];
    const std::int64_t begin = std::max({from[i].offsets[0], to[j].offsets[0], low});
    const std::int64_t end = std::min({from_end, to_end, high});
    if (begin < end) each(from[i], to[j], begin, end);
    if (from_end <= to_end) ++i;
    if (to_end <= from_end) ++j;
  }
}

/// The position in its file that byte 0 of a line would have if the piece contained it.
inline std::int64_t line_begin(const Storage& storage, const Piece& piece) {
  return storage.offset + piece.first - piece.offsets[0];
}

}  // namespace shard
