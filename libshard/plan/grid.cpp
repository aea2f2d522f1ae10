#include "libshard/plan/grid.h"

#include <algorithm>

#include "libshard/core/checked.h"

namespace shard {

namespace {

constexpr std::int64_t kMiB = 1 << 20;
// The goal is at most 2,500 reads and writes per GB (10^9 bytes), so that call overhead is small next to the data
// transfer. The search stops a little below, because its numbers are estimates.
constexpr double kCallsPerByte = 2400e-9;
// If source and target order differ, tiles trade short reads against short writes. A short write makes the page cache
// of a new file grow in scattered places, and costs about as much as four short reads of an existing file.
constexpr double kWriteCost = 4;
// A larger tile must save 5 % of the calls. The smaller one stays in the CPU's cache, and differences of a few percent
// are within the estimate's error.
constexpr double kGain = 0.95;
// Using one worker with all the memory is worthwhile only if it nearly halves the calls, because the others wait.
constexpr double kAloneGain = 0.55;
// One worker reads a compressed piece of up to this size, if its share of the memory can hold the piece.
constexpr std::int64_t kWholePiece = 8 * kMiB;
constexpr std::size_t kSample = 2048;  // The number of pieces that an estimate samples, so that its cost is bounded.

std::size_t at(int i) { return static_cast<std::size_t>(i); }

/// Chooses a tile with balanced sides. A slab along one side's order has long runs on that side and runs of 1 on the
/// other side. In a balanced tile, neither is short. Greedy: each step doubles one dimension of the side whose run is
/// shorter (its innermost dimension that is not whole yet), until the next doubling would take more than `elements`.
/// Invariant: the tile has at most `elements`. At most log2(elements) steps plus one.
void fill_balanced(Dims shape, const Order& from, const Order& to, std::int64_t elements, Numbers& tile) {
  std::fill_n(tile.begin(), shape.size(), std::int64_t{1});
  const auto grow = [&](const Order& order, bool really) {  // Grows only if `really`. \returns the run's length.
    std::int64_t run = 1;
    for (int i = shape.size(); i-- > 0;) {
      const int d = order[at(i)];
      std::int64_t& side = tile[at(d)];
      run *= side;
      if (side == shape[d]) continue;
      if (really) side = std::min(shape[d], side * 2);
      break;
    }
    return run;
  };
  for (std::int64_t used = 1; used * 2 <= elements;) {
    const Numbers before = tile;
    grow(grow(from, false) <= grow(to, false) ? from : to, true);
    used = 1;
    for (int d = 0; d < shape.size(); ++d) used *= tile[at(d)];
    if (std::equal(before.begin(), before.begin() + shape.size(), tile.begin())) return;
  }
}

/// One read or write call: `span` elements of the storage, of which `elements` are wanted.
struct Run {
  std::int64_t elements = 1, span = 1;
};

/// The limits on read or write calls of one side of a copy.
struct Access {
  std::int64_t longest;        ///< The limit on elements of one call.
  std::int64_t element_bytes;  ///< The element size of a source. 0 for a target, whose gaps are never written.
};

/// The longest run of a piece in the storage, within `tile`. Dimensions are merged from the smallest stride up, as long
/// as the next one continues the merged run, or the gap between them is read over. A source may repeat elements along a
/// dimension, whose stride is then shorter than the run.
Run longest_run(const Piece& piece, const Numbers& tile, const Access& access) {
  Run run;
  std::int64_t piece_run = 1;
  const Order order = order_of(piece.strides.span());
  for (int i = piece.sizes.size(); i-- > 0;) {
    const int d = order[at(i)];
    const std::int64_t n = std::min(piece.sizes[d], tile[at(d)]), stride = piece.strides[d];
    const bool continues = access.element_bytes == 0 ? stride == run.span
                                                     : is_read_over(stride, run.span, piece_run, access.element_bytes);
    if (n > 1 && !continues) break;
    piece_run += (piece.sizes[d] - 1) * stride;
    run.elements *= n;
    run.span += (n - 1) * stride;
  }
  return run;
}

/// The number of I/O calls for one piece: the tiles that it overlaps times the runs in one of them. Tiles at its edges
/// count as full, so this is an upper estimate.
double calls_of(const Piece& piece, const Numbers& tile, const Access& access) {
  double tiles = 1, elements = 1;  // Estimates may exceed 63 bits, and need no precision.
  for (int d = 0; d < piece.sizes.size(); ++d) {
    const std::int64_t side = tile[at(d)];
    const std::int64_t last = piece.offsets[d] + piece.sizes[d] - 1;
    tiles *= static_cast<double>(last / side - piece.offsets[d] / side + 1);
    elements *= static_cast<double>(std::min(piece.sizes[d], side));
  }
  const Run run = longest_run(piece, tile, access);
  const double runs = std::max(1.0, elements / static_cast<double>(run.elements));
  return tiles * runs * std::max(1.0, static_cast<double>(run.span) / static_cast<double>(access.longest));
}

double calls_of(std::span<const Piece> pieces, const Numbers& tile, const Access& access) {
  const std::size_t step = pieces.size() / kSample + 1;
  double calls = 0;
  for (std::size_t i = 0; i < pieces.size(); i += step) calls += calls_of(pieces[i], tile, access);
  return calls * static_cast<double>(step);
}

/// Tries tiles of one size and keeps the one that needs the fewest calls so far.
class TileSearch {
 public:
  /// Line units are read directly into their final position, regardless of their length. Other reads, and writes of
  /// cast elements, use the staging buffer.
  TileSearch(const Unit& unit, std::span<const Piece> from, std::span<const Piece> to, std::int64_t staging_bytes)
      : shape_(unit.shape),
        from_(from),
        to_(to),
        from_order_(order_of(from.front().strides.span())),
        to_order_(order_of(to.front().strides.span())),
        element_bytes_(element_bytes(unit.from)) {
    permuted_ = !std::equal(from_order_.begin(), from_order_.begin() + shape_.size(), to_order_.begin());
    read_ = {unit.is_line ? INT64_MAX : std::max<std::int64_t>(1, staging_bytes / element_bytes_), element_bytes_};
    write_ = {unit.from == unit.to ? INT64_MAX : std::max<std::int64_t>(1, staging_bytes / element_bytes(unit.to)), 0};
    is_line_ = unit.is_line;
    is_stream_ = unit.is_stream;
    if (is_stream_) measure_pieces();
  }

