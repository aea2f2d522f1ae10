#include "libshard/core/budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "libshard/core/arena.h"
#include "tests/support/expect_error.h"

namespace shard {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

TEST(Budget, AllowsTheFloorWithoutAnythingRead) {
  Budget budget;
  budget.charge(Charge::kBytes, kBudgetFloor);
  test::expect_error(ErrorCode::kCorruption, "are far too many for", [&] { budget.charge(Charge::kBytes); });
}

TEST(Budget, GrowsWithWhatWasReadAndWithWhatFilesHold) {
  Budget budget;
  budget.earn(1000, 100);
  budget.charge(Charge::kBytes, kBudgetFloor + 1000 * kBudgetPerByte + 100 * kBudgetPerDataByte);
  test::expect_error(ErrorCode::kCorruption, "the 1000 bytes that describe it", [&] { budget.charge(Charge::kBytes); });
}

TEST(Budget, GrowsLessBeyondTheSizeOfSmallMetadata) {
  Budget budget;
  budget.earn(kSmallBytes + 1000);
  EXPECT_EQ(budget.limit(), kBudgetFloor + kSmallBytes * kBudgetPerByte + 1000 * kBudgetPerFurtherByte);
}

TEST(Budget, AddsUpChargesOfAllKinds) {
  Budget budget;
  budget.charge(Charge::kChunks, kBudgetFloor / 192 / 2);
  budget.charge(Charge::kDecoded, kBudgetFloor * 64 / 2 - 64 * 1000);
  EXPECT_GT(budget.spent(), kBudgetFloor - 2000);
  test::expect_error(ErrorCode::kCorruption, "8193 steps over values are far too many", [&] {
    budget.charge(Charge::kVisits);
    budget.charge(Charge::kVisits, 8192);
  });
}

TEST(Budget, NamesTheLimitAndWhatWasSpent) {
  Budget budget;
  const Error error = test::error_of([&] { budget.charge(Charge::kRanks, kBudgetFloor); });
  EXPECT_THAT(error.expected(), HasSubstr("16777216 bytes"));
  EXPECT_EQ(error.found(), std::to_string(8 * kBudgetFloor));
  EXPECT_EQ(error.kind(), FindingKind::kBadHeader);
}

TEST(Budget, RefusesCountsThatOverflow) {
  Budget product, sum;
  test::expect_error(ErrorCode::kCorruption, "are far too many for", [&] { product.charge(Charge::kChunks, kMost); });
  sum.earn(kMost, kMost);
  sum.charge(Charge::kBytes, sum.limit());
  test::expect_error(ErrorCode::kCorruption, "are far too many for", [&] { sum.charge(Charge::kBytes, kMost); });
}

TEST(Budget, EarnsNoMoreThanNumbersHold) {
  Budget budget;
  for (int i = 0; i < 3; ++i) budget.earn(kMost, kMost);
  EXPECT_GT(budget.limit(), std::int64_t{1} << 58);
}

TEST(Budget, PaysForTheMemoryOfAnArena) {
  const auto budget = std::make_shared<Budget>();
  Arena arena(budget);
  arena.array<char>(1 << 20);
  EXPECT_GE(budget->count(Charge::kArena), 1 << 20);
  EXPECT_LT(budget->count(Charge::kArena), 2 << 20);
  test::expect_error(ErrorCode::kCorruption, "bytes of values and names", [&] { arena.array<char>(kBudgetFloor); });
}

TEST(Budget, LetsAnArenaWithoutOneAllocate) {
  Arena arena;
  arena.charge(Charge::kBytes, kMost);
  EXPECT_EQ(arena.array<char>(kBudgetFloor + 1).size(), static_cast<std::size_t>(kBudgetFloor + 1));
}

}  // namespace
}  // namespace shard
