#include "libshard/catalog/layouts/overlap.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "libshard/catalog/layouts/placement.h"
#include "libshard/catalog/layouts/split.h"
#include "libshard/core/box.h"

namespace shard {
namespace {

struct OwnedBox {
  std::vector<std::int64_t> offsets, sizes;
};

std::vector<BoxView> views(const std::vector<OwnedBox>& boxes) {
  std::vector<BoxView> all;
  for (const OwnedBox& box : boxes) all.push_back({box.offsets, box.sizes});
  return all;
}

bool share_an_element(const OwnedBox& a, const OwnedBox& b) {
  return !intersect(Box(a.offsets, a.sizes), Box(b.offsets, b.sizes)).empty();
}

TEST(FindOverlap, IsThatOfAllPairs) {
  std::mt19937 random(3);
  const auto below = [&](int end) { return std::uniform_int_distribution<std::int64_t>(0, end - 1)(random); };
  int overlaps = 0;
  for (int round = 0; round < 3000; ++round) {
    const auto dims = static_cast<std::size_t>(below(4));
    std::vector<OwnedBox> boxes(static_cast<std::size_t>(below(7)));
    for (OwnedBox& box : boxes) {
      for (std::size_t d = 0; d < dims; ++d) box.offsets.push_back(below(8)), box.sizes.push_back(below(4));
    }
    bool expected = false;
    for (std::size_t i = 0; i < boxes.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) expected = expected || share_an_element(boxes[i], boxes[j]);
    }
    const auto found = find_overlap(views(boxes));
    ASSERT_EQ(found.has_value(), expected) << round;
    overlaps += found.has_value() ? 1 : 0;
    if (!found) continue;
    EXPECT_LT(found->first, found->second);
    EXPECT_TRUE(share_an_element(boxes[found->first], boxes[found->second])) << round;
  }
  EXPECT_GT(overlaps, 300);
  EXPECT_LT(overlaps, 2700);
}

TEST(FindOverlap, AnEndPast63BitsIsInfinite) {
  EXPECT_TRUE(find_overlap(views({{{INT64_MAX - 1}, {INT64_MAX}}, {{0}, {INT64_MAX}}})).has_value());
  EXPECT_FALSE(find_overlap({}).has_value());
}

TEST(PieceOf, IsEmptyPastTheEnd) {
  const auto expect_piece = [](std::int64_t size, std::int64_t index, std::int64_t begin, std::int64_t length) {
    const DimRange piece = piece_of(10, size, index);
    EXPECT_EQ(piece.begin, begin) << size << ' ' << index;
    EXPECT_EQ(piece.size, length) << size << ' ' << index;
  };
  expect_piece(4, 0, 0, 4);
  expect_piece(4, 2, 8, 2);
  expect_piece(4, 3, 10, 0);
  expect_piece(5, 2, 10, 0);
  expect_piece(0, 0, 10, 0);
  expect_piece(4, INT64_MAX, 10, 0);
}

TEST(RankOfPlacement, IsANumberAfterRank) {
  EXPECT_EQ(rank_of_placement("rank:1/cuda:0"), 1);
  EXPECT_EQ(rank_of_placement("rank:12"), 12);
  EXPECT_EQ(rank_of_placement("rank:1x/cpu"), std::nullopt);
  EXPECT_EQ(rank_of_placement("rank:-1/cpu"), std::nullopt);
  EXPECT_EQ(rank_of_placement("worker1/cpu"), std::nullopt);
  EXPECT_EQ(rank_of_placement("cuda:0"), std::nullopt);
}

}  // namespace
}  // namespace shard
