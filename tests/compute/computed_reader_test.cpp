#include "libshard/compute/computed_reader.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <numeric>
#include <random>
#include <thread>

#include "libshard/compute/find_formulas.h"
#include "tests/compute/stored.h"

namespace shard {
namespace {

using test::Bytes;
using test::bytes_of;
using test::code_at;
using test::Numbers;
using test::read_bfloat16;
using test::rounded;
using test::Stored;

constexpr DType kBf16 = DType::kBfloat16, kF8 = DType::kFloat8E4m3fn, kF32 = DType::kFloat32, kF16 = DType::kFloat16,
                kI32 = DType::kInt32, kI64 = DType::kInt64, kU8 = DType::kUint8;
constexpr std::array kE2m1{0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0};

class Random {
 public:
  explicit Random(unsigned seed) : engine_(seed) {}
  /// 0 to `limit` - 1.
  std::uint32_t below(std::uint32_t limit) { return static_cast<std::uint32_t>(engine_() % limit); }
  Bytes bytes(std::int64_t count) {
    Bytes result(static_cast<std::size_t>(count));
    for (std::byte& each : result) each = static_cast<std::byte>(below(256));
    return result;
  }
  /// Without NaN.
  Bytes float8(std::int64_t count) {
    Bytes result = bytes(count);
    for (std::byte& each : result) {
      if ((each & std::byte{0x7F}) == std::byte{0x7F}) each = std::byte{0x30};
    }
    return result;
  }
  std::vector<float> floats(std::int64_t count) {
    std::vector<float> result(static_cast<std::size_t>(count));
    for (float& each : result) each = static_cast<float>(below(1000) + 1) / 4096.0F;
    return result;
  }

