#include "libshard/compute/requantize.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "libshard/core/error.h"
#include "libshard/exec/small_float.h"
#include "tests/compute/stored.h"
#include "tests/support/expect_error.h"

namespace shard {
namespace {

using test::Bytes;
using test::bytes_of;
using test::code_at;
using test::read_tensor;
using test::Stored;

constexpr DType kF8 = DType::kFloat8E4m3fn, kF32 = DType::kFloat32, kI32 = DType::kInt32, kI64 = DType::kInt64;
constexpr std::int64_t kRows = 3, kColumns = 64, kGroup = 32;

/// 4-bit codes from 0 to 15 in order, which stand for -8 to 7.
Bytes counted_codes() {
  std::vector<std::uint32_t> words(kRows * kColumns / 8);
  for (std::size_t i = 0; i < words.size() * 8; ++i) words[i / 8] |= static_cast<std::uint32_t>(i % 16) << (i % 8 * 4);
  return bytes_of(words);
}

Stored packed_base(const std::vector<std::uint16_t>& scales) {
  Stored base;
  base.add("m.q.weight_packed", kI32, {kRows, kColumns / 8}, counted_codes());
  base.add("m.q.weight_scale", DType::kBfloat16, {kRows, kColumns / kGroup}, scales);
  base.add("m.q.weight_shape", kI64, {2}, std::vector<std::int64_t>{kRows, kColumns});
  base.add("m.o.weight", kF32, {2, 2}, std::vector<float>{1, 2, 3, 4});
  return base;
}

std::vector<std::uint16_t> bfloat16(const std::vector<float>& numbers) {
  std::vector<std::uint16_t> codes;
  for (const float number : numbers) codes.push_back(static_cast<std::uint16_t>(Bfloat16::encode(number)));
  return codes;
}
const std::vector<float> kScales{0.5F, 1, 2, 0.25F, 3, 0};

/// Adds `size` * A to each row, where A[j] = j % 3 - 1.
Stored adapter_of(const std::string& module, std::int64_t rows, std::int64_t columns, float size) {
  std::vector<float> a(static_cast<std::size_t>(columns));
  for (std::size_t j = 0; j < a.size(); ++j) a[j] = static_cast<float>(j % 3) - 1;
  Stored adapter;
  adapter.add(module + ".lora_A.weight", kF32, {1, columns}, a);
  adapter.add(module + ".lora_B.weight", kF32, {rows, 1}, std::vector<float>(static_cast<std::size_t>(rows), size));
  return adapter;
}

std::unique_ptr<Reader> packed_again(Stored base, Stored adapter, const QuantizationFacts& facts = {}) {
  std::vector<Adapter> adapters;
  adapters.push_back({.reader = adapter.reader(),
                      .config = parse_adapter_config(R"({"peft_type": "LORA", "lora_alpha": 1})", "c.json"),
                      .label = "x"});
  std::vector<MergedAdapter> counts;
  std::int64_t packed = 0;
  auto reader = merge_and_requantize(base.reader(), facts, std::move(adapters), counts, packed);
  EXPECT_EQ(counts.at(0).pairs, 1);
  EXPECT_EQ(packed, 1);
  return reader;
}

TEST(Requantize, AChangeOfNothingGivesTheSameBytes) {
  const auto reader = packed_again(packed_base(bfloat16(kScales)), adapter_of("m.q", kRows, kColumns, 0));
  // A scale of 0 cannot express the codes, so they become those of 0.
  Bytes wanted = counted_codes();
  std::fill(wanted.end() - kGroup / 2, wanted.end(), std::byte{0x88});
  EXPECT_EQ(read_tensor(*reader, "m.q.weight_packed"), wanted);
  EXPECT_EQ(read_tensor(*reader, "m.q.weight_scale"), bytes_of(bfloat16(kScales)));
  EXPECT_EQ(read_tensor(*reader, "m.q.weight_shape"), bytes_of(std::vector<std::int64_t>{kRows, kColumns}));
  EXPECT_EQ(reader->catalog().tensors.size(), 4U);
}

class RequantizedGroups : public ::testing::TestWithParam<float> {};

TEST_P(RequantizedGroups, ThatDoNotFitGetTheLeastScale) {
  const float size = GetParam();
  const auto reader = packed_again(packed_base(bfloat16(kScales)), adapter_of("m.q", kRows, kColumns, size));
  const Bytes packed = read_tensor(*reader, "m.q.weight_packed");
  const std::vector<float> scales = test::read_bfloat16(*reader, "m.q.weight_scale");
  for (std::size_t group = 0; group < scales.size(); ++group) {
    std::vector<float> values;
    for (std::size_t i = group * kGroup; i < (group + 1) * kGroup; ++i) {
      const float stored = (static_cast<float>(i % 16) - 8) * kScales[group];
      values.push_back(stored + size * (static_cast<float>(i % kColumns % 3) - 1));
    }
    const auto [least, largest] = std::ranges::minmax(values);
    const bool fits = kScales[group] > 0 && largest / kScales[group] <= 7.5F && least / kScales[group] >= -8.5F;
    const float wanted = fits ? kScales[group] : test::rounded(std::max(largest, -least) / 7.5F);
    EXPECT_EQ(scales[group], wanted) << group;
    for (std::size_t i = 0; i < kGroup; ++i) {
      const float code = std::clamp(std::nearbyint(values[i] / wanted), -8.0F, 7.0F);
      const auto bit = static_cast<std::int64_t>(4 * (group * kGroup + i));
      ASSERT_EQ(static_cast<float>(code_at(packed, bit, 4)) - 8, code) << group << " " << i;
    }
  }
  EXPECT_EQ(scales[4], kScales[4]);  // The change is less than half of its step.
  EXPECT_NE(scales[0], kScales[0]);
}

/// With 0.5, a value in the group of scale 1 is 7.5, which rounds to 8, and the largest code is 7.
INSTANTIATE_TEST_SUITE_P(Sizes, RequantizedGroups, ::testing::Values(1.25F, 0.5F));

TEST(Requantize, AnyRangeIsThatOfTheWhole) {
  const auto reader = packed_again(packed_base(bfloat16(kScales)), adapter_of("m.q", kRows, kColumns, 2));
  const Bytes whole = read_tensor(*reader, "m.q.weight_packed");
  const Tensor& tensor = *reader->catalog().find("m.q.weight_packed");
  const auto bytes = reader->bytes_of(reader->catalog().stored_of(tensor).storage);
  for (std::int64_t begin = 0; begin < std::ssize(whole); begin += 5) {
    const std::int64_t end = std::min(begin + 13, std::ssize(whole));
    Bytes part(static_cast<std::size_t>(end - begin));
    bytes->read_at(begin, part);
    EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + begin)) << begin;
  }
}

