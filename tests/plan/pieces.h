/// \file
/// Pieces of units by hand or at random, for tests of libshard/plan and libshard/exec.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "libshard/core/box.h"
#include "libshard/plan/overlaps.h"
#include "libshard/plan/plan.h"

namespace shard::testing {

using Sizes = std::vector<std::int64_t>;
using Random = std::mt19937_64;

inline std::int64_t below(Random& random, std::int64_t n) {
  return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
}

/// Strides of a box that is packed with its dimensions in `order` (the slowest first), times `gap`.
inline Sizes strides_in(const Sizes& sizes, const std::vector<std::size_t>& order, std::int64_t gap = 1) {
  Sizes strides(sizes.size());
  for (std::size_t i = order.size(); i-- > 0;) {
    strides[order[i]] = gap;
    gap *= sizes[order[i]];
  }
  return strides;
}

inline Piece make_piece(Arena& arena, const Sizes& offsets, const Sizes& sizes, const Sizes& strides) {
  return {.offsets = arena.dims(offsets), .sizes = arena.dims(sizes), .strides = arena.dims(strides)};
}

/// Cuts a box into two, again and again: boxes that mostly form no grid.
inline void cut(Random& random, const Box& box, int depth, std::vector<Box>& out) {
  const auto d = static_cast<std::size_t>(below(random, box.dims));
  if (depth == 0 || box.size[d] < 2) return out.push_back(box);
  Box low = box, high = box;
  low.size[d] = 1 + below(random, box.size[d] - 1);
  high.offset[d] += low.size[d];
  high.size[d] -= low.size[d];
  cut(random, low, depth - 1, out);
  cut(random, high, depth - 1, out);
}

/// Sorted pieces that cover `shape` once, all packed in `order`; with `replicas` some of them up to three times.
inline std::vector<Piece> random_pieces(Random& random, Arena& arena, const Sizes& shape,
                                        const std::vector<std::size_t>& order, bool replicas = false) {
  std::vector<Box> boxes;
  cut(random, Box(Sizes(shape.size()), shape), static_cast<int>(random() % 5), boxes);
  std::vector<Piece> pieces;
  for (const Box& box : boxes) {
    const Sizes offsets(box.offset.begin(), box.offset.begin() + box.dims);
    const Sizes sizes(box.size.begin(), box.size.begin() + box.dims);
    const std::int64_t copies = replicas ? 1 + below(random, 3) : 1;
    for (std::int64_t i = 0; i < copies; ++i) {
      pieces.push_back(make_piece(arena, offsets, sizes, strides_in(sizes, order)));
    }
  }
  std::ranges::stable_sort(
      pieces, [](Dims a, Dims b) { return std::ranges::lexicographical_compare(a, b); }, &Piece::offsets);
  set_running_ends(pieces);
  return pieces;
}

inline Box box_of(const Piece& piece) { return Box(piece.offsets, piece.sizes); }

}  // namespace shard::testing
