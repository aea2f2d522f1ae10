/// \file Plans the tiles to copy between two catalogs. Pure: opens no file and touches no data.
///
/// A Unit is one tensor (or one shared storage) to fill. If all its pieces are whole runs of rows, the unit is a line
/// of bytes, and small adjacent lines are joined into one unit. A regular grid divides a unit's box into tiles. A tile
/// is therefore just a number, and the plan for a terabyte is as small as its metadata.
///
/// A worker reads all source runs of a tile, permutes the elements in memory, and writes all its target runs. The
/// planner chooses the grid so that the runs on both sides are long within the memory budget.
///
/// Units: elements, unless a name ends in `_bytes`.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "libshard/catalog/catalog.h"
#include "libshard/core/box.h"

namespace shard {

/// A box of a unit and the position of its elements in a storage (see Chunk). Pieces are sorted by offsets.
struct Piece {
  Dims offsets, sizes, strides;
  std::int64_t first = 0;        ///< Elements from the start of the storage.
  std::int64_t running_end = 0;  ///< See set_running_ends (overlaps.h).
  std::uint32_t storage = 0;
  std::uint32_t chunk = kNoIndex;  ///< The catalog's chunk that contains this piece. For joined pieces, the first one's
                                   ///< chunk. Replicas of a source chunk follow it in the catalog, with an equal box.
};

struct Unit {
  DType from{}, to{};      ///< If equal, bytes are copied unchanged.
  bool is_line = false;    ///< One-dimensional and copied unchanged. Each piece is one contiguous run of its storage.
  bool is_stream = false;  ///< Reads compressed storages, front to back: dimensions are in decoding order.
  Dims shape;              ///< The shape of the whole unit.
  Dims tile;               ///< The shape of a full tile. Edge tiles are smaller.
  std::uint32_t from_begin = 0, from_count = 0;  ///< A range of Plan::from_pieces, with one of each set of replicas.
  std::uint32_t to_begin = 0, to_count = 0;      ///< A range of Plan::to_pieces; all replicas, which are written.
  std::int64_t first_tile = 0, tile_count = 0;
  std::uint32_t tensor = kNoIndex;  ///< Index in the target catalog; kNoIndex for a shared storage or joined tensors.
};

struct Plan {
  std::vector<Unit> units;  ///< By target file and offset; from compressed storages last, in reading order.
  std::vector<Piece> from_pieces, to_pieces;
  std::int64_t tile_count = 0;
  std::int64_t tile_bytes = 0;    ///< The size of the largest tile's buffer.
  std::int64_t memory_bytes = 0;  ///< All workers' buffers, at most PlanOptions::max_memory_bytes.
  std::int64_t bytes_to_read = 0, bytes_to_write = 0;
  std::int64_t copies = 0;  ///< The number of overlapping pairs of a source and a target piece.
  std::shared_ptr<Arena> arena = std::make_shared<Arena>();

  std::span<const Piece> from(const Unit& unit) const {
    return std::span(from_pieces).subspan(unit.from_begin, unit.from_count);
  }
  std::span<const Piece> to(const Unit& unit) const {
    return std::span(to_pieces).subspan(unit.to_begin, unit.to_count);
  }
  /// The unit that contains tile number `tile`. \pre 0 <= tile < tile_count
  const Unit& unit_of(std::int64_t tile) const;
};

/// Whether one worker can run `plan` in `memory_bytes`, which may be less than the limit that the plan was made for.
bool fits_in_memory(const Plan& plan, std::int64_t memory_bytes);

/// Tiles [begin, end) of a plan.
struct TileRange {
  std::int64_t begin = 0, end = 0;
};
/// The tiles that rank `rank` of `ranks` copies. The ranks' ranges are consecutive, and have equal bytes up to one
/// tile. Cost: linear in units.
TileRange tiles_of_rank(const Plan& plan, int rank, int ranks);

/// The box of tile `number` of a unit (counted from 0 within the unit).
Box tile_box(const Unit& unit, std::int64_t number);

struct PlanOptions {
  std::int64_t max_memory_bytes = 64 << 20;  ///< The size of all buffers of all workers together.
  int threads = 1;
  /// The usual size of tiles that are copied unchanged. More than a worker's share of the memory is for a target in
  /// memory, into which they are read without a buffer.
  std::int64_t line_tile_bytes = 1 << 20;
  bool checksums = false;  ///< Copies are summed per target storage, so none covers two.
  /// Plans only data in source files of this rank, which no other rank can read. -1: everything.
  int only_rank = -1;
  std::span<const int> readers{};  ///< By source file: the rank that reads it (`only_rank`). Empty: File::rank.
  /// By target storage: whether this rank writes it. Only data in those storages is planned. Empty: everything.
  std::span<const std::uint8_t> own_storages{};
  /// Chooses the replica to read (replicas are pieces of one box, in the order of ranks). Empty: the first.
  std::function<std::size_t(std::span<const Piece> replicas)> choose_replica{};
};

/// Plans the copies that fill `target` (from make_target, placed or not) from `source`. Every needed source byte is
/// read once, from the lowest rank's replica unless choose_replica selects a different one. Every target byte is
/// written once. If the target contains only a part of a tensor, only that part of the source is planned.
/// \pre target.tensors[i].source is set; the source is valid (validate_catalog), and is located before the
///   plan runs. Small tensors are joined only if source and target are placed.
/// \throws Error kUnsupported      a piece begins or ends inside a byte (float6).
/// \throws Error kInvalidArgument  max_memory_bytes is below 1 MiB.
/// Ownership: the plan refers to both catalogs' arenas, which must outlive it. Cost: n log n in chunks; 1,000,000
/// chunks in under 2 s.
Plan plan_copies(const Catalog& source, const Catalog& target, const PlanOptions& options);

}  // namespace shard
