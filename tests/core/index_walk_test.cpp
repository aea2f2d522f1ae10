#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "libshard/core/box.h"

namespace shard {
namespace {

using ::testing::ElementsAre;

TEST(NextIndex, WalksInRowMajorOrderAndEndsAtTheFirst) {
  const std::array<int, 3> sizes{2, 1, 2};
  std::array<int, 3> index{};
  std::vector<std::array<int, 3>> seen;
  std::vector<int> moved;
  do {
    seen.push_back(index);
    moved.push_back(next_index<int>(index, sizes));
  } while (moved.back() >= 0);
  EXPECT_THAT(seen, ElementsAre(std::array{0, 0, 0}, std::array{0, 0, 1}, std::array{1, 0, 0}, std::array{1, 0, 1}));
  EXPECT_THAT(moved, ElementsAre(2, 0, 2, -1));
  EXPECT_THAT(index, ElementsAre(0, 0, 0));
}

TEST(NextIndex, HasOneIndexWithoutDimensions) { EXPECT_EQ(next_index<int>({}, {}), -1); }

TEST(SetIndex, CountsInTheOrderOfTheWalk) {
  const std::array<int, 3> sizes{3, 1, 4};
  std::array<int, 3> walked{}, found{};
  for (int number = 0; number < 12; ++number) {
    set_index<int>(found, sizes, number);
    EXPECT_EQ(found, walked) << number;
    next_index<int>(walked, sizes);
  }
}

}  // namespace
}  // namespace shard