 private:
  std::mt19937 engine_;
};

double float8(std::byte code) { return Float8E4m3fn::decode(static_cast<std::uint8_t>(code)); }

std::unique_ptr<Reader> opened(Stored& stored, const QuantizationFacts& facts = {}, DType dtype = kBf16) {
  return dequantized(stored.reader(), dtype, facts);
}

/// \param expected  of the row-major index
template <class Expected>
void expect_all(Reader& reader, const std::string& name, const Expected& expected) {
  const std::vector<float> found = read_bfloat16(reader, name);
  for (std::size_t i = 0; i < found.size(); ++i) {
    ASSERT_EQ(found[i], rounded(expected(static_cast<std::int64_t>(i)))) << name << " element " << i;
  }
}

TEST(Dequantized, Float8BlocksAtTheEdgeAreShort) {
  Random random(1);
  constexpr std::int64_t kRows = 300, kColumns = 200;
  const Bytes codes = random.float8(kRows * kColumns);
  const std::vector<float> scales = random.floats(3 * 2);
  Stored stored;
  stored.add("a.weight", kF8, {kRows, kColumns}, codes).add("a.weight_scale_inv", kF32, {3, 2}, scales);
  stored.add("norm.weight", kF32, {2}, std::vector<float>{1, 2});
  const auto reader = opened(stored, {.is_quantized = true, .schemes = {{.block = {128, 128}}}});
  EXPECT_EQ(reader->catalog().tensors.size(), 2U);
  EXPECT_EQ(reader->catalog().find("norm.weight")->dtype, kF32);
  expect_all(*reader, "a.weight", [&](std::int64_t i) {
    const std::int64_t row = i / kColumns, column = i % kColumns;
    return float8(codes[static_cast<std::size_t>(i)]) * scales[static_cast<std::size_t>(row / 128 * 2 + column / 128)];
  });
}

TEST(Dequantized, CodesMayBeCutIntoChunksOfAnyShape) {
  Random random(2);
  const Bytes codes = random.float8(64 * 96);
  const std::vector<float> scales = random.floats(64);
  for (const auto& [rows, columns] : {std::pair{64, 96}, {16, 96}, {64, 32}, {20, 40}}) {
    Stored stored;
    stored.add_cut("a.weight", kF8, {64, 96}, codes, rows, columns).add("a.weight_scale", kF32, {64, 1}, scales);
    const auto reader = opened(stored);
    expect_all(*reader, "a.weight", [&](std::int64_t i) {
      return float8(codes[static_cast<std::size_t>(i)]) * scales[static_cast<std::size_t>(i / 96)];
    });
  }
}

TEST(Dequantized, Nvfp4DividesByTheGlobalScale) {
  const Bytes codes = bytes_of(std::vector<std::uint8_t>{0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE});
  const Bytes scale{std::byte{Float8E4m3fn::encode(0.3125F)}};
  Stored stored;
  stored.add("a.weight_packed", kU8, {1, 8}, codes).add("a.weight_scale", kF8, {1, 1}, scale);
  stored.add("a.weight_global_scale", kF32, {1}, std::vector<float>{300});
  stored.add("a.input_global_scale", kF32, {1}, std::vector<float>{7});
  const auto reader = opened(stored);
  ASSERT_EQ(reader->catalog().tensors.size(), 1U);
  const std::vector<float> positive{0,
                                    0.000522613525390625F,
                                    0.00104522705078125F,
                                    0.00156402587890625F,
                                    0.0020904541015625F,
                                    0.0031280517578125F,
                                    0.004180908203125F,
                                    0.006256103515625F};
  std::vector<float> wanted = positive;
  for (const float each : positive) wanted.push_back(-each);
  const std::vector<float> found = read_bfloat16(*reader, "a.weight");
  EXPECT_EQ(found, wanted);
  EXPECT_TRUE(std::signbit(found[8]));
}

TEST(Dequantized, ModelOptMultipliesByTheSecondScale) {
  Random random(3);
  const Bytes codes = random.bytes(4 * 16), scales = random.float8(4 * 2);
  Stored stored;
  stored.add("a.weight", kU8, {4, 16}, codes).add("a.weight_scale", kF8, {4, 2}, scales);
  stored.add("a.weight_scale_2", kF32, {}, std::vector<float>{0.0123F})
      .add("a.input_scale", kF32, {}, std::vector<float>{1});
  stored.add("a.k_scale", kF32, {}, std::vector<float>{1}).add("a.bias", kF32, {4}, std::vector<float>{1, 2, 3, 4});
  const auto reader = opened(stored);
  ASSERT_EQ(reader->catalog().tensors.size(), 2U);
  EXPECT_EQ(reader->catalog().tensors[0].name, "a.bias");
  expect_all(*reader, "a.weight", [&](std::int64_t i) {
    const float scale = static_cast<float>(float8(scales[static_cast<std::size_t>(i / 16)])) * 0.0123F;
    return static_cast<float>(kE2m1[code_at(codes, 4 * i, 4)]) * scale;
  });
}

TEST(Dequantized, ExpertsBehindOneAnotherHaveTheirOwnGlobalScales) {
  Random random(4);
  const Bytes codes = random.bytes(3 * 4 * 16), scales = random.float8(3 * 4 * 2);
  const std::vector<float> globals{100, 200, 300};
  Stored stored;
  stored.add("a.weight_packed", kU8, {3, 4, 16}, codes).add("a.weight_scale", kF8, {3, 4, 2}, scales);
  stored.add("a.weight_global_scale", kF32, {3, 1, 1}, globals);
  const auto reader = opened(stored);
  expect_all(*reader, "a.weight", [&](std::int64_t i) {
    const float scale = static_cast<float>(float8(scales[static_cast<std::size_t>(i / 16)])) /
                        globals[static_cast<std::size_t>(i / 128)];
    return static_cast<float>(kE2m1[code_at(codes, 4 * i, 4)]) * scale;
  });
}

TEST(Dequantized, BlocksOfGptOssAreTransposed) {
  Random random(5);
  constexpr std::int64_t kExperts = 2, kRows = 6, kGroups = 3, kColumns = 32 * kGroups;
  const Bytes codes = random.bytes(kExperts * kRows * kGroups * 16);
  Bytes scales = random.bytes(kExperts * kRows * kGroups);
  for (std::byte& each : scales) each = std::byte{120} ^ (each & std::byte{7});
  Stored stored;
  stored.add("x.down_proj_blocks", kU8, {kExperts, kRows, kGroups, 16}, codes);
  stored.add("x.down_proj_scales", kU8, {kExperts, kRows, kGroups}, scales);
  stored.add("x.down_proj_bias", kF32, {2}, std::vector<float>{1, 2});
  const auto reader = opened(stored);
  EXPECT_EQ(
      Numbers(reader->catalog().find("x.down_proj")->shape.begin(), reader->catalog().find("x.down_proj")->shape.end()),
      (Numbers{kExperts, kColumns, kRows}));
  EXPECT_NE(reader->catalog().find("x.down_proj_bias"), nullptr);
  expect_all(*reader, "x.down_proj", [&](std::int64_t i) {
    const std::int64_t expert = i / (kColumns * kRows), column = i / kRows % kColumns, row = i % kRows;
    const std::int64_t at = (expert * kRows + row) * kColumns + column;
    return std::ldexp(kE2m1[code_at(codes, 4 * at, 4)],
                      static_cast<int>(scales[static_cast<std::size_t>(at / 32)]) - 127);
  });
}

/// Codes of rows of `words` words each, and zero points that are packed down the rows.
void expect_packed_ints(int bits, std::int64_t columns, bool is_symmetric, bool has_facts) {
  Random random(static_cast<unsigned>(bits));
  constexpr std::int64_t kRows = 13, kGroup = 20;
  const std::int64_t words = ceil_div(columns * bits, 32), groups = columns / kGroup;
  const std::int64_t zero_words = ceil_div(kRows * bits, 32);
  const Bytes codes = random.bytes(kRows * words * 4), zeros = random.bytes(zero_words * groups * 4);
  const std::vector<float> scales = random.floats(kRows * groups);
  Stored stored;
  stored.add("a.weight_packed", kI32, {kRows, words}, codes).add("a.weight_scale", kF32, {kRows, groups}, scales);
  stored.add("a.weight_shape", kI64, {2}, std::vector<std::int64_t>{kRows, columns});
  if (!is_symmetric) stored.add("a.weight_zero_point", kI32, {zero_words, groups}, zeros);
  QuantizationFacts facts{.is_quantized = true, .schemes = {{.bits = bits}}};
  if (has_facts) facts.schemes = {{.bits = 8, .group_size = 128}, {.bits = bits, .group_size = kGroup}};
  const auto reader = opened(stored, facts);
  expect_all(*reader, "a.weight", [&](std::int64_t i) {
    const std::int64_t row = i / columns, column = i % columns, group = column / kGroup;
    const double code = code_at(codes, row * words * 32 + column * bits, bits);
    double zero = 1 << (bits - 1);
    if (!is_symmetric) {
      std::uint32_t packed = 0;
      for (int bit = 0; bit < bits; ++bit) {
        const std::int64_t at = row * bits + bit;
        packed |= code_at(zeros, (at / 32 * groups + group) * 32 + at % 32, 1) << bit;
      }
      zero = packed;
    }
    return (code - zero) * static_cast<double>(scales[static_cast<std::size_t>(row * groups + group)]);
  });
}

TEST(Dequantized, PackedIntegersOfAnyWidth) {
  for (int bits = 1; bits <= 8; ++bits) {
    for (const bool is_symmetric : {true, false}) {
      for (const bool has_facts : {true, false}) {
        SCOPED_TRACE(::testing::Message() << bits << " bits, symmetric " << is_symmetric << ", facts " << has_facts);
        expect_packed_ints(bits, 40, is_symmetric, has_facts);
        expect_packed_ints(bits, 160, is_symmetric, has_facts);
      }
    }
  }
}

TEST(Dequantized, ZeroPointsOfPackedIntegersMayBeWholeBytes) {
  Random random(9);
  constexpr std::int64_t kRows = 5, kColumns = 64, kGroup = 32;
  const Bytes codes = random.bytes(kRows * kColumns / 2);
  const std::vector<float> scales = random.floats(kRows * 2);
  std::vector<std::int8_t> zeros(kRows * 2);
  for (std::int8_t& each : zeros) each = static_cast<std::int8_t>(static_cast<int>(random.below(16)) - 8);
  Stored stored;
  stored.add("a.weight_packed", kI32, {kRows, kColumns / 8}, codes).add("a.weight_scale", kF32, {kRows, 2}, scales);
  stored.add("a.weight_zero_point", DType::kInt8, {kRows, 2}, zeros);
  stored.add("a.weight_shape", kI64, {2}, std::vector<std::int64_t>{kRows, kColumns});
  expect_all(*opened(stored), "a.weight", [&](std::int64_t i) {
    const auto group = static_cast<std::size_t>(i / kGroup);
    return (static_cast<double>(code_at(codes, 4 * i, 4)) - 8 - zeros[group]) * static_cast<double>(scales[group]);
  });
}

TEST(Dequantized, ColumnsMayHaveGroupsInAnyOrder) {
  Random random(6);
  const Bytes codes = random.bytes(4 * 16);
  const std::vector<float> scales = random.floats(4 * 2);
  std::vector<std::int32_t> groups(32);
  for (std::int32_t& each : groups) each = static_cast<std::int32_t>(random.below(2));
  Stored stored;
  stored.add("a.weight_packed", kI32, {4, 4}, codes).add("a.weight_scale", kF32, {4, 2}, scales);
  stored.add("a.weight_shape", kI64, {2}, std::vector<std::int64_t>{4, 32}).add("a.weight_g_idx", kI32, {32}, groups);
  const auto reader = opened(stored, {.is_quantized = true, .schemes = {{.bits = 4, .group_size = 16}}});
  ASSERT_EQ(reader->catalog().tensors.size(), 1U);
  expect_all(*reader, "a.weight", [&](std::int64_t i) {
    const double scale = scales[static_cast<std::size_t>(i / 32 * 2 + groups[static_cast<std::size_t>(i % 32)])];
    return (static_cast<double>(code_at(codes, 4 * i, 4)) - 8) * scale;
  });
}

/// Rounds to float16 first, as the tools do that compute in the dtype of the scales.
float through_half(float value) { return Float16::decode(Float16::encode(value)); }

TEST(Dequantized, BytesRoundToTheDtypeOfTheirScales) {
  std::vector<std::int8_t> codes(256);
  std::iota(codes.begin(), codes.end(), std::int8_t{-128});
  const std::uint16_t scale = Float16::encode(0.0137F);
  for (const bool is_float16 : {true, false}) {
    Stored stored;
    stored.add("a.weight", DType::kInt8, {1, 256}, codes);
    if (is_float16) stored.add("a.weight_scale", kF16, {1}, std::vector<std::uint16_t>{scale});
    if (!is_float16) stored.add("a.weight_scale", kF32, {1}, std::vector<float>{Float16::decode(scale)});
    const std::vector<float> values = read_bfloat16(*opened(stored), "a.weight");
    int twice_rounded = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const float exact = static_cast<float>(codes[i]) * Float16::decode(scale), half = through_half(exact);
      EXPECT_EQ(values[i], rounded(is_float16 ? half : exact)) << i;
      twice_rounded += rounded(half) != rounded(exact) ? 1 : 0;
    }
    EXPECT_GT(twice_rounded, 0);
  }
}

TEST(Dequantized, AwqIsTransposedAndRoundsToTheDtypeOfItsScales) {
  Random random(7);
  constexpr std::int64_t kIn = 64, kOut = 24, kGroup = 32;
  constexpr std::array<int, 8> kColumnOf{0, 2, 4, 6, 1, 3, 5, 7};
  const Bytes codes = random.bytes(kIn * kOut / 2), zeros = random.bytes(kIn / kGroup * kOut / 2);
  std::vector<std::uint16_t> scales(kIn / kGroup * kOut);
  for (std::uint16_t& each : scales) each = Float16::encode(static_cast<float>(random.below(1000)) / 7919.0F);
  const auto code = [&](const Bytes& from, std::int64_t row, std::int64_t column) {
    const auto nibble = std::ranges::find(kColumnOf, static_cast<int>(column % 8)) - kColumnOf.begin();
    return static_cast<float>(code_at(from, (row * kOut / 8 + column / 8) * 32 + 4 * nibble, 4));
  };
  Stored stored;
  stored.add("a.qweight", kI32, {kIn, kOut / 8}, codes).add("a.qzeros", kI32, {kIn / kGroup, kOut / 8}, zeros);
  stored.add("a.scales", kF16, {kIn / kGroup, kOut}, scales);
  const auto reader = opened(stored);
  expect_all(*reader, "a.weight", [&](std::int64_t i) {
    const std::int64_t out = i / kIn, in = i % kIn;
    const float scale = Float16::decode(scales[static_cast<std::size_t>(in / kGroup * kOut + out)]);
    return through_half((code(codes, in, out) - code(zeros, in / kGroup, out)) * scale);
  });
}

/// Zero points of GPTQ's first version as those of the second: whole words plus 1 in each code. Codes that may extend
/// over two words are left.
Bytes plus_ones(Bytes words, int bits) {
  constexpr std::array<std::uint32_t, 9> kOnes{0, 0, 0x55555555, 0, 0x11111111, 0, 0, 0, 0x01010101};
  for (std::size_t i = 0; i < words.size(); i += 4) {
    std::uint32_t word = 0;
    std::memcpy(&word, &words[i], 4);
    word += kOnes[static_cast<std::size_t>(bits)];
    std::memcpy(&words[i], &word, 4);
  }
  return words;
}

void expect_gptq(int bits, bool is_second_version, bool is_in_order) {
  Random random(static_cast<unsigned>(bits));
  constexpr std::int64_t kIn = 96, kOut = 32, kGroups = 3;
  const std::int64_t words = kIn * bits / 32, zero_words = kOut * bits / 32;
  const Bytes codes = random.bytes(words * kOut * 4), zeros = random.bytes(kGroups * zero_words * 4);
  const Bytes plain = is_second_version ? zeros : plus_ones(zeros, bits);
  const std::uint32_t added = is_second_version || 32 % bits == 0 ? 0 : 1;
  const std::vector<float> scales = random.floats(kGroups * kOut);
  std::vector<std::int32_t> groups(kIn);
  for (std::int64_t i = 0; i < kIn; ++i) {
    groups[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(is_in_order ? i / 32 : random.below(kGroups));
  }
  Stored stored;
  stored.add("a.qweight", kI32, {words, kOut}, codes).add("a.qzeros", kI32, {kGroups, zero_words}, zeros);
  stored.add("a.scales", kF32, {kGroups, kOut}, scales).add("a.g_idx", kI32, {kIn}, groups);
  const auto reader = opened(stored, {.is_quantized = true,
                                      .method = bits >= 5 && bits <= 7 ? "auto-round" : "",
                                      .schemes = {{.format = is_second_version ? "gptq_v2" : "gptq"}}});
  ASSERT_EQ(reader->catalog().tensors.size(), 1U);
  expect_all(*reader, "a.weight", [&](std::int64_t i) {
    const std::int64_t out = i / kIn, in = i % kIn, group = groups[static_cast<std::size_t>(in)];
    std::uint32_t code = 0;
    for (int bit = 0; bit < bits; ++bit) {
      const std::int64_t at = in * bits + bit;
      code |= code_at(codes, (at / 32 * kOut + out) * 32 + at % 32, 1) << bit;
    }
    const std::uint32_t stored_zero = code_at(plain, group * zero_words * 32 + out * bits, bits);
    const double zero = (stored_zero + added) & ((1U << bits) - 1);
    return (code - zero) * static_cast<double>(scales[static_cast<std::size_t>(group * kOut + out)]);
  });
}

TEST(Dequantized, GptqOfBothVersionsAndAnyOrderOfGroups) {
  for (const int bits : {2, 3, 4, 5, 6, 7, 8}) {
    for (const bool is_second_version : {false, true}) {
      for (const bool is_in_order : {false, true}) {
        SCOPED_TRACE(::testing::Message() << bits << " bits, v2 " << is_second_version << ", in order " << is_in_order);
        expect_gptq(bits, is_second_version, is_in_order);
      }
    }
  }
}

/// The weights of 32 codes of 9 for each of 8 columns, with these stored zero points.
std::vector<float> with_zero_points(std::uint32_t zeros) {
  Stored stored;
  stored.add("a.qweight", kI32, {4, 8}, Bytes(128, std::byte{0x99}));
  stored.add("a.qzeros", kI32, {1, 1}, std::vector<std::uint32_t>{zeros});
  stored.add("a.scales", kF32, {1, 8}, std::vector<float>(8, 1));
  const auto reader = opened(stored, {.is_quantized = true, .schemes = {{.format = "gptq", .bits = 4}}});
  std::vector<float> columns;
  const std::vector<float> all = read_bfloat16(*reader, "a.weight");  // [8, 32]
  for (std::size_t i = 0; i < all.size(); i += 32) columns.push_back(all[i]);
  return columns;
}

TEST(Dequantized, AZeroPointOfZeroBorrowedFromTheNextOneOfItsWord) {
  EXPECT_EQ(with_zero_points(0x77777777), (std::vector<float>{1, 1, 1, 1, 1, 1, 1, 1}));
  // 0x88888800 - 0x11111111: the zero points 0, 0, 8, ..., 8.
  EXPECT_EQ(with_zero_points(0x777776EF), (std::vector<float>{9, 9, 1, 1, 1, 1, 1, 1}));
  // 0x08888888 - 0x11111111: nothing follows the last one.
  EXPECT_EQ(with_zero_points(0xF7777777), (std::vector<float>{1, 1, 1, 1, 1, 1, 1, 9}));
}

constexpr std::int64_t kUnevenIn = 320, kUnevenOut = 8;

/// Codes of GPTQ that all stand for 1, and scales of 1, 2 and 4 for three groups. \param index  empty: none is stored
Stored uneven_gptq(const std::vector<std::int32_t>& index) {
  std::vector<float> scales;
  for (const float scale : {1.0F, 2.0F, 4.0F}) scales.insert(scales.end(), kUnevenOut, scale);
  Stored stored;
  stored.add("a.qweight", kI32, {kUnevenIn / 8, kUnevenOut}, Bytes(kUnevenIn * kUnevenOut / 2, std::byte{0x99}));
  stored.add("a.qzeros", kI32, {3, 1}, Bytes(12, std::byte{0x77})).add("a.scales", kF32, {3, kUnevenOut}, scales);
  if (!index.empty()) stored.add("a.g_idx", kI32, {kUnevenIn}, index);
  return stored;
}

/// Groups of 128, 128 and 64 inputs.
void expect_uneven(Reader& reader) {
  expect_all(reader, "a.weight", [](std::int64_t i) {
    const std::int64_t in = i % kUnevenIn;
    return in < 128 ? 1.0 : in < 256 ? 2.0 : 4.0;
  });
}

const QuantizationFacts kGroupsOf128{.is_quantized = true, .schemes = {{.bits = 4, .group_size = 128}}};

TEST(Dequantized, TheLastGroupOfAStatedSizeMayBeShort) {
  for (const std::vector<std::int32_t>& index : {std::vector<std::int32_t>(), std::vector(kUnevenIn, -1)}) {
    Stored stored = uneven_gptq(index);
    expect_uneven(*opened(stored, kGroupsOf128));
    // AutoRound repeats only the numbers of a module that differ.
    expect_uneven(*opened(stored, {.is_quantized = true, .schemes = {{.bits = 8, .group_size = 128}, {.bits = 4}}}));
  }
  std::vector<float> scales;
  for (int row = 0; row < kUnevenOut; ++row) scales.insert(scales.end(), {1, 2, 4});
  Stored packed;
  packed.add("a.weight_packed", kI32, {kUnevenOut, kUnevenIn / 8}, Bytes(kUnevenIn * kUnevenOut / 2, std::byte{0x99}));
  packed.add("a.weight_scale", kF32, {kUnevenOut, 3}, scales);
  packed.add("a.weight_shape", kI64, {2}, std::vector<std::int64_t>{kUnevenOut, kUnevenIn});
  expect_uneven(*opened(packed, kGroupsOf128));
}

TEST(Dequantized, TheStatedShapeDecidesIfSeveralSchemesFit) {
  const QuantizationFacts facts{.is_quantized = true,
                                .schemes = {{.bits = 4, .group_size = 8}, {.bits = 8, .group_size = 4}}};
  for (const bool has_shape : {true, false}) {
    Stored stored;
    stored.add("a.weight_packed", kI32, {1, 2}, Bytes(8, std::byte{0x81}));
    stored.add("a.weight_scale", kF32, {1, 2}, std::vector<float>{1, 2});
    if (has_shape) stored.add("a.weight_shape", kI64, {2}, std::vector<std::int64_t>{1, 8});
    if (has_shape) {
      EXPECT_EQ(read_bfloat16(*opened(stored, facts), "a.weight"), (std::vector<float>{1, 1, 1, 1, 2, 2, 2, 2}));
    } else {
      EXPECT_THROW(opened(stored, facts), Error);
    }
  }
}

TEST(Dequantized, AGroupIndexNeedsNoStatedSizeUnlessItIsNotFilledIn) {
  std::vector<std::int32_t> index(kUnevenIn);
  for (std::size_t i = 0; i < index.size(); ++i) index[i] = static_cast<std::int32_t>(i / 128);
  Stored filled = uneven_gptq(index);
  expect_uneven(*opened(filled, {.is_quantized = true}));
  Stored unset = uneven_gptq(std::vector(kUnevenIn, -1));
  EXPECT_THROW(test::read_tensor(*opened(unset, {.is_quantized = true}), "a.weight"), Error);
}

TEST(Dequantized, AGroupIndexThatIsPartlyFilledInIsRefused) {
  for (const std::size_t at : {std::size_t{0}, std::size_t{319}}) {
    std::vector<std::int32_t> few(kUnevenIn, -1), most(kUnevenIn, 0);
    few[at] = 0, most[at] = -1;
    for (const std::vector<std::int32_t>& index : {few, most}) {
      Stored stored = uneven_gptq(index);
      EXPECT_THROW(test::read_tensor(*opened(stored, kGroupsOf128), "a.weight"), Error) << at;
    }
  }
}

TEST(Dequantized, AGroupThatFitsOnlyInItsLowerBitsIsRefused) {
  Stored stored = uneven_gptq({});
  stored.add("a.g_idx", kI64, {kUnevenIn}, std::vector<std::int64_t>(kUnevenIn, std::int64_t{1} << 32));
  EXPECT_THROW(test::read_tensor(*opened(stored, kGroupsOf128), "a.weight"), Error);
}

/// Tensors of several tiles, of which each stored byte is to be read once.
TEST(ComputedReader, ReadsEachStoredByteOnce) {
  Random random(8);
  constexpr std::int64_t kIn = 1024, kOut = 3000;
  const Bytes codes = random.bytes(kIn * kOut / 2);
  std::vector<std::uint16_t> ones(kIn / 128 * kOut, Float16::encode(1));
  std::vector<std::int32_t> groups(kIn);
  for (std::int64_t i = 0; i < kIn; ++i) groups[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(i / 128);
  const std::int64_t beside = kIn / 128 * kOut * 2 + kIn / 128 * kOut / 2;
  for (const bool is_awq : {false, true}) {
    Stored stored;
    stored.add("a.qweight", kI32, is_awq ? Numbers{kIn, kOut / 8} : Numbers{kIn / 8, kOut}, codes);
    stored.add("a.qzeros", kI32, {kIn / 128, kOut / 8}, random.bytes(kIn / 128 * kOut / 2));
    stored.add("a.scales", kF16, {kIn / 128, kOut}, ones);
    auto inner = stored.reader();
    const test::StoredReader& counted = *inner;
    const auto reader = dequantized(std::move(inner), kBf16, {.is_quantized = true});
    const auto bytes = reader->bytes_of(reader->catalog().stored_of(reader->catalog().tensors[0]).storage);
    Bytes out(300 << 10);
    for (std::int64_t at = 0; at < bytes->size(); at += std::ssize(out)) {
      const auto count = std::min<std::int64_t>(std::ssize(out), bytes->size() - at);
      bytes->read_at(at, std::span(out).first(static_cast<std::size_t>(count)));
    }
    EXPECT_GE(counted.bytes_read(), std::ssize(codes)) << is_awq;
    EXPECT_LE(counted.bytes_read(), std::ssize(codes) + 2 * beside) << is_awq;
  }
}

TEST(ComputedReader, AnyRangeOfBytesIsThatOfTheWhole) {
  Random random(9);
  const Bytes codes = random.bytes(40 * 60 / 2);
  Stored stored;
  stored.add("a.weight_packed", kU8, {40, 30}, codes);
  stored.add("a.weight_scale", kU8, {40, 2}, std::vector<std::uint8_t>(80, 128));
  const auto reader = opened(stored);
  const Bytes whole = test::read_tensor(*reader, "a.weight");
  const auto bytes = reader->bytes_of(reader->catalog().stored_of(reader->catalog().tensors[0]).storage);
  for (int i = 0; i < 500; ++i) {
    const std::size_t begin = random.below(static_cast<std::uint32_t>(whole.size()));
    const std::size_t count =
        random.below(static_cast<std::uint32_t>(std::min<std::size_t>(whole.size() - begin, 300)) + 1);
    Bytes part(count);
    bytes->read_at(static_cast<std::int64_t>(begin), part);
    ASSERT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + static_cast<std::ptrdiff_t>(begin)))
        << begin << ' ' << count;
  }
  Bytes past(2);
  EXPECT_THROW(bytes->read_at(bytes->size() - 1, past), Error);
}

TEST(ComputedReader, ContainersAreThoseOfItsReaders) {
  Stored stored;
  stored.add("a.weight", kF8, {2, 2}, Bytes(4)).add("a.weight_scale", kF32, {1}, std::vector<float>{2});
  test::NoReport report;
  EXPECT_TRUE(opened(stored)->check_container(0, report));
}

TEST(ComputedReader, ThreadsMayShareAView) {
  Random random(10);
  const Bytes codes = random.float8(512 * 512);
  Stored stored;
  stored.add("a.weight", kF8, {512, 512}, codes).add("a.weight_scale", kF32, {1}, std::vector<float>{2});
  const auto reader = opened(stored);
  const Bytes whole = test::read_tensor(*reader, "a.weight");
  const auto bytes = reader->bytes_of(reader->catalog().stored_of(reader->catalog().tensors[0]).storage);
  std::vector<Bytes> parts(4, Bytes(whole.size() / 4));
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      threads.emplace_back([&, i] { bytes->read_at(static_cast<std::int64_t>(i * parts[i].size()), parts[i]); });
    }
  }
  Bytes joined;
  for (const Bytes& part : parts) joined.insert(joined.end(), part.begin(), part.end());
  EXPECT_EQ(joined, whole);
}

