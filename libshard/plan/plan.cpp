#include "libshard/plan/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <compare>

#include "libshard/core/checked.h"
#include "libshard/core/error.h"
#include "libshard/plan/fold.h"
#include "libshard/plan/grid.h"
#include "libshard/plan/order.h"
#include "libshard/plan/overlaps.h"
#include "libshard/plan/pieces.h"

namespace shard {

namespace {

/// Small adjacent lines are joined up to this size, which is one ordinary tile.
constexpr std::int64_t kJoinedBytes = 1 << 20;

/// A tensor or a storage copy to fill. Jobs are ordered by their position in the target.
struct Job {
  std::uint32_t file;
  std::int64_t place;
  std::uint32_t index;  ///< Index into the target's tensors or storage_copies.
  bool is_copy;
  auto operator<=>(const Job&) const = default;
};

std::int64_t bytes_of(std::span<const Piece> pieces, DType dtype) {
  std::int64_t bytes = 0;
  for (const Piece& piece : pieces) {
    bytes = checked_add(bytes, checked_mul(checked_numel(piece.sizes), element_bytes(dtype)));
  }
  return bytes;
}

class Planner {
 public:
  Planner(const Catalog& source, const Catalog& target, const PlanOptions& options)
      : source_(source), target_(target), options_(options), limits_(tile_limits(options)) {}

  Plan run() {
    plan_.from_pieces.reserve(source_.chunks.size());
    plan_.to_pieces.reserve(target_.chunks.size());
    for (const Job& job : jobs()) {
      // Each job becomes a unit, which collects and simplifies the pieces of both sides. A small line is joined to the
      // unit before it, if that one is small too.
      Unit unit = job.is_copy ? begin_copy(target_.storage_copies[job.index]) : begin_tensor(job.index);
      if (unit.to_count == 0) continue;
      const bool is_small = is_joinable(unit);
      if (!is_small || !is_open_ || !join(unit)) plan_.units.push_back(unit);
      is_open_ = is_small;
    }
    // Target order is good for writing. Units that read compressed streams follow after all others, in the order of
    // their streams.
    std::ranges::stable_sort(plan_.units, {}, [this](const Unit& unit) { return stream_place(unit); });
    for (Unit& unit : plan_.units) finish(unit);
    const std::int64_t at_once = std::min<std::int64_t>(options_.threads, plan_.tile_count);
    if (at_once > 0) {
      plan_.memory_bytes =
          std::min(options_.max_memory_bytes, at_once * (plan_.tile_bytes + limits_.staging_bytes + kTilePadding));
    }
    return std::move(plan_);
  }

 private:
  /// The tensors and storage copies to fill, in the order of the target's bytes.
  std::vector<Job> jobs() const {
    std::vector<Job> jobs;
    jobs.reserve(target_.tensors.size() + target_.storage_copies.size());
    for (std::uint32_t i = 0; i < target_.tensors.size(); ++i) {
      const Tensor& tensor = target_.tensors[i];
      const Chunk* const chunk = first_own(tensor);
      if (chunk == nullptr) continue;
      const std::uint32_t storage = target_.stored[chunk->stored].storage;
      // A format without aliases stores each aliased tensor in full.
      if (tensor.alias_of != kNoIndex && storage == target_first_storage(tensor.alias_of)) continue;
      if (!target_.storages[storage].whole_copy) jobs.push_back(job_at(storage, chunk->first, i, false));
    }
    for (std::uint32_t i = 0; i < target_.storage_copies.size(); ++i) {
      const StorageCopy& copy = target_.storage_copies[i];
      if (is_own(copy.to_storage)) jobs.push_back(job_at(copy.to_storage, copy.to_bytes, i, true));
    }
    std::ranges::sort(jobs);
    return jobs;
  }

  /// Whether this plan fills the storage of the target.
  bool is_own(std::uint32_t storage) const {
    return options_.own_storages.empty() || options_.own_storages[storage] != 0;
  }

  /// The first chunk of a target's tensor that this plan fills, or null if there is none.
  const Chunk* first_own(const Tensor& tensor) const {
    const std::span<const Chunk> chunks = target_.chunks_of(tensor);
    const auto own = std::ranges::find_if(
        chunks, [this](const Chunk& chunk) { return is_own(target_.stored[chunk.stored].storage); });
    return own == chunks.end() ? nullptr : &*own;
  }

  std::uint32_t target_first_storage(std::uint32_t index) const {
    const Chunk* const chunk = first_own(target_.tensors[index]);
    return chunk == nullptr ? kNoIndex : target_.stored[chunk->stored].storage;
  }

