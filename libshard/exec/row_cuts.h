/// \file
/// Where pieces of a tensor end side by side. Inside libshard/exec only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "libshard/plan/plan.h"

namespace shard {

/// Indices of the first dimension at which no piece is cut in two: of a grid of chunks its grid lines.
class RowCuts {
 public:
  RowCuts() = default;
  /// \pre pieces are sorted, and cover `rows` indices
  RowCuts(std::span<const Piece> pieces, std::int64_t rows);
  /// The most rows between two cuts.
  std::int64_t widest() const { return widest_; }
  /// The last cut behind `row` that is at most `most` rows away; the next one where that is farther.
  std::int64_t after(std::int64_t row, std::int64_t most) const;

 private:
  std::vector<std::int64_t> ends_;  ///< Ascending; the last is `rows`.
  std::int64_t widest_ = 0;
};

}  // namespace shard
