/// \file
/// Computes the tiles to copy between two catalogs. Pure: opens no file and touches no data.
///
/// A Unit is one tensor (or one shared storage) to be filled. Where all its pieces are whole runs of rows it is a line
/// of bytes, and small neighbours of that kind are joined into one unit. A regular grid divides a unit's box into
/// tiles, so a tile is just a number, and the plan for a terabyte is as small as its metadata. A worker that takes a
/// tile reads all source runs of it and writes all its target runs; between them the elements are permuted in memory.
/// The grid is chosen so that the runs on both sides are long within the memory budget.
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

/// A box of a unit and where its elements lie (see Chunk). Sorted by offsets.
struct Piece {
  Dims offsets, sizes, strides;
  std::int64_t first = 0;        ///< Elements from the storage's begin.
  std::int64_t running_end = 0;  ///< See set_running_ends (overlaps.h).
  std::uint32_t storage = 0;
  std::uint32_t chunk = kNoIndex;  ///< The catalog's chunk that this is, or a part of; of joined pieces the first's.
                                   ///< Replicas of a source chunk follow it in the catalog, with an equal box.
};

struct Unit {
  DType from{}, to{};      ///< If equal, bytes are copied unchanged.
  bool is_line = false;    ///< One-dimensional, copied unchanged; each piece is one contiguous run of its storage.
  bool is_stream = false;  ///< From compressed storages: its dimensions are in the order in which those are decoded, so
                           ///< that tile after tile reads them front to back.
  Dims shape;              ///< The whole unit's.
  Dims tile;               ///< A full tile's; edge tiles are smaller.
  std::uint32_t from_begin = 0, from_count = 0;  ///< Into Plan::from_pieces; of replicas one.
  std::uint32_t to_begin = 0, to_count = 0;      ///< Into Plan::to_pieces; replicas kept, each is written.
  std::int64_t first_tile = 0, tile_count = 0;
  std::uint32_t tensor = kNoIndex;  ///< In the target catalog; kNoIndex for a shared storage or joined tensors.
};

struct Plan {
  std::vector<Unit> units;  ///< In the order of target files and places; then those from compressed storages, in order
                            ///< of what they read.
  std::vector<Piece> from_pieces, to_pieces;
  std::int64_t tile_count = 0;
  std::int64_t tile_bytes = 0;    ///< The largest tile's buffer.
  std::int64_t memory_bytes = 0;  ///< What all workers' buffers take at most; within PlanOptions::max_memory_bytes.
  std::int64_t bytes_to_read = 0, bytes_to_write = 0;
  std::int64_t copies = 0;  ///< Pairs of a source and a target piece that overlap.
  std::shared_ptr<Arena> arena = std::make_shared<Arena>();

  std::span<const Piece> from(const Unit& unit) const {
    return std::span(from_pieces).subspan(unit.from_begin, unit.from_count);
  }
  std::span<const Piece> to(const Unit& unit) const {
    return std::span(to_pieces).subspan(unit.to_begin, unit.to_count);
  }
  /// The unit that holds tile number `tile`. \pre 0 <= tile < tile_count
  const Unit& unit_of(std::int64_t tile) const;
};

/// Whether one worker can run `plan` in `memory_bytes`, which may be less than what it was made for.
bool fits_in_memory(const Plan& plan, std::int64_t memory_bytes);

/// Tiles [begin, end) of a plan.
struct TileRange {
  std::int64_t begin = 0, end = 0;
};
/// The tiles that rank `rank` of `ranks` copies: the ranges follow one another, and hold equal bytes but for a tile.
/// Cost: linear in units.
TileRange tiles_of_rank(const Plan& plan, int rank, int ranks);

/// The box of tile `number` of a unit (counted from 0 within the unit).
Box tile_box(const Unit& unit, std::int64_t number);

struct PlanOptions {
  std::int64_t max_memory_bytes = 64 << 20;  ///< All buffers of all workers together.
  int threads = 1;
  bool checksums = false;  ///< The copies will be summed by target storage: none may reach over two storages.
  /// Only what source files of this rank hold, where no other rank can read them; -1: everything.
  int only_rank = -1;
  std::span<const int> readers{};  ///< By source file: the rank of `only_rank` that it is; empty: File::rank.
  /// By target file, whether this rank writes it: only what those hold; empty: everything.
  std::span<const std::uint8_t> own_files{};
  /// The one to read of replicas (pieces of one box, in the order of ranks); empty: the first.
  std::function<std::size_t(std::span<const Piece> replicas)> choose_replica{};
};

/// Plans the copies that fill `target` (from make_target, placed or not) from `source`.
/// Every needed source byte is read once (of replicas the lowest rank's), every target byte written once. A target may
/// hold a part of a tensor only: no more of the source is then planned.
/// \pre target.tensors[i].source is set; both catalogs were finished; the source is located or will be before it runs.
///   Small tensors are joined only where source and target have their places.
/// \throws Error kUnsupported      a cut inside a byte (float6).
/// \throws Error kInvalidArgument  max_memory is below 1 MiB.
/// Ownership: views into both catalogs' arenas; they must outlive the plan.
/// Cost: n log n in chunks; 1,000,000 chunks in under 2 s.
Plan plan_copies(const Catalog& source, const Catalog& target, const PlanOptions& options);

}  // namespace shard