  Job job_at(std::uint32_t storage, std::int64_t first, std::uint32_t index, bool is_copy) const {
    const Storage& place = target_.storages[storage];
    // Before the target is placed, the number of the storage replaces its offset.
    const bool is_placed = place.offset >= 0;
    return {place.file, is_placed ? place.offset + (is_copy ? first : 0) : storage, index, is_copy};
  }

  Unit begin_unit() const {
    Unit unit;
    unit.from_begin = static_cast<std::uint32_t>(plan_.from_pieces.size());
    unit.to_begin = static_cast<std::uint32_t>(plan_.to_pieces.size());
    return unit;
  }

  void count_pieces(Unit& unit) const {
    unit.from_count = static_cast<std::uint32_t>(plan_.from_pieces.size()) - unit.from_begin;
    unit.to_count = static_cast<std::uint32_t>(plan_.to_pieces.size()) - unit.to_begin;
  }

  std::span<Piece> from_of(const Unit& unit) {
    return std::span(plan_.from_pieces).subspan(unit.from_begin, unit.from_count);
  }
  std::span<Piece> to_of(const Unit& unit) { return std::span(plan_.to_pieces).subspan(unit.to_begin, unit.to_count); }

  /// Collects the pieces of a tensor on both sides, chooses replicas, and simplifies the unit. A unit without target
  /// pieces has nothing to copy.
  Unit begin_tensor(std::uint32_t index) {
    const Tensor& wanted = target_.tensors[index];
    const Tensor& stored = source_.tensors[wanted.source];
    Unit unit = begin_unit();
    unit.from = stored.dtype;
    unit.to = wanted.dtype;
    unit.shape = wanted.shape;
    unit.tensor = index;
    append_pieces(target_, wanted, plan_.to_pieces);
    const auto first = plan_.to_pieces.begin() + unit.to_begin;
    plan_.to_pieces.erase(
        std::remove_if(first, plan_.to_pieces.end(), [this](const Piece& piece) { return !is_own(piece.storage); }),
        plan_.to_pieces.end());
    // If this rank fills no piece of the tensor, the source's pieces are not needed.
    if (plan_.to_pieces.size() > unit.to_begin) {
      append_pieces(source_, stored, plan_.from_pieces);
      choose_replicas(plan_.from_pieces, unit.from_begin, options_.choose_replica);
    }
    if (options_.only_rank >= 0) keep_owned(unit);
    if (plan_.to_pieces.size() > unit.to_begin) crop_to_target(unit);
    if (plan_.to_pieces.size() > unit.to_begin) {
      fold(*plan_.arena, unit.shape, plan_.from_pieces, unit.from_begin, plan_.to_pieces, unit.to_begin);
    }
    count_pieces(unit);
    if (unit.to_count != 0) simplify(unit);
    unit.is_stream = unit.to_count != 0 && std::ranges::any_of(from_of(unit), [this](const Piece& piece) {
                       return source_.storages[piece.storage].is_stream;
                     });
    if (unit.is_stream) order_as_stored(*plan_.arena, unit.shape, from_of(unit), to_of(unit));
    return unit;
  }

  /// The sort key of a unit: units from streams follow all others, in the order of the bytes that they read.
  std::pair<std::int64_t, std::int64_t> stream_place(const Unit& unit) const {
    const Piece& first = plan_.from_pieces[unit.from_begin];
    if (!source_.storages[first.storage].is_stream) return {-1, 0};
    return {first.storage, first.first * element_bytes(unit.from)};
  }

  bool is_owned(std::uint32_t storage) const {
    if (options_.only_rank < 0) return true;
    const std::uint32_t file = source_.storages[storage].file;
    return options_.only_rank == (options_.readers.empty() ? source_.files[file].rank : options_.readers[file]);
  }

  /// Keeps the source pieces in files that the rank owns, and reduces the target's pieces to the parts that those fill.
  void keep_owned(Unit& unit) {
    std::vector<Piece>&from = plan_.from_pieces, &to = plan_.to_pieces;
    const auto begin = from.begin() + unit.from_begin;
    from.erase(std::remove_if(begin, from.end(), [this](const Piece& piece) { return !is_owned(piece.storage); }),
               from.end());
    const std::span<Piece> owned = std::span(from).subspan(unit.from_begin);
    set_running_ends(owned);
    const std::vector<Piece> filled = parts_filled(*plan_.arena, std::span(to).subspan(unit.to_begin), owned);
    to.resize(unit.to_begin);
    to.insert(to.end(), filled.begin(), filled.end());
  }

