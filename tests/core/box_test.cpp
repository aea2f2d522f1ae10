#include "libshard/core/box.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace shard {
namespace {

using Numbers = std::vector<std::int64_t>;
using ::testing::ElementsAre;

Box box(const Numbers& offset, const Numbers& size) { return Box(offset, size); }

Numbers strides_of(const Numbers& sizes) {
  Numbers strides(sizes.size());
  row_major_strides(sizes, strides);
  return strides;
}

TEST(Box, WithoutDimensionsHoldsOneElement) {
  EXPECT_EQ(box({}, {}).numel(), 1);
  EXPECT_FALSE(box({}, {}).empty());
}

TEST(Box, CountsElements) { EXPECT_EQ(box({4, 0}, {3, 5}).numel(), 15); }

TEST(Box, IsEmptyWhereOneSizeIsZero) {
  const std::int64_t large = std::int64_t{1} << 40;
  EXPECT_TRUE(box({0, 0, 0}, {large, large, 0}).empty());
}

TEST(Box, PrintsHalfOpenRanges) {
  EXPECT_EQ(to_string(box({0, 8}, {4, 8})), "[0:4, 8:16]");
  EXPECT_EQ(to_string(box({}, {})), "[]");
}

TEST(Intersect, IsTheCommonPart) {
  EXPECT_EQ(to_string(intersect(box({0, 4}, {4, 8}), box({2, 0}, {4, 6}))), "[2:4, 4:6]");
}

TEST(Intersect, OfABoxInsideAnotherIsTheInnerOne) {
  EXPECT_EQ(to_string(intersect(box({0}, {10}), box({3}, {2}))), "[3:5]");
}

TEST(Intersect, OfNeighboursIsEmptyInEveryDimension) {
  const Box none = intersect(box({0, 0}, {4, 4}), box({4, 0}, {4, 4}));
  EXPECT_TRUE(none.empty());
  EXPECT_EQ(none.size[0], 0);
  EXPECT_EQ(none.size[1], 0);
}

TEST(Intersect, WithoutDimensionsIsTheOneElement) { EXPECT_EQ(intersect(box({}, {}), box({}, {})).numel(), 1); }

TEST(DimsText, PrintsAShape) {
  EXPECT_EQ(to_string(Numbers{4, 16}), "[4, 16]");
  EXPECT_EQ(to_string(Numbers{}), "[]");
}

TEST(RowMajorStrides, CountFromTheLastDimension) { EXPECT_THAT(strides_of({2, 3, 4}), ElementsAre(12, 4, 1)); }

TEST(RowMajorStrides, CountAnEmptyDimensionAsOneAsTorchDoes) {
  EXPECT_THAT(strides_of({2, 0, 4}), ElementsAre(4, 4, 1));
}

TEST(IsRowMajor, AcceptsAnyStrideOfASizeOfOne) {
  EXPECT_TRUE(is_row_major(Numbers{3, 1, 4}, Numbers{4, 99, 1}));
  EXPECT_TRUE(is_row_major(Numbers{1, 4}, Numbers{0, 1}));
}

TEST(IsRowMajor, RefusesGapsAndOtherOrders) {
  EXPECT_FALSE(is_row_major(Numbers{3, 4}, Numbers{5, 1}));
  EXPECT_FALSE(is_row_major(Numbers{3, 4}, Numbers{1, 3}));
  EXPECT_FALSE(is_row_major(Numbers{4}, Numbers{2}));
}

TEST(IsRowMajor, HoldsForEmptyShapesAndScalars) {
  EXPECT_TRUE(is_row_major(Numbers{3, 0}, Numbers{7, 7}));
  EXPECT_TRUE(is_row_major(Numbers{}, Numbers{}));
}

}  // namespace
}  // namespace shard
