#include "libshard/compute/pack_again.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "libshard/compute/find_formulas.h"
#include "libshard/core/error.h"
#include "tests/compute/stored.h"

namespace shard {
namespace {

using test::Bytes;
using test::Stored;

constexpr DType kBf16 = DType::kBfloat16, kF8 = DType::kFloat8E4m3fn, kF32 = DType::kFloat32, kF16 = DType::kFloat16,
                kI8 = DType::kInt8, kI32 = DType::kInt32, kI64 = DType::kInt64, kU8 = DType::kUint8;

Bytes noise(std::int64_t count, unsigned seed) {
  std::mt19937 engine(seed);
  Bytes bytes(static_cast<std::size_t>(count));
  for (std::byte& each : bytes) each = static_cast<std::byte>(engine() & 0xFF);
  return bytes;
}

std::vector<float> positive(std::int64_t count, unsigned seed) {
  std::mt19937 engine(seed);
  std::vector<float> floats(static_cast<std::size_t>(count));
  for (float& each : floats) each = static_cast<float>(engine() % 1000 + 1) / 4096.0F;
  return floats;
}

using Make = std::function<Stored()>;

/// Packs all weights of a checkpoint again. \param plain  the checkpoint from which the plain weights are computed
PackedCounts packed_again(const Make& source, const Make& plain, const QuantizationFacts& facts, DType dtype) {
  const std::unique_ptr<Reader> reader = dequantized(plain().reader(), dtype, facts);
  const PackAgain packed(source().reader(), facts);
  PackedCounts sum;
  for (std::size_t i = 0; i < packed.size(); ++i) {
    const Tensor* const tensor = reader->catalog().find(packed.weight(i).name);
    const auto index = static_cast<std::uint32_t>(tensor - reader->catalog().tensors.data());
    reader->locate(std::span(&index, 1));
    sum += packed.compare(i, *reader, index, 3 << 20);
  }
  return sum;
}

PackedCounts packed_again(const Make& source, const QuantizationFacts& facts = {}, DType dtype = kBf16) {
  return packed_again(source, source, facts, dtype);
}

/// Float8 in blocks of 128 x 128, at the edges less; every block has the largest code unless `is_full` is false.
Stored float8_blocks(bool is_full = true) {
  constexpr std::int64_t kRows = 300, kColumns = 200;
  Bytes codes = noise(kRows * kColumns, 1);
  for (std::byte& each : codes) each &= is_full ? std::byte{0xFF} : std::byte{0xF0};
  for (std::int64_t row = 0; is_full && row < kRows; row += 128) {
    for (std::int64_t column = 0; column < kColumns; column += 128) {
      codes[static_cast<std::size_t>(row * kColumns + column)] = std::byte{0x7E};
    }
  }
  Stored stored;
  stored.add("a.weight", kF8, {kRows, kColumns}, codes).add("a.weight_scale_inv", kF32, {3, 2}, positive(6, 2));
  return stored;
}

const QuantizationFacts kBlocks{.is_quantized = true, .schemes = {{.block = {128, 128}}}};

TEST(PackAgain, AllCodesAndScalesOfFullBlocksComeBack) {
  for (const DType dtype : {kBf16, kF16, kF32}) {
    const PackedCounts counts = packed_again([] { return float8_blocks(); }, kBlocks, dtype);
    EXPECT_EQ(counts.modules, 1);
    EXPECT_EQ(counts.codes, 300 * 200);
    EXPECT_EQ(counts.same_codes, counts.codes) << dtype_name(dtype);
    EXPECT_EQ(counts.scales, 6);
    EXPECT_EQ(counts.same_scales, 6) << dtype_name(dtype);
  }
}

TEST(PackAgain, TiedWeightsArePackedOnce) {
  const PackedCounts counts = packed_again(
      [] {
        Stored stored = float8_blocks();
        stored.add_alias("b.weight", "a.weight").add_alias("b.weight_scale_inv", "a.weight_scale_inv");
        return stored;
      },
      kBlocks);
  EXPECT_EQ(counts.modules, 1);
  EXPECT_EQ(counts.same_codes, 300 * 200);
  EXPECT_EQ(counts.same_scales, 6);
}

TEST(PackAgain, ScalesOfBlocksWithoutTheLargestCodeDoNot) {
  const PackedCounts counts = packed_again([] { return float8_blocks(false); }, kBlocks);
  EXPECT_EQ(counts.same_codes, counts.codes);
  EXPECT_EQ(counts.scales, 6);
  EXPECT_EQ(counts.same_scales, 0);
}

TEST(PackAgain, OtherWeightsGiveOtherCodes) {
  const auto of = [](std::byte changed) {
    return [changed] {
      Bytes codes(32 * 2, std::byte{0x77});  // Code 7 of every nibble: 6.
      codes[5] = changed;
      Stored stored;
      stored.add("a.weight_packed", kU8, {1, 64}, codes).add("a.weight_scale", kU8, {1, 4}, Bytes(4, std::byte{120}));
      return stored;
    };
  };
  const PackedCounts counts = packed_again(of(std::byte{0x77}), of(std::byte{0x62}), {}, kBf16);
  EXPECT_EQ(counts.codes, 128);
  EXPECT_EQ(counts.same_codes, 126);
  EXPECT_EQ(counts.same_scales, 4);
}

TEST(PackAgain, WeightsOfANeighboursScaleAreNoticed) {
  const auto of = [](std::uint8_t first, std::uint8_t second) {
    return [first, second] {
      Stored stored;
      stored.add("a.weight_packed", kU8, {2, 16}, Bytes(32, std::byte{0x77}));
      stored.add("a.weight_scale", kU8, {2, 1}, std::vector<std::uint8_t>{first, second});
      return stored;
    };
  };
  const PackedCounts counts = packed_again(of(120, 124), of(124, 120), {}, kBf16);
  EXPECT_LT(counts.same_codes, counts.codes);
  EXPECT_LT(counts.same_scales, counts.scales);
}

TEST(PackAgain, BlocksOfZerosAreNotCounted) {
  const auto make = [] {
    Bytes codes(64, std::byte{0});
    codes[20] = std::byte{0x06};
    Stored stored;
    stored.add("a.weight_packed", kU8, {2, 32}, codes).add("a.weight_scale", kU8, {2, 2}, Bytes(4, std::byte{127}));
    return stored;
  };
  const PackedCounts counts = packed_again(make);
  EXPECT_EQ(counts.same_codes, 128);
  EXPECT_EQ(counts.scales, 1);
  EXPECT_EQ(counts.same_scales, 1);
}

TEST(PackAgain, AnExponentMayHaveBeenRoundedUpOrDown) {
  for (const int largest : {4, 5, 6, 7}) {  // 2, 3, 4 and 6 of at most 6.
    const auto make = [largest] {
      Stored stored;
      stored.add("a.weight_packed", kU8, {1, 16}, Bytes(16, static_cast<std::byte>(largest)));
      stored.add("a.weight_scale", kU8, {1, 1}, Bytes(1, std::byte{100}));
      return stored;
    };
    EXPECT_EQ(packed_again(make).same_scales, largest > 4 ? 1 : 0) << largest;
  }
}

/// Codes of every form, random ones, of which all must come back in float32.
const std::vector<std::pair<const char*, Make>> kForms{
    {"int8",
     [] {
       Stored stored;
       stored.add("a.weight", kI8, {6, 40}, noise(240, 3)).add("a.weight_scale", kF32, {6, 1}, positive(6, 4));
       return stored;
     }},
    {"packed integers with zero points",
     [] {
       Stored stored;
       stored.add("a.weight_packed", kI32, {16, 8}, noise(512, 5))
           .add("a.weight_scale", kF32, {16, 4}, positive(64, 6));
       stored.add("a.weight_shape", kI64, {2}, std::vector<std::int64_t>{16, 64});
       stored.add("a.weight_zero_point", kI32, {2, 4}, noise(32, 7));
       return stored;
     }},
    {"NVFP4",
     [] {
       Stored stored;
       stored.add("a.weight_packed", kU8, {2, 3, 16}, noise(96, 8));
       stored.add("a.weight_scale", kF8, {2, 3, 2}, Bytes(12, std::byte{0x45}));
       stored.add("a.weight_global_scale", kF32, {2}, std::vector<float>{300, 40});
       return stored;
     }},
    {"MXFP4 in blocks, transposed",
     [] {
       Stored stored;
       stored.add("a.w_blocks", kU8, {2, 6, 3, 16}, noise(576, 9));
       Bytes scales = noise(36, 10);
       for (std::byte& each : scales) each = std::byte{120} ^ (each & std::byte{7});
       stored.add("a.w_scales", kU8, {2, 6, 3}, scales);
       return stored;
     }},
    {"AWQ",
     [] {
       Stored stored;
       stored.add("a.qweight", kI32, {64, 3}, noise(768, 11)).add("a.qzeros", kI32, {2, 3}, noise(24, 12));
       stored.add("a.scales", kF16, {2, 24}, std::vector<std::uint16_t>(48, Float16::encode(0.01F)));
       return stored;
     }},
    {"GPTQ with groups in any order",
     [] {
       std::vector<std::int32_t> groups(64);
       for (std::size_t i = 0; i < groups.size(); ++i) groups[i] = static_cast<std::int32_t>(i * 7 % 4);
       Stored stored;
       stored.add("a.qweight", kI32, {8, 16}, noise(512, 13)).add("a.qzeros", kI32, {4, 2}, noise(32, 14));
       stored.add("a.scales", kF32, {4, 16}, positive(64, 15)).add("a.g_idx", kI32, {64}, groups);
       return stored;
     }},
};

TEST(PackAgain, CodesOfEveryFormComeBack) {
  for (const auto& [title, make] : kForms) {
    for (const DType dtype : {kBf16, kF32}) {
      const PackedCounts counts = packed_again(make, {.is_quantized = true}, dtype);
      EXPECT_GT(counts.codes, 0) << title;
      EXPECT_EQ(counts.same_codes, counts.codes) << title << ' ' << dtype_name(dtype);
      EXPECT_GT(counts.scales, 0) << title;
    }
  }
}

TEST(PackAgain, ScalesWithZeroPointsComeBackIfTheRangeIsUsed) {
  for (const bool is_full : {true, false}) {
    const auto make = [is_full] {  // Codes 0 and 15 in turns, or 1 and 14.
      Stored stored;
      stored.add("a.weight_packed", kI32, {8, 4}, Bytes(128, is_full ? std::byte{0xF0} : std::byte{0xE1}));
      stored.add("a.weight_scale", kF32, {8, 2}, positive(16, 16));
      stored.add("a.weight_zero_point", kI32, {1, 2}, Bytes(8, std::byte{0x77}));
      stored.add("a.weight_shape", kI64, {2}, std::vector<std::int64_t>{8, 32});
      return stored;
    };
    const PackedCounts counts = packed_again(make, {.is_quantized = true, .schemes = {{.bits = 4, .group_size = 16}}});
    EXPECT_EQ(counts.same_codes, 256);
    EXPECT_EQ(counts.scales, 16);
    EXPECT_EQ(counts.same_scales, is_full ? 16 : 0);
  }
}

TEST(PackAgain, NumbersThatWereAddedAreSubtracted) {
  const QuantizationFacts facts{.is_quantized = true, .schemes = {{.bits = 4, .group_size = 32}}};
  const auto make = [](float added) {
    return [added] {  // MLX adds the least value of the group, or its largest if the scale is negative.
      std::vector<float> scales = positive(12, 17), biases;
      for (std::size_t i = 0; i < scales.size(); i += 2) scales[i] = -scales[i];
      for (const float scale : scales) biases.push_back(-7.3F * scale + added);
      Stored stored;
      stored.add("a.weight", DType::kUint32, {6, 8}, noise(192, 16));
      stored.add("a.scales", kF32, {6, 2}, scales).add("a.biases", kF32, {6, 2}, biases);
      return stored;
    };
  };
  for (const DType dtype : {kBf16, kF32}) {
    const PackedCounts counts = packed_again(make(0), make(0), facts, dtype);
    EXPECT_EQ(counts.codes, 384);
    EXPECT_EQ(counts.same_codes, 384);
    EXPECT_EQ(counts.scales, 12);
    EXPECT_GT(counts.same_scales, 6);
  }
  EXPECT_LT(packed_again(make(0), make(1), facts, kF32).same_codes, 40);
}

/// compressed-tensors' W4A8 stores 4 bits in a byte.
TEST(PackAgain, ScalesOfNarrowCodesInBytesComeBackIfTheirRangeIsUsed) {
  const auto make = [] {
    Stored stored;
    stored.add("a.weight", kI8, {2, 32}, std::vector<std::int8_t>(64, 7));
    stored.add("a.weight_scale", kF32, {2, 2}, positive(4, 17));
    return stored;
  };
  const auto stating = [](std::vector<QuantizationScheme> schemes) {
    return QuantizationFacts{.is_quantized = true, .schemes = std::move(schemes)};
  };
  EXPECT_EQ(packed_again(make, stating({{.bits = 4, .group_size = 16}})).same_scales, 4);
  EXPECT_EQ(packed_again(make, stating({{.bits = 4, .group_size = 16}, {.bits = 8}})).same_scales, 4);
  EXPECT_EQ(packed_again(make, stating({{.bits = 4, .group_size = 32}, {.bits = 8, .group_size = 16}})).same_scales, 0);
}

TEST(PackAgain, APlainCheckpointIsRefused) {
  Stored stored;
  stored.add("a.weight", kF32, {1}, std::vector<float>{1});
  try {
    PackAgain(stored.reader(), {});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  }
}

}  // namespace
}  // namespace shard