/// The boxes of a tensor, as offsets and sizes.
std::vector<Numbers> boxes_of(const Reader& reader, const std::string& name) {
  std::vector<Numbers> boxes;
  for (const Chunk& chunk : reader.catalog().chunks_of(*reader.catalog().find(name))) {
    boxes.emplace_back(chunk.offsets.begin(), chunk.offsets.end());
    boxes.back().insert(boxes.back().end(), chunk.sizes.begin(), chunk.sizes.end());
  }
  return boxes;
}

TEST(ComputedReader, AWeightIsShardedLikeItsCodes) {
  Random random(11);
  const Bytes codes = random.bytes(8 * 8);
  Stored stored;
  stored.add_cut("a.weight_packed", kU8, {8, 8}, codes, 4, 8);
  stored.add("a.weight_scale", kF8, {8, 1}, random.float8(8));
  stored.add("a.weight_global_scale", kF32, {1}, std::vector<float>{3});
  stored.add_cut("b.weight_packed", kU8, {8, 8}, codes, 8, 4);
  stored.add("b.weight_scale", kF8, {8, 1}, random.float8(8));
  stored.add("b.weight_global_scale", kF32, {1}, std::vector<float>{3});
  const auto reader = opened(stored);
  EXPECT_EQ(boxes_of(*reader, "a.weight"), (std::vector<Numbers>{{0, 0, 4, 16}, {4, 0, 4, 16}}));
  EXPECT_EQ(boxes_of(*reader, "b.weight"), (std::vector<Numbers>{{0, 0, 8, 8}, {0, 8, 8, 8}}));
}

