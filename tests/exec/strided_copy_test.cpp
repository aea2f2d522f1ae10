#include "libshard/exec/strided_copy.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

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

/// Lines of such a target bypass the cache if they are aligned, and no byte between its rows is touched.
TEST(StridedCopy, TransposesIntoMoreThanTheCacheHolds) {
  constexpr std::int64_t kRows = 100, kTargetRow = 128, kTargetBytes = 5 << 20;
  struct alignas(64) Line {
    std::array<std::byte, 64> bytes{};
  };
  for (const std::int64_t unit : {1, 2, 4, 8, 16}) {
    const std::int64_t columns = kTargetBytes / (kTargetRow * unit) + 7;
    for (const std::int64_t skipped : {0, 1}) {  // The second target is not aligned.
      const std::vector<std::byte> from = testing::noise(static_cast<std::size_t>(kRows * columns * unit), 1);
      std::vector<Line> to(static_cast<std::size_t>(columns * kTargetRow * unit / 64 + 1));
      std::byte* const begin = to[0].bytes.data() + skipped * unit;
      strided_copy(Numbers{columns, kRows}, from.data(), Numbers{1, columns}, begin, Numbers{kTargetRow, 1},
                   static_cast<std::size_t>(unit));
      std::vector<Line> wanted(to.size());
      for (std::int64_t i = 0; i < columns * kRows; ++i) {
        const std::int64_t row = i / columns, column = i % columns;
        std::memcpy(wanted[0].bytes.data() + (skipped + column * kTargetRow + row) * unit, from.data() + i * unit,
                    static_cast<std::size_t>(unit));
      }
      EXPECT_EQ(std::memcmp(to.data(), wanted.data(), to.size() * sizeof(Line)), 0) << unit << " " << skipped;
    }
  }
}

TEST(StridedCopy, EqualsCopyingElementByElement) { testing::expect_random_copies(strided_copy, 2000); }

}  // namespace
}  // namespace shard
