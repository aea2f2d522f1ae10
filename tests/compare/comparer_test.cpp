#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "libshard/compare/difference.h"

namespace shard {

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

template <class T>
ValueDifference compared(DType dtype, const std::vector<T>& a, const std::vector<T>& b,
                         const Tolerance& tolerance = {}) {
  Comparer comparer(dtype, tolerance);
  const DTypeBlock block = dtype_block(dtype);
  const std::int64_t count = static_cast<std::int64_t>(a.size() * sizeof(T)) / block.bytes * block.elements;
  comparer.add(0, count, std::as_bytes(std::span(a)), std::as_bytes(std::span(b)));
  return comparer.result();
}

ValueDifference doubles(const std::vector<double>& a, const std::vector<double>& b, const Tolerance& tolerance = {}) {
  return compared(DType::kFloat64, a, b, tolerance);
}

TEST(Comparer, CountsWhatDiffersAndSaysWhere) {
  const ValueDifference found = doubles({1, 2, 3, 4}, {1, 2, 5, 8});
  EXPECT_EQ(found.elements, 4);
  EXPECT_EQ(found.differing, 2);
  EXPECT_EQ(found.first, 2);
  EXPECT_EQ(found.max_abs, 4.0);
  EXPECT_EQ(found.max_rel, 0.5);
}

TEST(Comparer, FindsADifferenceFarInside) {
  std::vector<std::int32_t> a(100'000, 7), b = a;
  b[77'777] = 9;
  EXPECT_EQ(compared(DType::kInt32, a, b).first, 77'777);
}

TEST(Comparer, ZeroEqualsMinusZero) { EXPECT_EQ(doubles({0.0}, {-0.0}).differing, 0); }

TEST(Comparer, NanDiffersFromItself) {
  const ValueDifference found = doubles({1, kNan}, {1, kNan});
  EXPECT_EQ(found.differing, 1);
  EXPECT_TRUE(std::isnan(*found.max_abs));
  EXPECT_EQ(found.max_ulp, std::nullopt);
}

TEST(Comparer, NanEqualsNanWhenToldSo) { EXPECT_EQ(doubles({kNan}, {kNan}, {.equal_nan = true}).differing, 0); }

TEST(Comparer, NanDiffersFromItselfInFloat8) {
  EXPECT_EQ(compared<std::uint8_t>(DType::kFloat8E4m3fn, {0x7F, 0x38}, {0x7F, 0x38}).differing, 1);
}

TEST(Comparer, InfinityEqualsItself) { EXPECT_EQ(doubles({kInfinity}, {kInfinity}).differing, 0); }

TEST(Comparer, InfinityIsNearNothingFinite) { EXPECT_EQ(doubles({1}, {kInfinity}, {.rtol = 0.5}).differing, 1); }

TEST(Comparer, AbsoluteToleranceAccepts) { EXPECT_EQ(doubles({1}, {1.25}, {.atol = 0.25}).differing, 0); }

TEST(Comparer, RelativeToleranceIsOverB) {
  EXPECT_EQ(doubles({90}, {100}, {.rtol = 0.1}).differing, 0);
  EXPECT_EQ(doubles({100}, {90}, {.rtol = 0.1}).differing, 1);
}

TEST(Comparer, CountsRepresentableNumbersBetween) {
  const float one = 1, next = std::nextafter(std::nextafter(one, 2.0F), 2.0F);
  EXPECT_EQ(compared<float>(DType::kFloat32, {one}, {next}).max_ulp, 2U);
  EXPECT_EQ(compared<float>(DType::kFloat32, {one}, {next}, {.ulp = 2}).differing, 0);
}

TEST(Comparer, CountsRepresentableNumbersAcrossZero) {
  const float tiny = std::numeric_limits<float>::denorm_min();
  EXPECT_EQ(compared<float>(DType::kFloat32, {tiny}, {-tiny}).max_ulp, 2U);
}

TEST(Comparer, KnowsBfloat16) {
  const ValueDifference found = compared<std::uint16_t>(DType::kBfloat16, {0x3F80}, {0x3F81});  // 1 and 1 + 2^-7.
  EXPECT_EQ(found.max_abs, 0.0078125);
  EXPECT_EQ(found.max_ulp, 1U);
}

TEST(Comparer, ComparesLargeIntegersExactly) {
  const ValueDifference found = compared<std::int64_t>(DType::kInt64, {9007199254740993}, {9007199254740992});
  EXPECT_EQ(found.differing, 1);
  EXPECT_EQ(found.max_abs, 1.0);
  EXPECT_EQ(found.max_ulp, std::nullopt);
}

TEST(Comparer, TakesIntegersByTheirSign) {
  const ValueDifference found = compared<std::int8_t>(DType::kInt8, {-1}, {-3});
  EXPECT_EQ(found.max_abs, 2.0);
  EXPECT_EQ(found.max_rel, 2.0 / 3.0);
}

TEST(Comparer, MeasuresComplexNumbersByTheirDistance) {
  const ValueDifference found = compared<float>(DType::kComplex64, {1, 1, 0, 0}, {1, 1, 3, 4});
  EXPECT_EQ(found.elements, 2);
  EXPECT_EQ(found.first, 1);
  EXPECT_EQ(found.max_abs, 5.0);
}

TEST(Comparer, CountsDistancesByPowersOfTen) {
  const ValueDifference found = doubles({0, 0, 0, 0, 0, 7}, {0.5, 0.1, 9.99, 10, 1e-320, 7});
  EXPECT_EQ(found.abs, (Histogram{{-320, 1}, {-1, 2}, {0, 1}, {1, 1}}));
}

TEST(Comparer, PutsPowersOfTenIntoTheBinThatTheyBegin) {
  for (const double power : {1e-300, 1e-7, 1e-3, 1e22, 1e23, 1e308}) {
    const ValueDifference found = doubles({0}, {power});
    EXPECT_EQ(found.abs, (Histogram{{static_cast<int>(std::lround(std::log10(power))), 1}})) << power;
  }
}

TEST(Comparer, CountsRepresentableNumbersByPowersOfTwo) {
  const float one = 1, next = std::nextafter(one, 2.0F), third = std::nextafter(std::nextafter(next, 2.0F), 2.0F);
  const ValueDifference found = compared<float>(DType::kFloat32, {one, one, one, 0}, {next, third, one, -1});
  EXPECT_EQ(found.ulp, (Histogram{{0, 1}, {1, 1}, {29, 1}}));
}

TEST(Comparer, LeavesDistancesThatAreNotFiniteOutOfHistograms) {
  const ValueDifference found = doubles({1, kNan, 1}, {kInfinity, 1, 3});
  EXPECT_EQ(found.differing, 3);
  EXPECT_EQ(found.abs, (Histogram{{0, 1}}));
}

TEST(Comparer, CountsOnlyDistancesBeyondTheTolerance) {
  EXPECT_EQ(doubles({1, 1}, {1.25, 3}, {.atol = 0.5}).abs, (Histogram{{0, 1}}));
}

TEST(Comparer, ComparesFloat4ByItsBits) {
  const ValueDifference found = compared<std::uint8_t>(DType::kFloat4E2m1fnX2, {0x12, 0x34}, {0x12, 0x35});
  EXPECT_EQ(found.differing, 1);
  EXPECT_EQ(found.max_abs, std::nullopt);
}

TEST(Comparer, ComparesFloat6ByItsBits) {
  // Four elements in three bytes; only the last one differs.
  EXPECT_EQ(compared<std::uint8_t>(DType::kFloat6E2m3fn, {0, 0, 0}, {0, 0, 0x80}).first, 3);
}

}  // namespace
}  // namespace shard