  /// Shrinks the unit's box to the target's pieces, so that no tile is outside them.
  void crop_to_target(Unit& unit) {
    const std::span<const Piece> to = std::span(plan_.to_pieces).subspan(unit.to_begin);
    const Box wanted = bounding_box(to);
    if (std::ranges::equal(wanted.sizes(), unit.shape)) return;
    crop(*plan_.arena, wanted, plan_.from_pieces, unit.from_begin);
    crop(*plan_.arena, wanted, plan_.to_pieces, unit.to_begin);
    unit.shape = plan_.arena->dims(wanted.sizes());
  }

  /// A storage that is copied unchanged is a line of bytes with one piece on each side.
  Unit begin_copy(const StorageCopy& copy) {
    Unit unit = begin_unit();
    if (copy.bytes == 0 || !is_owned(copy.from_storage)) return unit;
    constexpr std::int64_t kOne[] = {1};
    Arena& arena = *plan_.arena;
    unit.from = unit.to = DType::kUint8;
    unit.is_line = true;
    unit.shape = arena.dims(std::span(&copy.bytes, 1));
    Piece piece{.offsets = arena.zeros(1), .sizes = unit.shape, .strides = arena.dims(kOne)};
    piece.storage = copy.from_storage;
    piece.first = copy.from_bytes;
    plan_.from_pieces.push_back(piece);
    piece.storage = copy.to_storage;
    piece.first = copy.to_bytes;
    plan_.to_pieces.push_back(piece);
    count_pieces(unit);
    return unit;
  }

  /// Converts a tensor to a line if its pieces allow it, and to a line of bytes if no element is cast.
  void simplify(Unit& unit) {
    Arena& arena = *plan_.arena;
    if (dtype_block(unit.from).elements > 1) {
      count_in_bytes(arena, target_.tensors[unit.tensor].name, dtype_block(unit.from), unit.shape, from_of(unit),
                     to_of(unit));
      unit.from = unit.to = DType::kUint8;
    } else if (flatten(arena, unit.shape, from_of(unit), to_of(unit)) && unit.from == unit.to) {
      scale_line(arena, unit.shape, from_of(unit), to_of(unit), element_bytes(unit.from));
      unit.from = unit.to = DType::kUint8;
      unit.is_line = true;
    }
  }

  /// Joins a small line of bytes to the unit before it. Pieces that are adjacent in their file become one piece, so
  /// that a thousand small tensors take a few reads and writes. \returns false if the two are too large for one tile.
  bool join(const Unit& unit) {
    Unit& joined = plan_.units.back();
    const std::int64_t begin = joined.shape[0];
    if (begin + unit.shape[0] > std::min(kJoinedBytes, limits_.share_bytes)) return false;
    join_pieces(plan_.from_pieces, joined.from_begin + joined.from_count, begin, source_, true);
    join_pieces(plan_.to_pieces, joined.to_begin + joined.to_count, begin, target_, !options_.checksums);
    count_pieces(joined);
    const std::int64_t bytes = begin + unit.shape[0];
    joined.shape = plan_.arena->dims(std::span(&bytes, 1));
    joined.tensor = kNoIndex;
    return true;
  }

  /// True for a line that is small enough to share a tile, and whose bytes have known offsets.
  bool is_joinable(const Unit& unit) {
    if (!unit.is_line || unit.shape[0] > kJoinedBytes / 2) return false;
    const auto is_located = [](const Catalog& catalog, const Piece& piece) {
      return catalog.storages[piece.storage].offset >= 0;
    };
    std::int64_t end = 0;
    for (const Piece& piece : to_of(unit)) {
      // A piece that does not continue the one before it is a replica.
      if (piece.offsets[0] != end || !is_located(target_, piece)) return false;
      end += piece.sizes[0];
    }
    return std::ranges::all_of(from_of(unit), [&](const Piece& piece) { return is_located(source_, piece); });
  }

  /// Appends pieces [from, end) to the ones before them, with offsets increased by `begin` bytes.
  void join_pieces(std::vector<Piece>& pieces, std::uint32_t from, std::int64_t begin, const Catalog& catalog,
                   bool over_storages) {
    std::size_t kept = from;
    for (std::size_t i = from; i < pieces.size(); ++i) {
      Piece piece = pieces[i];
      Piece& last = pieces[kept - 1];
      const std::int64_t offset = piece.offsets[0] + begin;
      piece.offsets = plan_.arena->dims(std::span(&offset, 1));
      if (are_neighbours(catalog, last, piece) && (over_storages || last.storage == piece.storage)) {
        const std::int64_t size = last.sizes[0] + piece.sizes[0];
        last.sizes = plan_.arena->dims(std::span(&size, 1));
      } else {
        pieces[kept++] = piece;
      }
    }
    pieces.resize(kept);
  }

