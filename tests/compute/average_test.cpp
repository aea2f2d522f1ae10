#include "libshard/compute/average.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "libshard/compute/computed_reader.h"
#include "libshard/compute/find_formulas.h"
#include "tests/compute/stored.h"
#include "tests/support/expect_error.h"

namespace shard {
namespace {

using test::bytes_of;
using test::Numbers;
using test::read_tensor;
using test::Stored;

constexpr DType kBf16 = DType::kBfloat16, kF32 = DType::kFloat32, kF16 = DType::kFloat16, kI64 = DType::kInt64;

std::unique_ptr<Reader> average_of(std::vector<Stored> sources, std::vector<float> weights = {},
                                   AverageOptions options = {}) {
  std::vector<std::unique_ptr<Reader>> readers;
  for (Stored& source : sources) readers.push_back(source.reader());
  if (weights.empty()) weights.assign(readers.size(), 1.0F / static_cast<float>(readers.size()));
  options.weights = weights;
  for (std::size_t i = 0; i < readers.size(); ++i) options.labels.push_back(std::string(1, static_cast<char>('A' + i)));
  return averaged(std::move(readers), options);
}

/// The code and message of the refusal, or nothing.
std::pair<ErrorCode, std::string> refusal(std::vector<Stored> sources, AverageOptions options = {}) {
  try {
    average_of(std::move(sources), {}, std::move(options));
  } catch (const Error& error) {
    return {error.code(), error.what()};
  }
  return {ErrorCode::kPeer, "none"};
}

Stored one(const std::string& name, DType dtype, const Numbers& shape) {
  Stored stored;
  stored.add(name, dtype, shape, test::Bytes(static_cast<std::size_t>(checked_bytes(checked_numel(shape), dtype))));
  return stored;
}

TEST(Average, IsWithinOneRoundingOfTheLoopInDouble) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  constexpr std::int64_t kRows = 301, kColumns = 173;
  const std::vector<float> weights{0.5F, 0.3F, 0.2F};
  std::vector<Stored> sources(3);
  std::vector<double> wanted(kRows * kColumns);
  for (std::size_t k = 0; k < 3; ++k) {
    std::vector<std::uint16_t> codes(wanted.size());
    for (std::size_t i = 0; i < codes.size(); ++i) {
      codes[i] = Bfloat16::encode(normal(random));
      wanted[i] += static_cast<double>(weights[k]) * static_cast<double>(Bfloat16::decode(codes[i]));
    }
    if (k == 1) {
      sources[k].add_cut("w", kBf16, {kRows, kColumns}, bytes_of(codes), 100, 50);
    } else {
      sources[k].add("w", kBf16, {kRows, kColumns}, codes);
    }
  }
  const auto reader = average_of(std::move(sources), weights);
  const std::vector<float> found = test::read_bfloat16(*reader, "w");
  for (std::size_t i = 0; i < found.size(); ++i) {
    ASSERT_NEAR(found[i], wanted[i], std::abs(wanted[i]) / 256 + 1e-6) << i;
  }
}

TEST(Average, ComputedWeightsAreRoundedOnce) {
  std::vector<std::vector<std::uint8_t>> codes(3, std::vector<std::uint8_t>(24));
  const std::vector<float> scales{1.01F, 0.7F, 1.3F, 0.11F, 0.37F, 2.9F}, weights{0.5F, 0.3F, 0.2F};
  std::vector<std::unique_ptr<Reader>> readers;
  AverageOptions options{.weights = weights, .labels = {"A", "B", "C"}};
  for (std::size_t k = 0; k < codes.size(); ++k) {
    for (std::size_t i = 0; i < 24; ++i) codes[k][i] = static_cast<std::uint8_t>(0x31 + (3 + 2 * k) * i % 70);
    Stored stored;
    stored.add("q.weight", DType::kFloat8E4m3fn, {4, 6}, codes[k]).add("q.weight_scale_inv", kF32, {2, 3}, scales);
    const QuantizationFacts facts{.is_quantized = true, .schemes = {{.block = {2, 2}}}};
    readers.push_back(dequantized(stored.reader(), kBf16, facts));
    options.computed.push_back({&dynamic_cast<const ComputedReader&>(*readers.back())});
  }
  const auto reader = averaged(std::move(readers), options);
  EXPECT_EQ(dynamic_cast<const ComputedReader&>(*reader).files_of(0), (std::vector<std::uint32_t>{0, 1, 2}));
  const std::vector<float> found = test::read_bfloat16(*reader, "q.weight");
  int differing = 0;  // From the result with two roundings.
  for (std::size_t i = 0; i < found.size(); ++i) {
    float sum = 0, twice = 0;
    for (std::size_t k = 0; k < codes.size(); ++k) {
      const float weight = Float8E4m3fn::decode(codes[k][i]) * scales[i / 12 * 3 + i % 6 / 2];
      const float once = weights[k] * weight, rounded = weights[k] * test::rounded(weight);
      sum += once;
      twice += rounded;
    }
    EXPECT_EQ(found[i], test::rounded(sum)) << i;
    differing += found[i] != test::rounded(twice) ? 1 : 0;
  }
  EXPECT_GT(differing, 0);
}

TEST(Average, IsInTheDtypeOfTheFirstSourceOrInTheGivenOne) {
  std::vector<Stored> sources(2);
  sources[0].add("w", kF16, {2}, std::vector<std::uint16_t>{Float16::encode(1), Float16::encode(-0.0F)});
  sources[1].add("w", kF32, {2}, std::vector<float>{2, -0.0F});
  EXPECT_EQ(read_tensor(*average_of(sources), "w"),
            bytes_of(std::vector<std::uint16_t>{Float16::encode(1.5F), Float16::encode(-0.0F)}));
  EXPECT_EQ(read_tensor(*average_of(sources, {}, {.weights = {}, .labels = {}, .dtype = kF32}), "w"),
            bytes_of(std::vector<float>{1.5F, -0.0F}));
}

TEST(Average, WeightsOfAMovingAverageAddUpToOne) {
  EXPECT_EQ(moving_average_weights(3, 0.5), (std::vector<float>{0.25F, 0.25F, 0.5F}));
  EXPECT_EQ(moving_average_weights(1, 0.9), (std::vector<float>{1}));
}

TEST(Average, KeepsBoxesAndRanksOfTheFirstSource) {
  std::vector<Stored> sources(2);
  sources[0].add_cut("w", kF32, {4, 2}, bytes_of(std::vector<float>{1, 2, 3, 4, 5, 6, 7, 8}), 3, 2);
  sources[1].add("w", kF32, {4, 2}, std::vector<float>{3, 4, 5, 6, 7, 8, 9, 10});
  const auto reader = average_of(std::move(sources));
  const Tensor& tensor = reader->catalog().tensors[0];
  const auto chunks = reader->catalog().chunks_of(tensor);
  ASSERT_EQ(chunks.size(), 2U);
  EXPECT_EQ(chunks[1].offsets[0], 3);
  EXPECT_EQ(chunks[1].sizes[0], 1);
  EXPECT_EQ(read_tensor(*reader, "w"), bytes_of(std::vector<float>{2, 3, 4, 5, 6, 7, 8, 9}));
}

TEST(Average, NamesOfOneTensorStayTied) {
  std::vector<Stored> sources(2);
  for (Stored& source : sources) {
    source.add("a", kF32, {2}, std::vector<float>{1, 2})
        .add_alias("b", "a")
        .add("c", kF32, {2}, std::vector<float>{1, 2});
  }
  const auto reader = average_of(sources);
  EXPECT_EQ(reader->catalog().tensors[1].alias_of, 0U);
  EXPECT_EQ(reader->catalog().tensors[2].alias_of, kNoIndex);
  sources[1] = Stored();
  for (const char* name : {"a", "b", "c"}) sources[1].add(name, kF32, {2}, std::vector<float>{1, 4});
  EXPECT_EQ(average_of(sources)->catalog().tensors[1].alias_of, kNoIndex) << "another source has two tensors";
}

TEST(Average, RefusesOtherNamesAndShapesByTheFirst) {
  const auto other_name = refusal({one("a", kF32, {2}), one("b", kF32, {2})});
  EXPECT_EQ(other_name.first, ErrorCode::kCorruption);
  EXPECT_NE(other_name.second.find("'a' is missing in B"), std::string::npos) << other_name.second;
  const auto more = refusal({one("a", kF32, {2}), one("a", kF32, {2}).add("b", kF32, {1}, std::vector<float>{1})});
  EXPECT_NE(more.second.find("'b' is missing in A"), std::string::npos) << more.second;
  EXPECT_EQ(refusal({one("a", kF32, {2}), one("a", kF32, {3})}).first, ErrorCode::kCorruption);
  EXPECT_EQ(refusal({one("a", kF32, {2}), one("a", kI64, {2})}).first, ErrorCode::kCorruption);
  const auto excluded = refusal({one("a", kF32, {2}), one("b", kF32, {2})},
                                {.weights = {}, .labels = {}, .takes_tensor = [](const Tensor&) { return false; }});
  EXPECT_EQ(excluded.second, "none");
}

TEST(Average, IntegersMustBeEqual) {
  std::vector<std::int64_t> steps(300'000, 7);
  std::vector<Stored> sources(2);
  for (Stored& source : sources) source.add("steps", kI64, {300'000}, steps);
  EXPECT_EQ(read_tensor(*average_of(sources), "steps"), bytes_of(steps));
  steps.back() = 8;
  sources[1] = Stored();
  sources[1].add("steps", kI64, {300'000}, steps);
  EXPECT_EQ(refusal(sources).first, ErrorCode::kCorruption);
}

TEST(Average, TensorsThatMustBeEqualAreLocatedTogether) {
  Stored stored = one("sum", kF32, {2});
  for (int i = 0; i < 100; ++i) stored.add(fmt::format("w{}", i), kI64, {1}, std::vector<std::int64_t>{i});
  auto first = stored.reader(), other = stored.reader();
  const test::StoredReader& counted = *other;
  std::vector<std::unique_ptr<Reader>> readers;
  readers.push_back(std::move(first));
  readers.push_back(std::move(other));
  const auto reader = averaged(std::move(readers), {.weights = {0.5F, 0.5F}, .labels = {"A", "B"}});
  EXPECT_EQ(counted.locates(), 1);
}

TEST(Average, RefusesDtypesThatFloat32CannotSum) {
  for (const DType dtype : {DType::kFloat64, DType::kComplex64, DType::kFloat8E5m2}) {
    EXPECT_EQ(refusal({one("a", dtype, {2}), one("a", dtype, {2})}).first, ErrorCode::kUnsupported);
  }
  Stored codes = one("a.weight", DType::kFloat8E4m3fn, {2, 2});
  codes.add("a.weight_scale", kF32, {1}, std::vector<float>{2});
  const auto quantized = refusal({codes, codes});
  EXPECT_EQ(quantized.first, ErrorCode::kUnsupported);
  EXPECT_NE(quantized.second.find("it is quantized"), std::string::npos) << quantized.second;
}

}  // namespace
}  // namespace shard
