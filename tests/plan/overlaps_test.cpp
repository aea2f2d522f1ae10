#include "libshard/plan/overlaps.h"

#include <gtest/gtest.h>

#include "tests/plan/pieces.h"

namespace shard {
namespace {

using testing::below;
using testing::box_of;
using testing::Random;
using testing::random_pieces;
using testing::Sizes;

bool overlap(const Box& a, const Box& b) { return !intersect(a, b).empty(); }

Sizes random_shape(Random& random) {
  Sizes shape(1 + random() % 3);
  for (std::int64_t& n : shape) n = 1 + below(random, 12);
  return shape;
}

std::vector<std::size_t> in_order(const Sizes& shape) {
  std::vector<std::size_t> order;
  for (std::size_t d = 0; d < shape.size(); ++d) order.push_back(d);
  return order;
}

TEST(Candidates, HoldEveryPieceThatOverlapsAndAreAllOfThemOnALine) {
  Random random(5);
  for (int round = 0; round < 3000; ++round) {
    Arena arena;
    const Sizes shape = random_shape(random);
    const std::vector<Piece> pieces = random_pieces(random, arena, shape, in_order(shape), round % 2 == 0);
    Box box(Sizes(shape.size()), shape);
    for (std::size_t d = 0; d < shape.size(); ++d) {
      box.offset[d] = below(random, shape[d]);
      box.size[d] = 1 + below(random, shape[d] - box.offset[d]);
    }
    const auto [first, last] = candidates(pieces, box);
    ASSERT_LE(first, last);
    ASSERT_LE(last, pieces.size());
    for (std::uint32_t i = 0; i < pieces.size(); ++i) {
      const bool is_candidate = first <= i && i < last;
      if (overlap(box_of(pieces[i]), box)) {
        ASSERT_TRUE(is_candidate) << "round " << round;
      } else if (shape.size() == 1) {
        ASSERT_FALSE(is_candidate) << "round " << round;
      }
    }
  }
}

TEST(Candidates, OfALongListAreFew) {
  Arena arena;
  std::vector<Piece> pieces;
  for (std::int64_t i = 0; i < 1000; ++i) pieces.push_back(testing::make_piece(arena, {i * 3}, {3}, {1}));
  set_running_ends(pieces);
  const Sizes offsets = {299}, sizes = {5};
  const auto [first, last] = candidates(pieces, Box(offsets, sizes));
  EXPECT_EQ(first, 99);  // [297, 300)
  EXPECT_EQ(last, 102);  // [303, 306)
}

TEST(CountOverlaps, IsTheNumberOfPairsThatTheObviousLoopsFind) {
  Random random(6);
  for (int round = 0; round < 3000; ++round) {
    Arena arena;
    const Sizes shape = random_shape(random);
    const std::vector<Piece> from = random_pieces(random, arena, shape, in_order(shape));
    const std::vector<Piece> to = random_pieces(random, arena, shape, in_order(shape), round % 2 == 0);
    std::int64_t pairs = 0;
    for (const Piece& a : from) {
      for (const Piece& b : to) pairs += overlap(box_of(a), box_of(b)) ? 1 : 0;
    }
    ASSERT_EQ(count_overlaps(from, to), pairs) << "round " << round;
  }
}

}  // namespace
}  // namespace shard
