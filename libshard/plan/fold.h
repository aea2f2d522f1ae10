/// \file
/// Folding: one piece in place of many that repeat along a dimension. Inside libshard/plan only.
///
/// A permutation of rows, as rotary embeddings have it, is a piece for each half of each head. With the dimension cut
/// in factors [heads, 2, rows] all of them are one strided piece, and a tile of whole heads is one run on both sides.
#pragma once

#include <span>
#include <vector>

#include "libshard/plan/plan.h"

namespace shard {

/// Cuts one dimension of a unit of `shape` into factors, where that joins pieces of one side and the pieces of the
/// other side are boxes of the factors too. Changes nothing where it does not. \pre pieces are sorted, replicas of the
/// source were chosen. Cost: linear in pieces and dimensions.
void fold(Arena& arena, Dims& shape, std::vector<Piece>& from, std::size_t from_begin, std::vector<Piece>& to,
          std::size_t to_begin);

}  // namespace shard
