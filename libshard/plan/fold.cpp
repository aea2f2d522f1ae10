#include "libshard/plan/fold.h"

#include <algorithm>
#include <optional>

#include "libshard/plan/order.h"

namespace shard {

namespace {

constexpr std::size_t kFewPieces = 4;  ///< Up to this many pieces are not worth folding.

/// A factorization of dimension `dim`, whose size is outer * inner * run, into three dimensions [outer, inner, run].
struct Factors {
  int dim;
  std::int64_t inner, run;

  std::int64_t block() const { return inner * run; }
};

/// Whether two pieces are equal except for their offset along `dim` and their position in the storage.
bool are_alike(const Piece& a, const Piece& b, int dim) {
  if (a.storage != b.storage || a.strides != b.strides || a.sizes != b.sizes) return false;
  for (int d = 0; d < a.offsets.size(); ++d) {
    if (d != dim && a.offsets[d] != b.offsets[d]) return false;
  }
  return true;
}

/// Finds the dimension along which the pieces follow one another, and the factors of their repetition: positions in the
/// storage advance by equal steps for `inner` pieces of `run` elements each, and then the pattern starts again.
std::optional<Factors> find_factors(Dims shape, std::span<const Piece> pieces) {
  if (pieces.size() <= kFewPieces) return std::nullopt;
  // Pieces are sorted, so the first dimension in which two neighbours differ is the one that is split.
  const Piece &first = pieces[0], &second = pieces[1];
  int dim = 0;
  while (dim < shape.size() && first.offsets[dim] == second.offsets[dim]) ++dim;
  if (dim == shape.size() || first.offsets[dim] != 0) return std::nullopt;
  const std::int64_t run = first.sizes[dim], step = second.first - first.first;
  if (run == 0 || shape[dim] != run * std::ssize(pieces)) return std::nullopt;
  // The pieces must cover the whole dimension, one after another, in runs of equal length.
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const bool follows = pieces[i].offsets[dim] == run * static_cast<std::int64_t>(i) && pieces[i].sizes[dim] == run;
    if (!follows) return std::nullopt;
  }
  // Each equal step in the storage extends the pattern. A different step ends it.
  std::int64_t inner = 1;
  for (std::size_t i = 1;
       i < pieces.size() && are_alike(first, pieces[i], dim) && pieces[i].first - pieces[i - 1].first == step; ++i) {
    ++inner;
  }
  const bool repeats = inner > 1 && step > 0 && std::ssize(pieces) % inner == 0 && std::ssize(pieces) > inner;
  return repeats ? std::optional(Factors{dim, inner, run}) : std::nullopt;
}

/// `numbers` with the three factors in place of number `dim`.
Dims replaced(Arena& arena, Dims numbers, int dim, std::int64_t outer, std::int64_t inner, std::int64_t run) {
  Numbers all;
  std::size_t count = 0;
  for (int d = 0; d < numbers.size(); ++d) {
    if (d != dim) {
      all[count++] = numbers[d];
    } else {
      all[count++] = outer, all[count++] = inner, all[count++] = run;
    }
  }
  return arena.dims(std::span(all).first(count));
}

/// The piece as a box in the factored dimensions, or nothing if it is not such a box.
std::optional<Piece> factored(Arena& arena, const Piece& piece, const Factors& by) {
  const std::int64_t begin = piece.offsets[by.dim], size = piece.sizes[by.dim], stride = piece.strides[by.dim];
  std::int64_t outer = 1, inner = 1, run = size;
  // A range is a box in three cases: it consists of whole blocks, of whole runs in one block, or of a part of one run.
  if (begin % by.block() == 0 && size % by.block() == 0) {
    outer = size / by.block(), inner = by.inner, run = by.run;
  } else if (begin % by.run == 0 && size % by.run == 0 && begin % by.block() + size <= by.block()) {
    inner = size / by.run, run = by.run;
  } else if (begin % by.run + size > by.run) {
    return std::nullopt;
  }
  Piece box = piece;
  box.offsets = replaced(arena, piece.offsets, by.dim, begin / by.block(), begin % by.block() / by.run, begin % by.run);
  box.sizes = replaced(arena, piece.sizes, by.dim, outer, inner, run);
  box.strides = replaced(arena, piece.strides, by.dim, by.block() * stride, by.run * stride, stride);
  return box;
}

/// All pieces of a side as boxes in the factored dimensions, or nothing if one of them is not such a box.
std::optional<std::vector<Piece>> all_factored(Arena& arena, std::span<const Piece> pieces, const Factors& by) {
  std::vector<Piece> boxes;
  boxes.reserve(pieces.size());
  for (const Piece& piece : pieces) {
    const std::optional<Piece> box = factored(arena, piece, by);
    if (!box) return std::nullopt;
    boxes.push_back(*box);
  }
  return boxes;
}

/// Whether `next` continues where `piece` ends along dimension `dim`, with `stride` between positions.
bool goes_on(const Piece& piece, const Piece& next, int dim, std::int64_t stride) {
  if (piece.storage != next.storage) return false;
  for (int d = 0; d < piece.offsets.size(); ++d) {
    if (piece.strides[d] != next.strides[d] && d != dim && piece.sizes[d] > 1) return false;
    if (d != dim && (piece.sizes[d] != next.sizes[d] || piece.offsets[d] != next.offsets[d])) return false;
  }
  return next.offsets[dim] == piece.offsets[dim] + piece.sizes[dim] &&
         next.first == piece.first + piece.sizes[dim] * stride;
}

/// Joins consecutive boxes along `dim` if their positions in the storage have equal steps. A box of size 1 along `dim`
/// fits any stride.
void join_along(Arena& arena, std::vector<Piece>& pieces, int dim) {
  std::vector<Piece> joined;
  for (const Piece& piece : pieces) {
    if (!joined.empty()) {
      Piece& last = joined.back();
      const bool is_single = last.sizes[dim] == 1;
      const std::int64_t stride = is_single ? piece.first - last.first : last.strides[dim];
      const bool fits = stride > 0 && (piece.sizes[dim] == 1 || piece.strides[dim] == stride);
      if (fits && goes_on(last, piece, dim, stride)) {
        Numbers sizes, strides;
        std::ranges::copy(last.sizes, sizes.begin());
        std::ranges::copy(last.strides, strides.begin());
        const auto d = static_cast<std::size_t>(dim), count = static_cast<std::size_t>(last.sizes.size());
        sizes[d] += piece.sizes[dim];
        strides[d] = stride;
        last.sizes = arena.dims(std::span(sizes).first(count));
        last.strides = arena.dims(std::span(strides).first(count));
        continue;
      }
    }
    joined.push_back(piece);
  }
  pieces = std::move(joined);
}

void replace(std::vector<Piece>& all, std::size_t begin, const std::vector<Piece>& pieces) {
  all.resize(begin);
  all.insert(all.end(), pieces.begin(), pieces.end());
}

}  // namespace

