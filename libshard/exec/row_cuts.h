/// \file RowCuts: the rows at which no piece of a tensor is split. Inside libshard/exec only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "libshard/plan/plan.h"

namespace shard {

/// Indices of the first dimension that split no piece. In a grid of chunks, these are the grid lines.
class RowCuts {
 public:
  RowCuts() = default;
  /// \pre pieces are sorted, and cover `rows` indices
  RowCuts(std::span<const Piece> pieces, std::int64_t rows);
  /// The largest number of rows between two cuts.
  std::int64_t widest() const { return widest_; }
  /// The last cut after `row` that is at most `most` rows away, or the next cut if it is farther away.
  std::int64_t after(std::int64_t row, std::int64_t most) const;

 private:
  std::vector<std::int64_t> ends_;  ///< In ascending order. The last one is `rows`.
  std::int64_t widest_ = 0;
};

}  // namespace shard
