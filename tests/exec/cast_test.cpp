#include "libshard/exec/cast.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace shard {
namespace {

using ::testing::ElementsAre;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

template <class To>
struct Cast {
  std::vector<To> values;
  std::int64_t overflows = 0;
};

/// Casts and gives the target's elements as To, a type of the target's size.
template <class To, class From>
Cast<To> cast_all(DType from, const std::vector<From>& in, DType to) {
  const std::size_t elements = in.size() * sizeof(From) / static_cast<std::size_t>(element_bytes(from));
  Cast<To> result;
  result.values.resize(elements * static_cast<std::size_t>(element_bytes(to)) / sizeof(To));
  result.overflows = cast(from, std::as_bytes(std::span(in)), to, std::as_writable_bytes(std::span(result.values)));
  return result;
}

template <class To, class From>
std::vector<To> cast_values(DType from, const std::vector<From>& in, DType to) {
  return cast_all<To>(from, in, to).values;
}

TEST(CanCast, HoldsBetweenCastableTypesOnly) {
  EXPECT_TRUE(can_cast(DType::kBool, DType::kComplex128));
  EXPECT_TRUE(can_cast(DType::kFloat8E8m0fnu, DType::kUint64));
  EXPECT_FALSE(can_cast(DType::kFloat4E2m1fnX2, DType::kFloat32));
  EXPECT_FALSE(can_cast(DType::kFloat32, DType::kQint8));
}

TEST(Cast, Bfloat16RoundsToNearestEven) {
  const std::vector<std::uint32_t> bits = {0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF};  // Two ties, above, below.
  EXPECT_THAT(cast_values<std::uint16_t>(DType::kFloat32, bits, DType::kBfloat16),
              ElementsAre(0x3F80, 0x3F82, 0x3F81, 0x3F80));
}

TEST(Cast, Bfloat16ToFloat32IsExact) {
  const std::vector<std::uint16_t> bits = {0x3F80, 0xC040, 0x0001, 0x7F80};
  EXPECT_THAT(cast_values<float>(DType::kBfloat16, bits, DType::kFloat32),
              ElementsAre(1.0F, -3.0F, std::bit_cast<float>(0x00010000U), kInf));
}

TEST(Cast, Float16RoundsNormalsAndSubnormals) {
  const std::vector<float> in = {
      1.0F, -2.5F, 65519.0F, std::ldexp(1.0F, -24), std::ldexp(1.0F, -25), std::ldexp(1.5F, -24)};
  EXPECT_THAT(cast_values<std::uint16_t>(DType::kFloat32, in, DType::kFloat16),
              ElementsAre(0x3C00, 0xC100, 0x7BFF, 0x0001, 0x0000, 0x0002));
}

TEST(Cast, Float16SubnormalsReadExactly) {
  const std::vector<std::uint16_t> bits = {0x0001, 0x83FF, 0x0400, 0xFC00};
  EXPECT_THAT(cast_values<float>(DType::kFloat16, bits, DType::kFloat32),
              ElementsAre(std::ldexp(1.0F, -24), -std::ldexp(1023.0F, -24), std::ldexp(1.0F, -14), -kInf));
}

TEST(Cast, OverflowOfFloat16IsInfinityAndCounted) {
  const std::vector<float> in = {65520.0F, -1e30F, 65519.0F, kInf, kNan};
  const auto result = cast_all<std::uint16_t>(DType::kFloat32, in, DType::kFloat16);
  EXPECT_EQ(result.values[0], 0x7C00);
  EXPECT_EQ(result.values[1], 0xFC00);
  EXPECT_EQ(result.overflows, 2);
}

TEST(Cast, OverflowOfBfloat16IsInfinityAndCounted) {
  const auto result = cast_all<std::uint16_t>(DType::kFloat32, std::vector<float>{3.4e38F, 3.3e38F}, DType::kBfloat16);
  EXPECT_THAT(result.values, ElementsAre(0x7F80, 0x7F78));
  EXPECT_EQ(result.overflows, 1);
}

TEST(Cast, OverflowOfFloat8E4m3fnIsNanAndCounted) {
  const std::vector<float> in = {448.0F, 464.0F, 465.0F, -1000.0F, kInf};
  const auto result = cast_all<std::uint8_t>(DType::kFloat32, in, DType::kFloat8E4m3fn);
  EXPECT_THAT(result.values, ElementsAre(0x7E, 0x7E, 0x7F, 0xFF, 0x7F));
  EXPECT_EQ(result.overflows, 2);
}

TEST(Cast, OverflowOfFloat8E5m2IsInfinityAndCounted) {
  const auto result =
      cast_all<std::uint8_t>(DType::kFloat32, std::vector<float>{57344.0F, 61440.0F}, DType::kFloat8E5m2);
  EXPECT_THAT(result.values, ElementsAre(0x7B, 0x7C));
  EXPECT_EQ(result.overflows, 1);
}

TEST(Cast, FnuzTypesHaveNoNegativeZeroAndOneNan) {
  const std::vector<float> in = {-0.0F, kNan, 1e6F, -1.0F};
  const auto e4m3 = cast_all<std::uint8_t>(DType::kFloat32, in, DType::kFloat8E4m3fnuz);
  EXPECT_THAT(e4m3.values, ElementsAre(0x00, 0x80, 0x80, 0xC0));
  EXPECT_EQ(e4m3.overflows, 1);
  EXPECT_THAT(cast_values<std::uint8_t>(DType::kFloat32, in, DType::kFloat8E5m2fnuz),
              ElementsAre(0x00, 0x80, 0x80, 0xC0));
}

TEST(Cast, E8m0KeepsOnlyAPowerOfTwo) {
  const std::vector<float> in = {1.0F, -4.0F, 1.5F, 1.25F, 0.0F, kInf};
  EXPECT_THAT(cast_values<std::uint8_t>(DType::kFloat32, in, DType::kFloat8E8m0fnu),
              ElementsAre(127, 129, 128, 127, 0, 255));
  EXPECT_THAT(cast_values<float>(DType::kFloat8E8m0fnu, std::vector<std::uint8_t>{127, 0, 254}, DType::kFloat32),
              ElementsAre(1.0F, std::ldexp(1.0F, -127), std::ldexp(1.0F, 127)));
}

TEST(Cast, Float64ToBfloat16RoundsThroughFloat32AsTorchDoes) {
  // Just above a tie of bfloat16, but float32 rounds it onto the tie, which then goes to even.
  const std::vector<double> in = {1.0 + std::ldexp(1.0, -8) + std::ldexp(1.0, -40)};
  EXPECT_THAT(cast_values<std::uint16_t>(DType::kFloat64, in, DType::kBfloat16), ElementsAre(0x3F80));
}

TEST(Cast, Float64OverflowsToFloat32AndIsCounted) {
  const auto result = cast_all<float>(DType::kFloat64, std::vector<double>{1e300, 1.0, HUGE_VAL}, DType::kFloat32);
  EXPECT_THAT(result.values, ElementsAre(kInf, 1.0F, kInf));
  EXPECT_EQ(result.overflows, 1);
}

TEST(Cast, Int64ToFloat32RoundsOnce) {
  // Rounded first to double this would be a tie and go down.
  const std::vector<std::int64_t> in = {(std::int64_t{1} << 60) + (std::int64_t{1} << 36) + 1};
  EXPECT_THAT(cast_values<float>(DType::kInt64, in, DType::kFloat32),
              ElementsAre(std::ldexp(1.0F, 60) + std::ldexp(1.0F, 37)));
}

TEST(Cast, LargeIntegersOverflowFloat16) {
  const auto result = cast_all<std::uint16_t>(DType::kInt32, std::vector<std::int32_t>{70000, -7}, DType::kFloat16);
  EXPECT_THAT(result.values, ElementsAre(0x7C00, 0xC700));
  EXPECT_EQ(result.overflows, 1);
}

TEST(Cast, Uint64KeepsItsUpperHalf) {
  const std::vector<std::uint64_t> in = {std::uint64_t{1} << 63};
  EXPECT_THAT(cast_values<double>(DType::kUint64, in, DType::kFloat64), ElementsAre(std::ldexp(1.0, 63)));
  EXPECT_THAT(cast_values<std::uint64_t>(DType::kFloat64, std::vector<double>{std::ldexp(1.0, 63)}, DType::kUint64),
              ElementsAre(std::uint64_t{1} << 63));
}

TEST(Cast, FloatToIntegerTruncates) {
  const std::vector<float> in = {2.9F, -2.9F, 0.5F};
  EXPECT_THAT(cast_values<std::int64_t>(DType::kFloat32, in, DType::kInt64), ElementsAre(2, -2, 0));
  EXPECT_THAT(cast_values<std::int8_t>(DType::kFloat32, in, DType::kInt8), ElementsAre(2, -2, 0));
}

TEST(Cast, FloatOutOfRangeIsTheSmallestIntegerAndIsCounted) {
  const auto result = cast_all<std::int32_t>(DType::kFloat32, std::vector<float>{1e20F, kNan, -kInf}, DType::kInt32);
  EXPECT_THAT(result.values, ElementsAre(INT32_MIN, INT32_MIN, INT32_MIN));
  EXPECT_EQ(result.overflows, 3);
}

TEST(Cast, TheRangeOfAnIntegerEndsBehindItsLimits) {
  struct Row {
    DType to;
    std::vector<double> inside, outside;
  };
  const double two63 = std::ldexp(1.0, 63);
  const std::vector<Row> table{
      {DType::kInt8, {-128.9, 127.9}, {-129, 128}},
      {DType::kUint8, {-0.9, 255.9}, {-1, 256}},
      {DType::kInt16, {-32768.9, 32767.9}, {-32769, 32768}},
      {DType::kUint16, {-0.9, 65535.9}, {-1, 65536}},
      {DType::kInt32, {-2147483648.9, 2147483647.9}, {-2147483649.0, 2147483648.0}},
      {DType::kUint32, {-0.9, 4294967295.9}, {-1, 4294967296.0}},
      {DType::kInt64, {-two63, std::nextafter(two63, 0)}, {std::nextafter(-two63, -INFINITY), two63}},
      {DType::kUint64, {-0.9, std::nextafter(2 * two63, 0)}, {-1, 2 * two63}},
  };
  for (const Row& row : table) {
    EXPECT_EQ(cast_all<std::uint8_t>(DType::kFloat64, row.inside, row.to).overflows, 0) << dtype_name(row.to);
    EXPECT_EQ(cast_all<std::uint8_t>(DType::kFloat64, row.outside, row.to).overflows, 2) << dtype_name(row.to);
  }
  const std::vector<float> limits{-2147483648.0F, 2147483648.0F, std::nextafter(-2147483648.0F, -kInf)};
  EXPECT_EQ(cast_all<std::int32_t>(DType::kFloat32, limits, DType::kInt32).overflows, 2);
}

TEST(Cast, NarrowerIntegersKeepTheLowBits) {
  const std::vector<std::int64_t> in = {257, -1, 128};
  EXPECT_THAT(cast_values<std::uint8_t>(DType::kInt64, in, DType::kUint8), ElementsAre(1, 255, 128));
  EXPECT_THAT(cast_values<std::int8_t>(DType::kInt64, in, DType::kInt8), ElementsAre(1, -1, -128));
}

TEST(Cast, ToBoolAsksForNonzero) {
  EXPECT_THAT(cast_values<std::uint8_t>(DType::kFloat32, std::vector<float>{0.0F, -0.0F, 1e-40F, kNan}, DType::kBool),
              ElementsAre(0, 0, 1, 1));
  EXPECT_THAT(cast_values<float>(DType::kBool, std::vector<std::uint8_t>{0, 1}, DType::kFloat32),
              ElementsAre(0.0F, 1.0F));
}

TEST(Cast, ComplexToRealDropsTheImaginaryPart) {
  EXPECT_THAT(cast_values<double>(DType::kComplex64, std::vector<float>{1, 2, 3, 4}, DType::kFloat64),
              ElementsAre(1.0, 3.0));
}

TEST(Cast, ComplexToBoolLooksAtBothParts) {
  EXPECT_THAT(cast_values<std::uint8_t>(DType::kComplex64, std::vector<float>{0, 1, 0, 0, 2, 0}, DType::kBool),
              ElementsAre(1, 0, 1));
}

TEST(Cast, RealToComplexAddsAZero) {
  EXPECT_THAT(cast_values<float>(DType::kInt16, std::vector<std::int16_t>{1, -2}, DType::kComplex64),
              ElementsAre(1.0F, 0.0F, -2.0F, 0.0F));
}

TEST(Cast, ComplexToComplexConvertsBothParts) {
  EXPECT_THAT(cast_values<std::uint16_t>(DType::kComplex64, std::vector<float>{1, -2}, DType::kComplex32),
              ElementsAre(0x3C00, 0xC000));
}

TEST(Cast, SameTypeKeepsEveryBit) {
  const std::vector<std::uint16_t> bits = {0x7F81, 0xFFFF, 0x0001};  // NaNs with payloads.
  EXPECT_EQ(cast_values<std::uint16_t>(DType::kBfloat16, bits, DType::kBfloat16), bits);
}

TEST(Cast, CountsOverflowsAcrossBlocks) {
  const auto result = cast_all<std::uint16_t>(DType::kFloat32, std::vector<float>(5001, 1e6F), DType::kFloat16);
  EXPECT_EQ(result.overflows, 5001);
  EXPECT_EQ(result.values.back(), 0x7C00);
}

TEST(Cast, TakesUnalignedBytes) {
  std::vector<std::byte> in(4 * 100 + 1);
  std::vector<std::byte> out(2 * 100 + 1);
  const float one = 1.0F;
  for (std::size_t i = 0; i < 100; ++i) std::memcpy(in.data() + 1 + 4 * i, &one, 4);
  cast(DType::kFloat32, std::span(in).subspan(1), DType::kBfloat16, std::span(out).subspan(1));
  std::uint16_t last = 0;
  std::memcpy(&last, out.data() + 1 + 2 * 99, 2);
  EXPECT_EQ(last, 0x3F80);
}

TEST(Cast, NothingGivesNothing) {
  EXPECT_EQ(cast(DType::kFloat32, {}, DType::kComplex64, {}), 0);
  EXPECT_EQ(cast(DType::kFloat32, {}, DType::kFloat32, {}), 0);
}

}  // namespace
}  // namespace shard
