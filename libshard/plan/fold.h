/// \file Folding: replaces many pieces that repeat along a dimension by one strided piece. Inside libshard/plan only.
///
/// A permutation of rows, as in rotary embeddings, has a piece for each half of each head. If the dimension is factored
/// into [heads, 2, rows], all these pieces are one strided piece, and a tile of whole heads is one run on both sides.
#pragma once

#include <vector>

#include "libshard/plan/plan.h"

namespace shard {

/// Splits one dimension of a unit of `shape` into factors, if this joins pieces of one side and the pieces of the other
/// side are boxes in these factors too. Otherwise it changes nothing. \pre pieces are sorted, and replicas of the
/// source were chosen. Cost: linear in pieces and dimensions.
void fold(Arena& arena, Dims& shape, std::vector<Piece>& from, std::size_t from_begin, std::vector<Piece>& to,
          std::size_t to_begin);

}  // namespace shard
