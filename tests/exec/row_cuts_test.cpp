#include "libshard/exec/row_cuts.h"

#include <gtest/gtest.h>

#include <array>

#include "libshard/core/arena.h"

namespace shard {
namespace {

RowCuts cuts_of(std::initializer_list<std::array<std::int64_t, 2>> rows, std::int64_t end) {
  Arena arena;
  std::vector<Piece> pieces;
  for (const auto& [begin, size] : rows) {
    Piece piece;
    piece.offsets = arena.dims(std::array{begin});
    piece.sizes = arena.dims(std::array{size});
    pieces.push_back(piece);
  }
  return RowCuts(pieces, end);
}

TEST(RowCuts, LieWhereNoPieceIsCutInTwo) {
  const RowCuts cuts = cuts_of({{0, 3}, {0, 3}, {3, 2}, {4, 4}, {8, 2}, {10, 1}}, 11);
  EXPECT_EQ(cuts.widest(), 5) << "3 to 8";
  EXPECT_EQ(cuts.after(0, 1), 3) << "the next one where that is too far";
  EXPECT_EQ(cuts.after(0, 7), 3);
  EXPECT_EQ(cuts.after(0, 8), 8);
  EXPECT_EQ(cuts.after(0, 9), 8);
  EXPECT_EQ(cuts.after(0, 100), 11);
  EXPECT_EQ(cuts.after(4, 1), 8) << "from between two";
  EXPECT_EQ(cuts.after(10, 1), 11);
}

TEST(RowCuts, OfOnePieceAreItsEnd) {
  const RowCuts cuts = cuts_of({{0, 7}}, 7);
  EXPECT_EQ(cuts.widest(), 7);
  EXPECT_EQ(cuts.after(3, 1), 7);
}

}  // namespace
}  // namespace shard
