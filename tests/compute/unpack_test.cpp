#include "libshard/compute/unpack.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>
#include <vector>

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

}  // namespace
}  // namespace shard
