#include "libshard/exec/row_cuts.h"

#include <algorithm>

namespace shard {

RowCuts::RowCuts(std::span<const Piece> pieces, std::int64_t rows) {
  std::int64_t begin = 0, end = 0;  // The range of the pieces since the last cut.
  const auto cut = [&](std::int64_t at) {
    ends_.push_back(at);
    widest_ = std::max(widest_, at - begin);
    begin = at;
  };
  // Pieces are sorted by their begin. A piece that begins at or after the end of all earlier ones starts after a cut.
  for (const Piece& piece : pieces) {
    if (piece.offsets[0] >= end && piece.offsets[0] > begin) cut(piece.offsets[0]);
    end = std::max(end, piece.offsets[0] + piece.sizes[0]);
  }
  cut(rows);
}

std::int64_t RowCuts::after(std::int64_t row, std::int64_t most) const {
  const auto next = std::ranges::upper_bound(ends_, row);
  const auto too_far = std::ranges::upper_bound(next, ends_.end(), row + most);
  return too_far == next ? *next : *std::prev(too_far);
}

}  // namespace shard
