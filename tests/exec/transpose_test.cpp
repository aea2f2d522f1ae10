#include "libshard/exec/transpose.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

namespace shard {
namespace {

std::vector<std::byte> noise(std::int64_t bytes, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> made(static_cast<std::size_t>(bytes));
  for (std::byte& byte : made) byte = static_cast<std::byte>(random());
  return made;
}

/// Compares whole buffers with the plain loop, so that a byte written outside the matrix is detected.
void expect_like_the_plain_loop(std::int64_t unit, std::int64_t rows, std::int64_t columns, std::int64_t from_gap,
                                std::int64_t to_gap) {
  const std::int64_t from_stride = columns * unit + from_gap, to_stride = rows * unit + to_gap;
  const std::vector<std::byte> from = noise(rows * from_stride, 1);
  std::vector<std::byte> expected = noise(columns * to_stride, 2), found = expected;
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j) {
      std::memcpy(expected.data() + j * to_stride + i * unit, from.data() + i * from_stride + j * unit,
                  static_cast<std::size_t>(unit));
    }
  }
  EXPECT_TRUE(
      transpose(rows, columns, from.data(), from_stride, found.data(), to_stride, static_cast<std::size_t>(unit)));
  EXPECT_TRUE(found == expected) << fmt::format("{} x {} of {} bytes, gaps {} and {}", rows, columns, unit, from_gap,
                                                to_gap);
}

TEST(Transpose, EqualsThePlainLoopForEveryElementSizeAndShape) {
  for (const std::int64_t unit : {1, 2, 4, 8, 16}) {
    for (const std::int64_t rows : {0, 1, 3, 4, 15, 16, 17, 63, 64, 65, 130, 600}) {
      for (const std::int64_t columns : {0, 1, 2, 8, 31, 32, 33, 64, 127}) {
        expect_like_the_plain_loop(unit, rows, columns, 0, 0);
        expect_like_the_plain_loop(unit, rows, columns, 3, 5);
      }
    }
  }
}

TEST(Transpose, LeavesElementsOfOtherSizesAlone) {
  const std::vector<std::byte> from(36, std::byte{1});
  std::vector<std::byte> to(36);
  for (const std::size_t unit : {3U, 6U, 12U, 32U}) EXPECT_FALSE(transpose(1, 1, from.data(), 36, to.data(), 36, unit));
  EXPECT_EQ(to, std::vector<std::byte>(36));
}

}  // namespace
}  // namespace shard
