#include "apps/shardctl/text/element_text.h"

#include <gtest/gtest.h>

#include <cmath>
#include <complex>
#include <limits>
#include <string>

namespace shard::app {
namespace {

template <class T>
std::string text(DType dtype, T value, Spelling spelling = Spelling::kPython) {
  ElementText elements(dtype, spelling);
  elements.take(std::as_bytes(std::span(&value, 1)));
  return std::string(elements[0]);
}

TEST(ElementText, FloatsReadBackAsTheSame) {
  EXPECT_EQ(text(DType::kFloat32, 0.1F), "0.1");
  EXPECT_EQ(text(DType::kFloat32, 16777217.0F), "16777216.0");
  EXPECT_EQ(text(DType::kFloat64, 0.1 + 0.2), "0.30000000000000004");
}
TEST(ElementText, WholeFloatsShowThatTheyAreFloats) { EXPECT_EQ(text(DType::kFloat32, 3.0F), "3.0"); }
TEST(ElementText, TheExtremesHaveExponents) {
  EXPECT_EQ(text(DType::kFloat32, std::numeric_limits<float>::denorm_min()), "1e-45");
  EXPECT_EQ(text(DType::kFloat64, 1e300), "1e+300");
}
TEST(ElementText, NarrowFloatsAreShownExactly) {
  EXPECT_EQ(text<std::uint16_t>(DType::kBfloat16, 0x3DCD), "0.100097656");
  EXPECT_EQ(text<std::uint16_t>(DType::kFloat16, 0x2E66), "0.099975586");
  EXPECT_EQ(text<std::uint8_t>(DType::kFloat8E4m3fn, 0x7E), "448.0");
}
TEST(ElementText, SpecialFloatsAreWords) {
  EXPECT_EQ(text(DType::kFloat32, -std::numeric_limits<float>::infinity()), "-inf");
  EXPECT_EQ(text(DType::kFloat64, std::nan("")), "nan");
  EXPECT_EQ(text(DType::kFloat32, -0.0F), "-0.0");
}
TEST(ElementText, SpecialFloatsAreStringsInJson) {
  EXPECT_EQ(text(DType::kFloat64, std::nan(""), Spelling::kJson), "\"nan\"");
}
TEST(ElementText, IntegersAreExact) {
  EXPECT_EQ(text(DType::kInt64, std::numeric_limits<std::int64_t>::min()), "-9223372036854775808");
  EXPECT_EQ(text(DType::kUint64, std::numeric_limits<std::uint64_t>::max()), "18446744073709551615");
  EXPECT_EQ(text<std::int8_t>(DType::kInt8, -128), "-128");
  EXPECT_EQ(text<std::uint8_t>(DType::kUint8, 255), "255");
  EXPECT_EQ(text(DType::kInt16, std::numeric_limits<std::int16_t>::min()), "-32768");
  EXPECT_EQ(text(DType::kUint16, std::numeric_limits<std::uint16_t>::max()), "65535");
  EXPECT_EQ(text(DType::kInt32, std::numeric_limits<std::int32_t>::min()), "-2147483648");
  EXPECT_EQ(text(DType::kUint32, std::numeric_limits<std::uint32_t>::max()), "4294967295");
}
TEST(ElementText, BoolsAreWords) {
  EXPECT_EQ(text<std::uint8_t>(DType::kBool, 1), "True");
  EXPECT_EQ(text<std::uint8_t>(DType::kBool, 0, Spelling::kJson), "false");
}
TEST(ElementText, ComplexNumbersArePythons) {
  EXPECT_EQ(text(DType::kComplex64, std::complex<float>(1, -2)), "1.0-2.0j");
  EXPECT_EQ(text(DType::kComplex128, std::complex<double>(0.5, 2)), "0.5+2.0j");
  EXPECT_EQ(text(DType::kComplex64, std::complex<float>(1, -2), Spelling::kJson), "[1.0, -2.0]");
}
TEST(ElementText, PackedTypesHaveNoText) {
  EXPECT_FALSE(ElementText::can_show(DType::kFloat4E2m1fnX2));
  EXPECT_FALSE(ElementText::can_show(DType::kFloat6E2m3fn));
  EXPECT_TRUE(ElementText::can_show(DType::kFloat8E8m0fnu));
}

}  // namespace
}  // namespace shard::app
