#include "libshard/compute/scaled_tensors.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>

#include "libshard/compute/computed_reader.h"
#include "libshard/compute/find_formulas.h"
#include "libshard/exec/small_float.h"
#include "tests/compute/stored.h"

namespace shard {
namespace {

constexpr std::array kNumbers{0.5F, 1.0F, 1.0078125F, -3.25F, 0.0F, 100.0F};

test::Stored stored_norms() {
  std::vector<std::uint16_t> codes;
  for (const float number : kNumbers) codes.push_back(static_cast<std::uint16_t>(Bfloat16::encode(number)));
  test::Stored stored;
  stored.add("a.norm", DType::kBfloat16, {6}, codes).add("b.other", DType::kBfloat16, {6}, codes);
  stored.add("c.norm", DType::kFloat32, {2, 3}, std::vector<float>(kNumbers.begin(), kNumbers.end()));
  return stored;
}

std::vector<float> floats(const test::Bytes& bytes) {
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

TEST(ScaledTensors, AreMultipliedThenAddedToAndRoundedOnce) {
  test::Stored stored = stored_norms();
  const auto reader = with_scaled_tensors(
      stored.reader(),
      std::array{ScaledTensor{.tensor = 0, .scale = 3, .add = -1}, ScaledTensor{.tensor = 2, .add = 1}}, std::nullopt);
  const std::vector<float> of_a = test::read_bfloat16(*reader, "a.norm"),
                           of_b = test::read_bfloat16(*reader, "b.other");
  const std::vector<float> of_c = floats(test::read_tensor(*reader, "c.norm"));
  for (std::size_t i = 0; i < kNumbers.size(); ++i) {
    EXPECT_EQ(of_a[i], test::rounded(kNumbers[i] * 3 - 1));
    EXPECT_EQ(of_b[i], kNumbers[i]);
    EXPECT_EQ(of_c[i], kNumbers[i] + 1);
  }
}

TEST(ScaledTensors, TheInverseSubtractsThenDivides) {
  test::Stored stored = stored_norms();
  const auto reader = with_scaled_tensors(
      stored.reader(), std::array{ScaledTensor{.tensor = 2, .scale = 3, .add = -1, .is_inverse = true}}, std::nullopt);
  const std::vector<float> found = floats(test::read_tensor(*reader, "c.norm"));
  for (std::size_t i = 0; i < kNumbers.size(); ++i) EXPECT_EQ(found[i], (kNumbers[i] + 1) / 3);
}

TEST(ScaledTensors, KeepTheirIndicesAndMayBeFloat32) {
  test::Stored stored = stored_norms();
  auto inner = stored.reader();
  std::vector<std::string> names;
  for (const Tensor& tensor : inner->catalog().tensors) names.emplace_back(tensor.name);
  const auto reader =
      with_scaled_tensors(std::move(inner), std::array{ScaledTensor{.tensor = 1, .scale = 0.1F}}, DType::kFloat32);
  ASSERT_EQ(reader->catalog().tensors.size(), names.size());
  for (std::size_t i = 0; i < names.size(); ++i) EXPECT_EQ(reader->catalog().tensors[i].name, names[i]);
  EXPECT_EQ(reader->catalog().tensors[1].dtype, DType::kFloat32);
  const std::vector<float> found = floats(test::read_tensor(*reader, "b.other"));
  for (std::size_t i = 0; i < kNumbers.size(); ++i) EXPECT_EQ(found[i], kNumbers[i] * 0.1F);
}

TEST(ScaledTensors, ComputedOnesAreRoundedOnceAfterAllArithmetic) {
  std::vector<std::uint8_t> codes(24);
  for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::uint8_t>(0x31 + 3 * i);
  const std::vector<float> scales{1.01F, 0.7F, 1.3F, 0.11F, 0.37F, 2.9F};
  test::Stored stored;
  stored.add("q.weight", DType::kFloat8E4m3fn, {4, 6}, codes)
      .add("q.weight_scale_inv", DType::kFloat32, {2, 3}, scales);
  const QuantizationFacts facts{.is_quantized = true, .schemes = {{.block = {2, 2}}}};
  auto plain = dequantized(stored.reader(), DType::kBfloat16, facts);
  ComputedReaders computed{&dynamic_cast<const ComputedReader&>(*plain)};
  auto once = with_scaled_tensors(std::move(plain), std::array{ScaledTensor{.tensor = 0, .scale = 3, .add = -1}},
                                  std::nullopt, computed);
  std::vector<float> wanted;
  int differing = 0;  // From the result with two roundings.
  const std::vector<float> found = test::read_bfloat16(*once, "q.weight");
  for (std::size_t i = 0; i < codes.size(); ++i) {
    const float weight = Float8E4m3fn::decode(codes[i]) * scales[i / 12 * 3 + i % 6 / 2];
    wanted.push_back(3 * weight - 1);
    EXPECT_EQ(found[i], test::rounded(wanted[i])) << i;
    differing += found[i] != test::rounded(3 * test::rounded(weight) - 1) ? 1 : 0;
  }
  EXPECT_GT(differing, 0);
  computed.push_back(&dynamic_cast<const ComputedReader&>(*once));
  const auto twice =
      with_scaled_tensors(std::move(once), std::array{ScaledTensor{.scale = 0.7F}}, std::nullopt, computed);
  const std::vector<float> scaled = test::read_bfloat16(*twice, "q.weight");
  for (std::size_t i = 0; i < codes.size(); ++i) EXPECT_EQ(scaled[i], test::rounded(wanted[i] * 0.7F)) << i;
}

TEST(ComputedReader, CountsValuesThatAreTooLargeForFloat16) {
  for (const bool is_float16 : {true, false}) {  // With scales of float16, products round to it in any case.
    test::Stored stored;
    stored.add("a.weight", DType::kInt8, {1, 4}, std::vector<std::int8_t>{127, 1, -128, 0});
    if (is_float16) stored.add("a.weight_scale", DType::kFloat16, {1}, std::vector{Float16::encode(600)});
    if (!is_float16) stored.add("a.weight_scale", DType::kFloat32, {1}, std::vector{600.0F});
    const auto reader = dequantized(stored.reader(), DType::kFloat16, {});
    const auto bytes = reader->bytes_of(reader->catalog().stored_of(reader->catalog().tensors[0]).storage);
    test::Bytes out(8);
    bytes->read_at(0, out);
    EXPECT_EQ(bytes->take_overflows(), 2) << is_float16;
    EXPECT_EQ(bytes->take_overflows(), 0);
  }
}

}  // namespace
}  // namespace shard
