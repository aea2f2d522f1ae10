#include "libshard/exec/strided_copy.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "tests/exec/strided_cases.h"

namespace shard {
namespace {

using Numbers = testing::StridedNumbers;

std::string copied(const Numbers& sizes, std::string_view from, const Numbers& from_strides,
                   const Numbers& to_strides) {
  std::string to(from.size(), '.');
  strided_copy(sizes, reinterpret_cast<const std::byte*>(from.data()), from_strides,
               reinterpret_cast<std::byte*>(to.data()), to_strides, 1);
  return to;
}

TEST(StridedCopy, TransposesASmallMatrix) { EXPECT_EQ(copied({2, 3}, "abcdef", {3, 1}, {1, 2}), "adbecf"); }

TEST(StridedCopy, CopiesOneElementWithoutDimensions) { EXPECT_EQ(copied({}, "ab", {}, {}), "a."); }

TEST(StridedCopy, CopiesNothingWhereASizeIsZero) { EXPECT_EQ(copied({2, 0}, "abcd", {2, 1}, {2, 1}), "...."); }

TEST(StridedCopy, IgnoresStridesOfSizeOne) { EXPECT_EQ(copied({1, 3}, "abc", {77, 1}, {-9, 1}), "abc"); }

TEST(StridedCopy, CutsAColumnBox) { EXPECT_EQ(copied({2, 2}, "abcdefgh", {4, 1}, {2, 1}), "abef...."); }

TEST(StridedCopy, RepeatsASourceStrideOfZero) { EXPECT_EQ(copied({3, 2}, "ab....", {0, 1}, {2, 1}), "ababab"); }

TEST(StridedCopy, TakesEverySecondElement) { EXPECT_EQ(copied({3}, "abcdef", {2}, {1}), "ace..."); }

TEST(StridedCopy, TransposesWholeTilesAndEdgesOfEveryElementSize) { testing::expect_transposes(strided_copy); }

TEST(StridedCopy, EqualsCopyingElementByElement) { testing::expect_random_copies(strided_copy, 2000); }

}  // namespace
}  // namespace shard