TEST(ComputedReader, WeightsWithTheSameCodesAndScalesAreTied) {
  Random random(12);
  Stored stored;
  stored.add("a.weight", kF8, {4, 4}, random.float8(16)).add("a.weight_scale", kF32, {1}, std::vector<float>{2});
  stored.add_alias("b.weight", "a.weight").add_alias("b.weight_scale", "a.weight_scale");
  stored.add_alias("c.weight", "a.weight").add("c.weight_scale", kF32, {1}, std::vector<float>{3});
  const auto reader = opened(stored);
  ASSERT_EQ(reader->catalog().tensors.size(), 3U);
  EXPECT_EQ(reader->catalog().tensors[1].alias_of, 0U);
  EXPECT_EQ(reader->catalog().tensors[2].alias_of, kNoIndex);
  EXPECT_EQ(read_bfloat16(*reader, "b.weight"), read_bfloat16(*reader, "a.weight"));
}

TEST(ComputedReader, SumsOverSeveralReadersAreInTheirOrder) {
  std::vector<std::unique_ptr<Reader>> readers;
  for (const float factor : {1.0F, 3.0F}) {
    Stored stored;
    stored.add("w", kF32, {2, 2}, std::vector<float>{factor, 2 * factor, 3 * factor, 4 * factor});
    readers.push_back(stored.reader());
  }
  WeightedSum sum{.terms = {}, .constant = 0.5F};
  for (const std::uint32_t reader : {0U, 1U}) {
    sum.terms.push_back(
        {reader == 0 ? 0.25F : 0.75F, std::make_shared<TensorExpression>(TensorExpression{Leaf{0, reader}})});
  }
  const Formula formula{.name = "w", .dtype = kF32, .shape = {2, 2}, .strides = {1, 2}, .value = {sum}};
  ComputedReader reader(std::move(readers), {.formulas = {formula}, .dropped = {0}});
  EXPECT_EQ(reader.catalog().files.size(), 2U);
  EXPECT_EQ(test::read_tensor(reader, "w"), bytes_of(std::vector<float>{3, 8, 5.5F, 10.5F}));
}

}  // namespace
}  // namespace shard
