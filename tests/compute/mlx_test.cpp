// MLX's forms: integers with scales and biases, and MXFP4 in words of 32 bits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "libshard/compute/find_formulas.h"
#include "libshard/core/error.h"
#include "tests/compute/stored.h"
#include "tests/support/expect_error.h"

namespace shard {
namespace {

using test::Bytes;
using test::code_at;
using test::Numbers;
using test::Stored;

constexpr DType kF32 = DType::kFloat32, kBf16 = DType::kBfloat16, kU8 = DType::kUint8, kU32 = DType::kUint32;

QuantizationFacts stating(std::vector<QuantizationScheme> schemes) {
  return {.is_quantized = true, .schemes = std::move(schemes)};
}

std::vector<float> read_floats(Reader& reader, const std::string& name) {
  const Bytes bytes = test::read_tensor(reader, name);
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

TEST(Mlx, IntegersOfAnyBitsAreScaledAndThenMoved) {
  std::mt19937 random(1);
  for (const int bits : {1, 2, 3, 4, 5, 6, 8}) {
    constexpr std::int64_t kSlices = 2, kRows = 3, kColumns = 192, kGroup = 64, kGroups = kColumns / kGroup;
    Bytes codes(static_cast<std::size_t>(kSlices * kRows * kColumns * bits / 8));
    for (std::byte& each : codes) each = static_cast<std::byte>(random() & 0xFF);
    std::vector<float> scales(kSlices * kRows * kGroups), biases(scales.size());
    for (float& each : scales) each = static_cast<float>(random() % 2000) / 3000.0F - 0.3F;
    for (float& each : biases) each = static_cast<float>(random() % 2000) / 700.0F - 1.4F;
    Stored stored;
    stored.add("a.weight", kU32, {kSlices, kRows, kColumns * bits / 32}, codes);
    stored.add("a.scales", kF32, {kSlices, kRows, kGroups}, scales);
    stored.add("a.biases", kF32, {kSlices, kRows, kGroups}, biases);
    stored.add("a.bias", kF32, {2}, std::vector<float>{1, 2});
    const auto reader = dequantized(stored.reader(), kF32,
                                    stating({{.bits = 7, .group_size = kGroup}, {.bits = bits, .group_size = kGroup}}));
    EXPECT_EQ(reader->catalog().tensors.size(), 2U);
    EXPECT_THAT(reader->catalog().find("a.weight")->shape.span(), ::testing::ElementsAre(kSlices, kRows, kColumns));
    const std::vector<float> found = read_floats(*reader, "a.weight");
    for (std::size_t i = 0; i < found.size(); ++i) {
      const auto code = static_cast<float>(code_at(codes, static_cast<std::int64_t>(i) * bits, bits));
      const float product = code * scales[i / kGroup];
      ASSERT_EQ(found[i], product + biases[i / kGroup]) << bits << " bits, element " << i;
    }
  }
}

constexpr std::array kE2m1{0.0F,  0.5F,  1.0F,  1.5F,  2.0F,  3.0F,  4.0F,  6.0F,
                           -0.0F, -0.5F, -1.0F, -1.5F, -2.0F, -3.0F, -4.0F, -6.0F};

TEST(Mlx, Mxfp4NeedsNoConfiguration) {
  std::mt19937 random(2);
  Bytes codes(3 * 32);
  for (std::byte& each : codes) each = static_cast<std::byte>(random() & 0xFF);
  Stored stored;
  stored.add("a.weight", kU32, {3, 8}, codes);
  stored.add("a.scales", kU8, {3, 2}, std::vector<std::uint8_t>{127, 126, 130, 100, 127, 128});
  const auto reader = dequantized(stored.reader(), kBf16, {});
  const std::vector<float> found = test::read_bfloat16(*reader, "a.weight");
  ASSERT_EQ(found.size(), 192U);
  const std::array scales{1.0F, 0.5F, 8.0F, 0x1p-27F, 1.0F, 2.0F};
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i], kE2m1[code_at(codes, static_cast<std::int64_t>(4 * i), 4)] * scales[i / 32]) << i;
  }
}

TEST(Mlx, Mxfp8HasFourCodesInAWord) {
  Bytes codes(2 * 64, std::byte{0});
  const std::array<std::uint8_t, 4> some{0x38, 0xB9, 0x01, 0x7E};
  for (const std::size_t at : {0U, 36U, 124U}) std::memcpy(&codes[at], some.data(), some.size());
  Stored stored;
  stored.add("a.weight", kU32, {2, 16}, codes);
  stored.add("a.scales", kU8, {2, 2}, std::vector<std::uint8_t>{127, 128, 1, 120});
  const auto reader = dequantized(stored.reader(), kF32, {});
  const std::vector<float> found = read_floats(*reader, "a.weight");
  ASSERT_EQ(found.size(), 128U);
  const auto four = [&](std::size_t at) { return std::vector<float>(&found[at], &found[at] + 4); };
  EXPECT_THAT(four(0), ::testing::ElementsAre(1.0F, -1.125F, 0x1p-9F, 448.0F));
  EXPECT_THAT(four(36), ::testing::ElementsAre(2.0F, -2.25F, 0x1p-8F, 896.0F));
  EXPECT_THAT(four(124), ::testing::ElementsAre(0x1p-7F, -1.125F * 0x1p-7F, 0x1p-16F, 3.5F));
  EXPECT_THAT(four(4), ::testing::Each(0.0F));
  const std::vector<float> rounded = test::read_bfloat16(*dequantized(stored.reader(), kBf16, {}), "a.weight");
  EXPECT_EQ(rounded, found);  // Few bits: nothing is lost.
}