  static bool are_neighbours(const Catalog& catalog, const Piece& a, const Piece& b) {
    const Storage& in_a = catalog.storages[a.storage];
    const Storage& in_b = catalog.storages[b.storage];
    // Offsets of two storages are comparable only if both are plain, because a decoded storage counts offsets in its
    // own view.
    const bool share_offsets = a.storage == b.storage || (in_a.plain && in_b.plain);
    return share_offsets && in_a.file == in_b.file && in_a.offset + a.first + a.sizes[0] == in_b.offset + b.first;
  }

  /// Divides the unit into tiles, and adds it to the totals.
  void finish(Unit& unit) {
    const std::span<Piece> from = from_of(unit), to = to_of(unit);
    set_running_ends(from);
    set_running_ends(to);
    unit.tile = choose_tile(*plan_.arena, unit, from, to, limits_);
    unit.first_tile = plan_.tile_count;
    unit.tile_count = count_tiles(unit);
    plan_.tile_count = checked_add(plan_.tile_count, unit.tile_count);
    plan_.tile_bytes = std::max(plan_.tile_bytes, checked_numel(unit.tile.span()) * element_bytes(unit.from));
    plan_.bytes_to_read = checked_add(plan_.bytes_to_read, bytes_of(from, unit.from));
    plan_.bytes_to_write = checked_add(plan_.bytes_to_write, bytes_of(to, unit.to));
    plan_.copies += count_overlaps(from, to);
  }

  const Catalog& source_;
  const Catalog& target_;
  const PlanOptions& options_;
  const TileLimits limits_;
  bool is_open_ = false;  ///< Whether the last unit accepts small neighbours.
  Plan plan_;
};

}  // namespace

const Unit& Plan::unit_of(std::int64_t tile) const {
  const auto after = std::ranges::upper_bound(units, tile, {}, &Unit::first_tile);
  return *(after - 1);
}

namespace {

/// The first tile after `part` of `parts` of all bytes.
std::int64_t tile_after(const Plan& plan, std::int64_t part, std::int64_t parts) {
  const auto bytes_of_unit = [](const Unit& unit) { return checked_bytes(checked_numel(unit.shape), unit.to); };
  std::int64_t total = 0, before = 0;
  for (const Unit& unit : plan.units) total = checked_add(total, bytes_of_unit(unit));
  const std::int64_t wanted = begin_of_share(total, part, parts);
  for (const Unit& unit : plan.units) {
    const std::int64_t bytes = bytes_of_unit(unit);
    // The share ends within this unit. All its tiles count as equal. The + 1 rounds their size up.
    if (before + bytes > wanted) return unit.first_tile + (wanted - before) / (bytes / unit.tile_count + 1);
    before += bytes;
  }
  return plan.tile_count;
}

}  // namespace

bool fits_in_memory(const Plan& plan, std::int64_t memory_bytes) {
  return plan.tile_bytes <= memory_bytes - staging_bytes(memory_bytes, 1) - kTilePadding;
}

TileRange tiles_of_rank(const Plan& plan, int rank, int ranks) {
  return {tile_after(plan, rank, ranks), tile_after(plan, rank + 1, ranks)};
}

Box tile_box(const Unit& unit, std::int64_t number) {
  Box box;
  box.dims = unit.shape.size();
  const auto dims = static_cast<std::size_t>(box.dims);
  Numbers tiles, at;
  for (std::size_t d = 0; d < dims; ++d) {
    const auto i = static_cast<int>(d);
    tiles[d] = (unit.shape[i] + unit.tile[i] - 1) / unit.tile[i];
  }
  // Converts the tile's number to its index in the grid of tiles, in row-major order.
  set_index<std::int64_t>(std::span(at).first(dims), std::span(tiles).first(dims), number);
  for (std::size_t d = 0; d < dims; ++d) {
    const auto i = static_cast<int>(d);
    box.offset[d] = at[d] * unit.tile[i];
    box.size[d] = std::min(unit.tile[i], unit.shape[i] - box.offset[d]);
  }
  return box;
}

Plan plan_copies(const Catalog& source, const Catalog& target, const PlanOptions& options) {
  constexpr std::int64_t kLeastMemory = 1 << 20;
  if (options.max_memory_bytes < kLeastMemory) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("cannot copy within {} bytes of memory", options.max_memory_bytes))
        .expected("at least 1MiB")
        .found(options.max_memory_bytes)
        .suggest(Remedy::kMoreMemory);
  }
  return Planner(source, target, options).run();
}

}  // namespace shard
