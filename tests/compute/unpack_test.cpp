#include "libshard/compute/unpack.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "libshard/compute/rounded_rows.h"
#include "tests/compute/stored.h"

namespace shard {
namespace {

using test::Bytes;
using test::code_at;

Bytes random_bytes(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  Bytes bytes(count);
  for (std::byte& each : bytes) each = static_cast<std::byte>(random() & 255U);
  return bytes;
}

CodeTable identity() {
  CodeTable table;
  for (std::size_t i = 0; i < 256; ++i) table.numbers[i] = static_cast<float>(i);
  table.fill_pairs();
  return table;
}

TEST(Unpack, BitsOfAnyWidthAreThoseOfTheString) {
  const Bytes bytes = random_bytes(400, 1);
  const CodeTable table = identity();
  for (int width = 1; width <= 8; ++width) {
    for (const std::int64_t first : {0, 1, 7, 8}) {
      std::vector<float> out(300);
      unpack_bits(bytes, first, width, table, out);
      for (std::int64_t i = 0; i < 300; ++i) {
        ASSERT_EQ(out[static_cast<std::size_t>(i)], static_cast<float>(code_at(bytes, (first + i) * width, width)))
            << width << " bits, code " << first + i;
      }
    }
  }
}

TEST(Unpack, NibblesMayComeUpperHalfFirst) {
  const Bytes bytes{std::byte{0x21}, std::byte{0x43}};
  CodeTable table = identity();
  table.fill_pairs(true);
  std::vector<float> out(3);
  unpack_bits(bytes, 1, 4, table, out);
  EXPECT_EQ(out, (std::vector<float>{1, 4, 3}));
}

TEST(Unpack, AwqWordsHoldEvenColumnsBeforeOddOnes) {
  const Bytes bytes = test::bytes_of(std::vector<std::uint32_t>{0x76543210U, 0xFEDCBA98U});
  const CodeTable table = identity();
  std::vector<float> all(16);
  unpack_awq(bytes, 0, table, all);
  EXPECT_EQ(all, (std::vector<float>{0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15}));
  std::vector<float> some(9);
  unpack_awq(bytes, 3, table, some);
  EXPECT_EQ(some, (std::vector<float>{5, 2, 6, 3, 7, 8, 12, 9, 13}));
}

TEST(Unpack, ColumnsOfWordsAreStringsOfBits) {
  const Bytes low = random_bytes(400, 2), high = random_bytes(400, 3);
  for (int width = 1; width <= 8; ++width) {
    for (int shift = 0; shift < 32; ++shift) {
      std::vector<float> out(100);
      unpack_column(low, high, shift, width, out);
      for (std::size_t i = 0; i < 100; ++i) {
        Bytes column(low.begin() + static_cast<std::ptrdiff_t>(4 * i),
                     low.begin() + static_cast<std::ptrdiff_t>(4 * i + 4));
        column.insert(column.end(), high.begin() + static_cast<std::ptrdiff_t>(4 * i),
                      high.begin() + static_cast<std::ptrdiff_t>(4 * i + 4));
        ASSERT_EQ(out[i], static_cast<float>(code_at(column, shift, width))) << width << " bits at " << shift;
      }
    }
  }
}

TEST(Unpack, E4m3IsThatOfTheDtype) {
  Bytes codes(256);
  for (std::size_t i = 0; i < 256; ++i) codes[i] = static_cast<std::byte>(i);
  std::vector<float> out(256);
  unpack_e4m3(codes, out);
  for (std::size_t i = 0; i < 256; ++i) {
    const float wanted = Float8E4m3fn::decode(static_cast<std::uint8_t>(i));
    ASSERT_EQ(std::bit_cast<std::uint32_t>(out[i]), std::bit_cast<std::uint32_t>(wanted)) << i;
  }
}

TEST(Unpack, RoundingToFloat16IsAConversionThereAndBack) {
  std::vector<float> values{0.0F,     -0.0F,    65519.0F,        65520.0F,   -1e30F,
                            INFINITY, 0x1p-25F, 0x1.000002p-25F, 0x1.8p-24F, 1.0F};
  std::mt19937 random(4);
  const auto below = [&](std::uint32_t limit) { return static_cast<std::uint32_t>(random() % limit); };
  for (int i = 0; i < 20'000; ++i) {  // Around the numbers of float16, and ties between them.
    const auto code = static_cast<std::uint16_t>(below(0x8000));
    const auto near = std::bit_cast<std::uint32_t>(Float16::decode(code)) + below(4) * 0x800U + below(3) - 1;
    values.push_back(std::bit_cast<float>(near ^ (below(2) << 31)));
  }
  std::vector<float> rounded = values;
  round_to_float16(rounded);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float wanted = Float16::decode(Float16::encode(values[i]));
    if (std::isnan(wanted)) {
      ASSERT_TRUE(std::isnan(rounded[i]));
    } else {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(rounded[i]), std::bit_cast<std::uint32_t>(wanted)) << values[i];
    }
  }
}