void fold(Arena& arena, Dims& shape, std::vector<Piece>& from, std::size_t from_begin, std::vector<Piece>& to,
          std::size_t to_begin) {
  const std::span<const Piece> sources = std::span(from).subspan(from_begin), targets = std::span(to).subspan(to_begin);
  if (shape.size() + 2 > kMaxDims) return;
  std::optional<Factors> by = find_factors(shape, sources);
  if (!by) by = find_factors(shape, targets);
  if (!by || shape[by->dim] % by->block() != 0) return;
  // Both sides need boxes in the same factors, because they share the unit's shape.
  std::optional<std::vector<Piece>> in_from = all_factored(arena, sources, *by),
                                    in_to = all_factored(arena, targets, *by);
  if (!in_from || !in_to) return;
  // Joins the inner factor first. Only then are the boxes whole along it, so that the outer factor can be joined.
  for (std::vector<Piece>* pieces : {&*in_from, &*in_to}) {
    join_along(arena, *pieces, by->dim + 1);
    join_along(arena, *pieces, by->dim);
  }
  if (in_from->size() + in_to->size() >= sources.size() + targets.size()) return;
  shape = replaced(arena, shape, by->dim, shape[by->dim] / by->block(), by->inner, by->run);
  replace(from, from_begin, *in_from);
  replace(to, to_begin, *in_to);
}

}  // namespace shard
