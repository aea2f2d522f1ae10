#include "libshard/plan/order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace shard {
namespace {

using ::testing::ElementsAre;
using Sizes = std::vector<std::int64_t>;

std::vector<int> order_of_strides(const Sizes& strides) {
  const Order order = order_of(strides);
  return {order.begin(), order.begin() + static_cast<std::ptrdiff_t>(strides.size())};
}

Sizes slab(const Sizes& shape, const Sizes& strides, std::int64_t elements) {
  Numbers sides;
  fill_slab(shape, order_of(strides), elements, sides);
  return {sides.begin(), sides.begin() + static_cast<std::ptrdiff_t>(shape.size())};
}

TEST(OrderOf, IsFromTheLargestStrideToTheSmallestAndKeepsEqualOnesInOrder) {
  EXPECT_THAT(order_of_strides({12, 4, 1}), ElementsAre(0, 1, 2));
  EXPECT_THAT(order_of_strides({1, 4, 12}), ElementsAre(2, 1, 0));
  EXPECT_THAT(order_of_strides({4, 12, 4, 1, 12}), ElementsAre(1, 4, 0, 2, 3));
  EXPECT_THAT(order_of_strides({}), ElementsAre());
}

TEST(FillSlab, TakesWholeInnerDimensionsAndABalancedPartOfTheNext) {
  EXPECT_THAT(slab({10, 4, 5}, {20, 5, 1}, 1000), ElementsAre(10, 4, 5));
  EXPECT_THAT(slab({10, 4, 5}, {20, 5, 1}, 200), ElementsAre(10, 4, 5));
  EXPECT_THAT(slab({10, 4, 5}, {20, 5, 1}, 199), ElementsAre(5, 4, 5));  // Two equal parts, not 9 and 1.
  EXPECT_THAT(slab({10, 4, 5}, {20, 5, 1}, 100), ElementsAre(5, 4, 5));
  EXPECT_THAT(slab({10, 4, 5}, {20, 5, 1}, 99), ElementsAre(4, 4, 5));
  EXPECT_THAT(slab({10, 4, 5}, {20, 5, 1}, 20), ElementsAre(1, 4, 5));
  EXPECT_THAT(slab({10, 4, 5}, {20, 5, 1}, 19), ElementsAre(1, 2, 5));
  EXPECT_THAT(slab({10, 4, 5}, {20, 5, 1}, 3), ElementsAre(1, 1, 3));
  EXPECT_THAT(slab({10, 4, 5}, {20, 5, 1}, 0), ElementsAre(1, 1, 1));
  EXPECT_THAT(slab({10, 4, 5}, {1, 10, 40}, 45), ElementsAre(10, 4, 1));  // Along the strides, not the dimensions.
}

TEST(FillSlab, NeverTakesMoreThanItMayAndCouldNotTakeTwiceAsMuch) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 2000; ++round) {
    Sizes shape(1 + random() % 4), strides(shape.size());
    std::int64_t all = 1, step = 1;
    for (std::size_t d = shape.size(); d-- > 0;) {
      shape[d] = 1 + static_cast<std::int64_t>(random() % 9);
      strides[d] = step;
      step *= shape[d];
      all *= shape[d];
    }
    const std::int64_t elements = 1 + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(2 * all));
    const Sizes sides = slab(shape, strides, elements);
    std::int64_t taken = 1;
    for (std::size_t d = 0; d < shape.size(); ++d) {
      ASSERT_GE(sides[d], 1);
      ASSERT_LE(sides[d], shape[d]);
      taken *= sides[d];
    }
    ASSERT_LE(taken, elements);
    ASSERT_GT(2 * taken, std::min(elements, all)) << "a part is at least half of what would fit";
  }
}

}  // namespace
}  // namespace shard
