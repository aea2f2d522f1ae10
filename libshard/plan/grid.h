/// \file Chooses the tiles of a unit and the sizes of their buffers. Inside libshard/plan and libshard/exec only.
#pragma once

#include "libshard/plan/order.h"
#include "libshard/plan/plan.h"

namespace shard {

inline constexpr std::int64_t kTilePadding = 64;  ///< The padding between a tile and the staging buffer.

/// The size of a worker's second buffer, next to its tile's: elements that are permuted or cast pass through it. At
/// most 1 MiB, and less if many threads share little memory, so that most of each share is left for the tile.
std::int64_t staging_bytes(std::int64_t max_memory_bytes, int threads);

/// The limits on a tile's buffer.
struct TileLimits {
  std::int64_t share_bytes;           ///< Per tile, if every worker holds one.
  std::int64_t full_bytes;            ///< Per tile, if only one worker holds one.
  std::int64_t staging_bytes;         ///< The longest read of elements that must be permuted.
  std::int64_t workers = 1;           ///< The number of workers that process tiles at once.
  std::int64_t line_bytes = 1 << 20;  ///< PlanOptions::line_tile_bytes.
};
TileLimits tile_limits(const PlanOptions& options);

/// Chooses a tile of `unit` that needs few I/O calls: about 1 MiB (a line: `line_bytes`) if runs are long, or up to
/// `full_bytes`.
///
/// Candidates are slabs in the order of either side's strides. If the two orders differ, tiles with balanced sides are
/// candidates too. A stream's tile contains whole source pieces, or slabs of one piece in its order if not even one
/// piece fits. If tiles are large and few, all workers get the same number of them. Cost: bounded, regardless of the
/// number of pieces.
Dims choose_tile(Arena& arena, const Unit& unit, std::span<const Piece> from, std::span<const Piece> to,
                 const TileLimits& limits);

/// Estimates the number of calls that read `from` in tiles of these sides, with at most `staging_bytes` per call.
double estimate_reads(std::span<const Piece> from, const Numbers& tile, std::int64_t element_bytes,
                      std::int64_t staging_bytes);

/// The tiles of a unit whose `shape` and `tile` are set. \throws Error kCorruption  the count exceeds 63 bits.
std::int64_t count_tiles(const Unit& unit);

}  // namespace shard
