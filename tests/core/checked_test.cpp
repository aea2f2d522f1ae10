#include "libshard/core/checked.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "libshard/core/error.h"
#include "tests/support/expect_error.h"

namespace shard {
namespace {

constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
using Shape = std::vector<std::int64_t>;
using test::error_of;

TEST(CheckedAdd, ReachesTheLargestNumber) { EXPECT_EQ(checked_add(kMax - 1, 1), kMax); }

TEST(CheckedAdd, RefusesToWrap) {
  EXPECT_EQ(error_of([] { checked_add(kMax, 1); }).code(), ErrorCode::kCorruption);
}

TEST(CheckedAdd, RefusesNegativeOperands) {
  EXPECT_EQ(error_of([] { checked_add(-1, 5); }).code(), ErrorCode::kCorruption);
  EXPECT_EQ(error_of([] { checked_add(5, -1); }).code(), ErrorCode::kCorruption);
}

TEST(CheckedMul, MultipliesUpTo63Bits) {
  EXPECT_EQ(checked_mul(std::int64_t{1} << 31, std::int64_t{1} << 31), std::int64_t{1} << 62);
}

TEST(CheckedMul, RefusesToWrapAndSaysTheNumbers) {
  const Error error = error_of([] { checked_mul(std::int64_t{1} << 32, std::int64_t{1} << 31); });
  EXPECT_EQ(error.code(), ErrorCode::kCorruption);
  EXPECT_STREQ(error.what(), "cannot multiply 4294967296 by 2147483648");
  EXPECT_EQ(error.why(), "the result does not fit 63 bits");
}

TEST(CheckedMul, RefusesNegativeOperands) {
  EXPECT_EQ(error_of([] { checked_mul(-2, -3); }).code(), ErrorCode::kCorruption);
}

TEST(CheckedNumel, OfAScalarIsOne) { EXPECT_EQ(checked_numel({}), 1); }

TEST(CheckedNumel, MultipliesSizes) { EXPECT_EQ(checked_numel(Shape{2, 3, 4}), 24); }

TEST(CheckedNumel, OfAnEmptyShapeIsZeroHoweverLargeTheRest) {
  EXPECT_EQ(checked_numel(Shape{std::int64_t{1} << 40, std::int64_t{1} << 40, 0}), 0);
}

TEST(CheckedNumel, RefusesAProductThatWraps) {
  const Error error = error_of([] { checked_numel(Shape{std::int64_t{1} << 40, std::int64_t{1} << 40}); });
  EXPECT_EQ(error.code(), ErrorCode::kCorruption);
  EXPECT_STREQ(error.what(), "cannot count the elements of shape [1099511627776, 1099511627776]");
}

TEST(CheckedNumel, RefusesANegativeSizeEvenBesideAZero) {
  EXPECT_EQ(error_of([] { checked_numel(Shape{0, -1}); }).code(), ErrorCode::kCorruption);
}

TEST(CheckedBytes, CountsWholeElements) {
  EXPECT_EQ(checked_bytes(3, DType::kBfloat16), 6);
  EXPECT_EQ(checked_bytes(3, DType::kComplex128), 48);
  EXPECT_EQ(checked_bytes(3, DType::kFloat4E2m1fnX2), 3);
}

TEST(CheckedBytes, PacksFourSixBitElementsIntoThreeBytes) { EXPECT_EQ(checked_bytes(8, DType::kFloat6E2m3fn), 6); }

TEST(CheckedBytes, RefusesSixBitElementsThatEndInsideAByte) {
  EXPECT_EQ(error_of([] { checked_bytes(5, DType::kFloat6E3m2fn); }).code(), ErrorCode::kCorruption);
}

TEST(CheckedBytes, RefusesMoreThan63Bits) {
  EXPECT_EQ(error_of([] { checked_bytes(kMax / 4, DType::kFloat64); }).code(), ErrorCode::kCorruption);
  EXPECT_EQ(checked_bytes(kMax / 8, DType::kFloat64), kMax / 8 * 8);
}

TEST(BeginOfShare, SharesDifferByOne) {
  EXPECT_EQ(begin_of_share(10, 0, 4), 0);
  EXPECT_EQ(begin_of_share(10, 1, 4), 2);
  EXPECT_EQ(begin_of_share(10, 2, 4), 5);
  EXPECT_EQ(begin_of_share(10, 3, 4), 7);
  EXPECT_EQ(begin_of_share(10, 4, 4), 10);
}

TEST(BeginOfShare, OfTheLargestTotalDoesNotWrap) {
  EXPECT_EQ(begin_of_share(kMax, 999'999, 1'000'000), 9223362813482738952);
  EXPECT_EQ(begin_of_share(kMax, 1'000'000, 1'000'000), kMax);
}

}  // namespace
}  // namespace shard