  /// Tries a tile of about this size. \param is_alone  only one worker can hold a tile of this size.
  void try_size(std::int64_t bytes, bool is_alone) {
    gain_ = permuted_ && is_alone ? kAloneGain : kGain;
    const std::int64_t elements = std::max<std::int64_t>(1, bytes / element_bytes_);
    Numbers tile;
    if (least_bytes() > 0 && piece_elements_ <= elements) {
      fill_pieces(elements, tile);
      return keep_better(tile, 0);  // Each piece is read once, regardless of the tile.
    }
    if (is_stream_ && !is_line_) {  // A stream must be read in its stored order, one stream after another.
      fill_slab(std::span(piece_).first(at(shape_.size())), from_order_, elements, tile);
      return keep_better(tile, reads_of(tile));
    }
    fill_slab(shape_.span(), to_order_, elements, tile);
    keep_better(tile, reads_of(tile));
    if (!permuted_) return;
    fill_slab(shape_.span(), from_order_, elements, tile);
    keep_better(tile, reads_of(tile));
    fill_balanced(shape_, from_order_, to_order_, elements, tile);
    keep_better(tile, reads_of(tile));
  }
  /// The smallest tile that contains a whole compressed piece, or 0 if that is too large.
  std::int64_t least_bytes() const {
    const std::int64_t bytes = piece_elements_ * element_bytes_;
    return is_stream_ && bytes <= kWholePiece ? bytes : 0;
  }
  double calls() const { return calls_; }
  const Numbers& best() const { return best_; }

 private:
  void measure_pieces() {
    for (int d = 0; d < shape_.size(); ++d) {
      std::int64_t& most = piece_[at(d)];
      most = 1;
      for (const Piece& piece : from_) most = std::max(most, piece.sizes[d]);
      piece_elements_ *= most;
    }
  }

  /// Fills the tile with whole source pieces, side by side along the target, up to `elements`. In a grid of chunks,
  /// each chunk is then in one tile.
  void fill_pieces(std::int64_t elements, Numbers& tile) const {
    Numbers grid, pieces;
    for (std::size_t d = 0; d < at(shape_.size()); ++d) {
      grid[d] = (shape_[static_cast<int>(d)] + piece_[d] - 1) / piece_[d];
    }
    fill_slab(std::span(grid).first(at(shape_.size())), to_order_, elements / piece_elements_, pieces);
    for (std::size_t d = 0; d < at(shape_.size()); ++d) {
      tile[d] = std::min(shape_[static_cast<int>(d)], pieces[d] * piece_[d]);
    }
  }

  double reads_of(const Numbers& tile) const { return calls_of(from_, tile, read_); }

  /// Keeps a later tile, which is usually larger, only if it saves enough calls.
  void keep_better(const Numbers& tile, double reads) {
    const double writes = calls_of(to_, tile, write_);
    const double calls = reads + (permuted_ ? kWriteCost : 1) * writes;
    if (calls >= gain_ * calls_) return;
    calls_ = calls;
    best_ = tile;
  }

