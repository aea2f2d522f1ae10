/// \file
/// The choice of a unit's tiles, and the buffers that they take. Inside libshard/plan and libshard/exec only.
#pragma once

#include "libshard/plan/order.h"
#include "libshard/plan/plan.h"

namespace shard {

inline constexpr std::int64_t kTilePadding = 64;  ///< Between a tile and the staging buffer.

/// A worker's second buffer, beside its tile's: elements that are permuted or cast pass through it. At most 1 MiB.
std::int64_t staging_bytes(std::int64_t max_memory_bytes);

/// What a tile's buffer may take.
struct TileLimits {
  std::int64_t share_bytes;    ///< Per tile, if every worker holds one.
  std::int64_t full_bytes;     ///< Per tile, if only one worker holds one.
  std::int64_t staging_bytes;  ///< The longest read of what must be permuted.
  std::int64_t workers = 1;    ///< That take tiles at once.
};
TileLimits tile_limits(const PlanOptions& options);

/// The tile of `unit` that needs few I/O calls: about 1 MiB where the runs are long, up to `full_bytes` where they are
/// short. Slabs in the order of either side's strides; where the two orders differ also tiles with sides in balance. Of
/// streams whole source pieces; where not even one fits, slabs of one piece in its order. Where tiles are large and
/// few, all workers get as many of them. Cost: bounded, whatever the number of pieces.
Dims choose_tile(Arena& arena, const Unit& unit, std::span<const Piece> from, std::span<const Piece> to,
                 const TileLimits& limits);

/// An estimate of the calls that read `from` in tiles of these sides, each call at most `staging_bytes`.
double estimate_reads(std::span<const Piece> from, const Numbers& tile, std::int64_t element_bytes,
                      std::int64_t staging_bytes);

/// The number of tiles of a unit whose `shape` and `tile` are set. \throws Error kCorruption  more than 63 bits.
std::int64_t count_tiles(const Unit& unit);

}  // namespace shard