TEST(Unpack, BlocksBeginAtTheirMultiples) {
  for (const std::int64_t block : {1, 5, 16, 32, 100}) {
    for (const std::int64_t first : {0, 3, 16, 31}) {
      std::vector<float> values(150), scales(200), zeros(200);
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
      for (std::size_t i = 0; i < scales.size(); ++i) {
        scales[i] = static_cast<float>(i) + 0.5F;
        zeros[i] = static_cast<float>(2 * i);
      }
      std::vector<float> plain = values;
      apply_blocks(values, first, block, scales, zeros);
      apply_blocks(plain, first, block, scales, {});
      for (std::size_t i = 0; i < values.size(); ++i) {
        const auto entry = static_cast<std::size_t>((first + static_cast<std::int64_t>(i)) / block - first / block);
        ASSERT_EQ(values[i], (static_cast<float>(i) - zeros[entry]) * scales[entry]) << block << ' ' << first;
        ASSERT_EQ(plain[i], static_cast<float>(i) * scales[entry]) << block << ' ' << first;
      }
    }
  }
}

/// The values as unpack.h computes them, one by one.
Bytes rounded_one_by_one(std::vector<float> values, std::int64_t first, const RowScales& scales) {
  apply_blocks(values, first, scales.block, scales.scales, scales.zeros);
  multiply(values, scales.factor);
  if (scales.through_float16) round_to_float16(values);
  std::vector<std::uint16_t> rounded;
  for (const float value : values) rounded.push_back(Bfloat16::encode(value));
  return test::bytes_of(rounded);
}

std::vector<float> scales_of(std::size_t count) {
  std::vector<float> scales;
  std::mt19937 random(5);
  for (std::size_t i = 0; i < count; ++i) scales.push_back(std::ldexp(static_cast<float>(random() % 997), -12));
  scales[1] = NAN, scales[2] = -0x1p-140F, scales[3] = 0x1p126F;
  scales[4] = std::bit_cast<float>(0x7FFFFFFFU), scales[5] = -INFINITY;  // All bits of a NaN.
  return scales;
}

TEST(RoundedRows, HalvesAreWhatUnpackingThemGives) {
  const Bytes codes = random_bytes(300, 6);
  CodeTable table;
  for (std::size_t i = 0; i < 16; ++i) table.numbers[i] = (i < 8 ? 1.0F : -1.0F) * 0.37F * static_cast<float>(i % 8);
  const std::vector<float> scales = scales_of(400), zeros(400, 1.5F);
  for (const bool is_high_first : {false, true}) {
    table.fill_pairs(is_high_first);
    for (const std::int64_t block : {2, 6, 16, 18, 20, 32, 50, 64, 128, 1000}) {
      for (const std::int64_t first : {0, 2, 14, 16, 62, 990}) {
        for (const bool is_plain : {true, false}) {
          const RowScales row{.block = block,
                              .scales = scales,
                              .zeros = is_plain ? std::span<const float>() : std::span<const float>(zeros),
                              .factor = is_plain ? 1.0F : 0.3F,
                              .through_float16 = !is_plain};
          for (const std::size_t count : {2U, 30U, 34U, 600U}) {
            std::vector<float> values(count);
            unpack_bits(codes, 0, 4, table, values);
            Bytes found(2 * count);
            round_halves(codes, first, table, row, found);
            ASSERT_EQ(found, rounded_one_by_one(values, first, row)) << block << ' ' << first << ' ' << count;
          }
        }
      }
    }
  }
}

TEST(RoundedRows, E4m3IsWhatUnpackingItGives) {
  const Bytes codes = random_bytes(1000, 7);
  const std::vector<float> scales = scales_of(1100);
  std::vector<float> values(codes.size());
  unpack_e4m3(codes, values);
  for (const std::int64_t block : {1, 7, 128, 256, 5000}) {
    for (const std::int64_t first : {0, 5, 127, 4999}) {
      const RowScales row{.block = block, .scales = scales, .zeros = {}};
      Bytes found(2 * codes.size());
      round_e4m3(codes, first, row, found);
      ASSERT_EQ(found, rounded_one_by_one(values, first, row)) << block << ' ' << first;
    }
  }
}

}  // namespace
}  // namespace shard