  Dims shape_;
  std::span<const Piece> from_, to_;
  Order from_order_, to_order_;
  std::int64_t element_bytes_;
  Access read_{}, write_{};
  Numbers piece_{};  ///< For a stream: the sides of the largest source piece.
  std::int64_t piece_elements_ = 1;
  bool permuted_ = false, is_stream_ = false, is_line_ = false;
  double calls_ = 1e300, gain_ = kGain;
  Numbers best_{};
};

/// Splits the dimension that has most parts into up to twice as many parts, so that workers finish at about the same
/// time. Many tiles already balance without this.
void share_evenly(Dims shape, std::int64_t workers, Numbers& tile) {
  constexpr std::int64_t kManyRounds = 16;
  const auto parts_of = [&](int d) { return (shape[d] + tile[at(d)] - 1) / tile[at(d)]; };
  int most = 0;
  std::int64_t others = 1;
  for (int d = 0; d < shape.size(); ++d) {
    if (parts_of(d) > parts_of(most)) most = d;
  }
  for (int d = 0; d < shape.size(); ++d) others = d == most ? others : checked_mul(others, parts_of(d));
  std::int64_t parts = parts_of(most);
  if (others * parts < workers || others * parts >= kManyRounds * workers) return;
  while (others * parts % workers != 0) ++parts;
  tile[at(most)] = std::max<std::int64_t>(1, (shape[most] + parts - 1) / parts);
}

}  // namespace

std::int64_t staging_bytes(std::int64_t max_memory_bytes, int threads) {
  const std::int64_t part = max_memory_bytes / std::max(8, 4 * threads);
  return std::clamp(part / 4096 * 4096, kMiB / 8, kMiB);
}

TileLimits tile_limits(const PlanOptions& options) {
  const std::int64_t staging = staging_bytes(options.max_memory_bytes, options.threads);
  const std::int64_t least = std::min(options.max_memory_bytes, 2 * kMiB);
  const std::int64_t share = std::max(options.max_memory_bytes / std::max(options.threads, 1), least);
  return {share - staging - kTilePadding, options.max_memory_bytes - staging - kTilePadding, staging,
          std::max(options.threads, 1), options.line_tile_bytes};
}

Dims choose_tile(Arena& arena, const Unit& unit, std::span<const Piece> from, std::span<const Piece> to,
                 const TileLimits& limits) {
  const std::int64_t bytes = checked_numel(unit.shape) * element_bytes(unit.from);
  const std::int64_t usual_bytes = unit.is_line ? limits.line_bytes : kMiB;
  const std::int64_t share = std::max(limits.share_bytes, std::min(usual_bytes, limits.full_bytes));
  if (bytes <= std::min(usual_bytes, share)) return unit.shape;
  TileSearch search(unit, from, to, limits.staging_bytes);
  // Calls fall at most in proportion to the tile's size. Therefore doubling ends at less than twice the size that
  // suffices, after at most log2 of the memory in MiB steps.
  const std::int64_t first = std::min(std::max(usual_bytes, search.least_bytes()), share);
  const bool is_in_pieces = search.least_bytes() > 0 && search.least_bytes() <= share;
  // All workers take part in decoding, so the limit is each worker's share.
  const std::int64_t full_bytes = is_in_pieces ? share : limits.full_bytes;
  for (std::int64_t size = first;; size *= 2) {
    // Both limits are tried exactly, in addition to the powers of two near them.
    if (size / 2 < share && share < size) search.try_size(share, false);
    search.try_size(std::min(size, full_bytes), size > share);
    if (search.calls() <= kCallsPerByte * static_cast<double>(bytes)) break;
    if (size >= full_bytes || size / 2 >= bytes) break;
  }
  Numbers tile = search.best();
  const bool fits_all = checked_numel(std::span(tile).first(at(unit.shape.size()))) * element_bytes(unit.from) <= share;
  if (fits_all && !unit.is_stream) share_evenly(unit.shape, limits.workers, tile);
  return arena.dims(std::span(tile).first(at(unit.shape.size())));
}

double estimate_reads(std::span<const Piece> from, const Numbers& tile, std::int64_t element_bytes,
                      std::int64_t staging_bytes) {
  return calls_of(from, tile, {std::max<std::int64_t>(1, staging_bytes / element_bytes), element_bytes});
}

std::int64_t count_tiles(const Unit& unit) {
  std::int64_t count = 1;
  for (int d = 0; d < unit.shape.size(); ++d) {
    count = checked_mul(count, (unit.shape[d] + unit.tile[d] - 1) / unit.tile[d]);
  }
  return count;
}

}  // namespace shard