TEST(Requantize, Float8BlocksKeepTheScalesThatFit) {
  // Blocks of 2 x 2 in 3 x 4 numbers, all 64: the code 0x68.
  Stored base;
  base.add("m.q.weight", kF8, {3, 4}, std::vector<std::uint8_t>(12, 0x68));
  base.add("m.q.weight_scale_inv", kF32, {2, 2}, std::vector<float>{1, 0.01F, 2, 0.5F});
  const QuantizationFacts facts{.is_quantized = true, .schemes = {{.block = {2, 2}}}};
  const auto reader = packed_again(std::move(base), adapter_of("m.q", 3, 4, 100), facts);
  const Bytes scale_bytes = read_tensor(*reader, "m.q.weight_scale_inv"), codes = read_tensor(*reader, "m.q.weight");
  std::vector<float> scales(4);
  std::memcpy(scales.data(), scale_bytes.data(), scale_bytes.size());
  EXPECT_EQ(scales, (std::vector<float>{1, (0.64F + 100) / 448, 2, 0.5F}));
  for (std::size_t i = 0; i < 12; ++i) {
    const std::size_t row = i / 4, column = i % 4, block = row / 2 * 2 + column / 2;
    const float base_scale = std::array{1.0F, 0.01F, 2.0F, 0.5F}[block];
    const float value = 64 * base_scale + 100 * (static_cast<float>(column % 3) - 1);
    const std::uint32_t code = Float8E4m3fn::encode(std::clamp(value / scales[block], -448.0F, 448.0F));
    EXPECT_EQ(static_cast<std::uint32_t>(codes[i]), code) << i;
  }
}

TEST(Requantize, ScalesThatAreStatedPowersOfTwoStayPowers) {
  Stored base;  // Rows of 64 times their scales.
  base.add("m.q.weight", kF8, {3, 4}, std::vector<std::uint8_t>(12, 0x68));
  base.add("m.q.weight_scale_inv", kF32, {3, 1}, std::vector<float>{1, 0.0625F, 0x1p-6F});
  const QuantizationFacts facts{.is_quantized = true, .schemes = {{.block = {1, 4}, .has_powers = true}}};
  const auto reader = packed_again(std::move(base), adapter_of("m.q", 3, 4, 111), facts);
  // The largest values are 175, 115 and 112. 115 / 448 is more than a quarter, and 112 / 448 is a quarter.
  EXPECT_EQ(read_tensor(*reader, "m.q.weight_scale_inv"), bytes_of(std::vector<float>{1, 0.5F, 0.25F}));
  const Bytes codes = read_tensor(*reader, "m.q.weight");
  EXPECT_EQ(static_cast<std::uint32_t>(codes[6]), Float8E4m3fn::encode(230));
  EXPECT_EQ(static_cast<std::uint32_t>(codes[10]), Float8E4m3fn::encode(448));
}

TEST(Requantize, OtherFormsAreRefusedByName) {
  Stored zeros = packed_base(bfloat16(kScales));
  zeros.add("m.q.weight_zero_point", kI32, {1, kColumns / kGroup}, std::vector<std::int32_t>(2));
  Stored small;
  small.add("m.q.weight_packed", DType::kUint8, {2, 16}, Bytes(32));
  small.add("m.q.weight_scale", DType::kUint8, {2, 1}, Bytes(2, std::byte{127}));
  Stored plain;
  plain.add("m.q.weight", kF32, {2, 2}, std::vector<float>(4));
  const auto refused = [](Stored& base, std::int64_t rows, std::int64_t columns) {
    return test::error_of([&] { packed_again(std::move(base), adapter_of("m.q", rows, columns, 1)); });
  };
  const Error of_zeros = refused(zeros, kRows, kColumns), of_small = refused(small, 2, 32),
              of_plain = refused(plain, 2, 2);
  EXPECT_EQ(of_zeros.code(), ErrorCode::kUnsupported);
  EXPECT_STREQ(of_zeros.what(), "cannot pack 'm.q.weight' again: it has zero points");
  EXPECT_EQ(of_small.code(), ErrorCode::kUnsupported);
  EXPECT_EQ(of_plain.code(), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace shard