TEST(Mlx, Nvfp4MayHaveAGlobalScaleForEachExpert) {
  std::mt19937 random(3);
  Bytes codes(2 * 3 * 16);
  for (std::byte& each : codes) each = static_cast<std::byte>(random() & 0xFF);
  const std::vector<std::uint8_t> scales{0x38, 0x40, 0x30, 0x7E, 0x01, 0x39, 0x50, 0x38, 0x38, 0x20, 0x41, 0x42};
  const std::array numbers{1.0F, 2.0F, 0.5F, 448.0F, 0x1p-9F, 1.125F,  // E4M3
                           8.0F, 1.0F, 1.0F, 0.125F, 2.25F,   2.5F};
  for (const bool has_global : {false, true}) {
    Stored stored;
    stored.add("a.weight", kU32, {2, 3, 4}, codes);
    stored.add("a.scales", kU8, {2, 3, 2}, scales);
    if (has_global) stored.add("a.global_scale", kF32, {2}, std::vector<float>{3.3F, 0.7F});
    const auto reader = dequantized(stored.reader(), kF32, {});
    EXPECT_EQ(reader->catalog().tensors.size(), 1U);
    const std::vector<float> found = read_floats(*reader, "a.weight");
    ASSERT_EQ(found.size(), 192U);
    for (std::size_t i = 0; i < found.size(); ++i) {
      const float global = has_global ? (i < 96 ? 3.3F : 0.7F) / 2688.0F : 1.0F, scale = numbers[i / 16] * global;
      ASSERT_EQ(found[i], kE2m1[code_at(codes, static_cast<std::int64_t>(4 * i), 4)] * scale) << has_global << i;
    }
  }
}

struct Refused {
  const char* title;
  std::vector<test::Part> parts;
  std::vector<QuantizationScheme> schemes;
  ErrorCode code;
  const char* message;
};

TEST(Mlx, RefusesByNameInsteadOfGuessing) {
  const std::vector<test::Part> affine{
      {"a.weight", kU32, {4, 16}}, {"a.scales", kBf16, {4, 2}}, {"a.biases", kBf16, {4, 2}}};
  const QuantizationScheme four{.bits = 4, .group_size = 64}, eight{.bits = 8, .group_size = 32};
  const std::vector<Refused> all{
      {"nothing stated", affine, {}, ErrorCode::kCorruption, "states no bits and size of groups"},
      {"others stated",
       affine,
       {{.bits = 4, .group_size = 32}},
       ErrorCode::kCorruption,
       "states no bits and size of groups"},
      {"two that fit", affine, {four, eight}, ErrorCode::kUnsupported, "several stated bits"},
      {"no biases", {affine[0], affine[1]}, {four}, ErrorCode::kCorruption, "its biases are missing"},
      {"too few biases",
       {affine[0], affine[1], {"a.biases", kBf16, {4, 1}}},
       {four},
       ErrorCode::kCorruption,
       "does not fit"},
      {"too few rows of scales",
       {affine[0], {"a.scales", kBf16, {2, 2}}, {"a.biases", kBf16, {2, 2}}},
       {four},
       ErrorCode::kCorruption,
       "does not fit"},
      {"biases of integers",
       {affine[0], affine[1], {"a.biases", kU32, {4, 2}}},
       {four},
       ErrorCode::kCorruption,
       "dtype"},
      {"no scales",
       {affine[0], affine[2], {"b.weight", DType::kFloat8E4m3fn, {1, 1}}, {"b.weight_scale", kF32, {1}}},
       {four},
       ErrorCode::kCorruption,
       "its scales are missing"},
      {"no mode",
       {{"a.weight", kU32, {4, 16}}, {"a.scales", kU8, {4, 1}}},
       {},
       ErrorCode::kUnsupported,
       "as in none of MLX's modes"},
      {"mxfp4 with a global scale",
       {{"a.weight", kU32, {4, 8}}, {"a.scales", kU8, {4, 2}}, {"a.global_scale", kF32, {1}}},
       {},
       ErrorCode::kUnsupported,
       "scales of two levels"},
      {"too many global scales",
       {{"a.weight", kU32, {2, 4, 8}}, {"a.scales", kU8, {2, 4, 4}}, {"a.global_scale", kF32, {3}}},
       {},
       ErrorCode::kCorruption,
       "the global scales do not fit"},
  };
  for (const Refused& each : all) {
    Stored stored = test::zeros_of(each.parts);
    const Error error = test::error_of([&] { dequantized(stored.reader(), kBf16, stating(each.schemes)); });
    EXPECT_EQ(error.code(), each.code) << each.title;
    EXPECT_THAT(error.what(), ::testing::HasSubstr(each.message)) << each.title;
  }
}

}  // namespace
}  // namespace shard
