#include "libshard/plan/fold.h"

#include <gtest/gtest.h>

#include <map>
#include <utility>
#include <vector>

#include "libshard/core/box.h"

namespace shard {
namespace {

using Sizes = std::vector<std::int64_t>;

class Folded {
 public:
  explicit Folded(Sizes shape) : shape_(arena_.dims(shape)) {}

  Piece piece(Sizes offsets, Sizes sizes, Sizes strides, std::int64_t first, std::uint32_t storage = 0) {
    return {.offsets = arena_.dims(offsets),
            .sizes = arena_.dims(sizes),
            .strides = arena_.dims(strides),
            .first = first,
            .storage = storage};
  }
  /// Rows of heads of 2 * half rows that are stored as pairs, from row `begin` of the storage on; a piece for each
  /// half.
  void add_pairs(std::vector<Piece>& pieces, std::int64_t heads, std::int64_t half, std::int64_t width,
                 std::uint32_t storage = 0) {
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t j = 0; j < 2; ++j) {
        const std::int64_t row = (2 * h + j) * half + rows_before_;
        pieces.push_back(piece({row, 0}, {half, width}, {2 * width, 1}, (2 * half * h + j) * width, storage));
      }
    }
    rows_before_ += 2 * heads * half;
  }
  void fold() { shard::fold(arena_, shape_, from, 0, to, 0); }

  /// The storage and number of each element of the unit, in row-major order.
  std::vector<std::pair<std::uint32_t, std::int64_t>> places(const std::vector<Piece>& pieces) const {
    std::map<Sizes, std::pair<std::uint32_t, std::int64_t>> at;
    for (const Piece& each : pieces) {
      Sizes index(static_cast<std::size_t>(each.sizes.size())), sizes(each.sizes.begin(), each.sizes.end());
      do {
        Sizes place;
        std::int64_t number = each.first;
        for (int d = 0; d < each.sizes.size(); ++d) {
          const std::int64_t i = index[static_cast<std::size_t>(d)];
          place.push_back(each.offsets[d] + i);
          number += i * each.strides[d];
        }
        at[place] = {each.storage, number};
      } while (next_index<std::int64_t>(index, sizes) >= 0);
    }
    std::vector<std::pair<std::uint32_t, std::int64_t>> all;
    for (const auto& [place, number] : at) all.push_back(number);
    return all;
  }
  Sizes shape() const { return {shape_.begin(), shape_.end()}; }

  std::vector<Piece> from, to;

 private:
  Arena arena_;
  Dims shape_;
  std::int64_t rows_before_ = 0;
};

TEST(Fold, MakesOnePieceOfPermutedRows) {
  Folded unit({24, 5});
  unit.add_pairs(unit.from, 4, 3, 5);
  unit.to.push_back(unit.piece({0, 0}, {24, 5}, {5, 1}, 7));
  const auto from = unit.places(unit.from), to = unit.places(unit.to);
  unit.fold();
  EXPECT_EQ(unit.shape(), (Sizes{4, 2, 3, 5}));
  ASSERT_EQ(unit.from.size(), 1u);
  ASSERT_EQ(unit.to.size(), 1u);
  EXPECT_EQ(Sizes(unit.from[0].strides.begin(), unit.from[0].strides.end()), (Sizes{30, 5, 10, 1}));
  EXPECT_EQ(unit.places(unit.from), from);
  EXPECT_EQ(unit.places(unit.to), to);
}

TEST(Fold, FoldsATargetToo) {
  Folded unit({24, 5});
  unit.from.push_back(unit.piece({0, 0}, {24, 5}, {5, 1}, 0));
  unit.add_pairs(unit.to, 4, 3, 5);
  const auto to = unit.places(unit.to);
  unit.fold();
  EXPECT_EQ(unit.shape(), (Sizes{4, 2, 3, 5}));
  EXPECT_EQ(unit.to.size(), 1u);
  EXPECT_EQ(unit.places(unit.to), to);
}

TEST(Fold, KeepsWhatSeveralStoragesHoldApart) {
  Folded unit({24, 5});
  unit.add_pairs(unit.from, 2, 3, 5, 0);
  unit.add_pairs(unit.from, 2, 3, 5, 1);
  unit.to.push_back(unit.piece({0, 0}, {12, 5}, {5, 1}, 0));
  unit.to.push_back(unit.piece({12, 0}, {12, 5}, {5, 1}, 0, 1));
  const auto from = unit.places(unit.from), to = unit.places(unit.to);
  unit.fold();
  EXPECT_EQ(unit.from.size(), 2u);
  EXPECT_EQ(unit.to.size(), 2u);
  EXPECT_EQ(unit.places(unit.from), from);
  EXPECT_EQ(unit.places(unit.to), to);
}

TEST(Fold, LeavesPiecesThatCutFactors) {
  Folded unit({24, 5});
  unit.add_pairs(unit.from, 4, 3, 5);
  unit.to.push_back(unit.piece({0, 0}, {10, 5}, {5, 1}, 0));
  unit.to.push_back(unit.piece({10, 0}, {14, 5}, {5, 1}, 0, 1));
  unit.fold();
  EXPECT_EQ(unit.shape(), (Sizes{24, 5}));
  EXPECT_EQ(unit.from.size(), 8u);
}

TEST(Fold, LeavesPiecesOfSeveralFiles) {
  Folded unit({24, 5});
  for (std::uint32_t i = 0; i < 8; ++i) unit.from.push_back(unit.piece({3 * i, 0}, {3, 5}, {5, 1}, 0, i));
  unit.to.push_back(unit.piece({0, 0}, {24, 5}, {5, 1}, 0));
  unit.fold();
  EXPECT_EQ(unit.from.size(), 8u);
}

}  // namespace
}  // namespace shard
