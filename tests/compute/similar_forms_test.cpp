// Modules whose tensors have the names and shapes of a form with a formula, and a different meaning.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "libshard/compute/find_formulas.h"
#include "libshard/core/error.h"
#include "tests/compute/stored.h"

namespace shard {
namespace {

using test::Part;
using test::Stored;
using test::zeros_of;

constexpr DType kBf16 = DType::kBfloat16, kF8 = DType::kFloat8E4m3fn, kF32 = DType::kFloat32, kU8 = DType::kUint8,
                kI8 = DType::kInt8, kI32 = DType::kInt32, kF16 = DType::kFloat16;

struct Similar {
  const char* title;
  std::vector<Part> parts;
  const char* message;  ///< A part of it.
  std::string method{};
  QuantizationScheme scheme{};
};

const std::vector<Part> kFloat8{{"a.weight", kF8, {32, 64}}, {"a.weight_scale", kF32, {32, 1}}};
const std::vector<Part> kAwq{{"a.qweight", kI32, {64, 4}}, {"a.qzeros", kI32, {2, 4}}, {"a.scales", kF16, {2, 32}}};
const std::vector<Part> kGptq{
    {"a.qweight", kI32, {8, 32}}, {"a.qzeros", kI32, {2, 4}}, {"a.scales", kF16, {2, 32}}, {"a.g_idx", kI32, {64}}};
const std::vector<Part> kMxfp4{{"a.weight_packed", kU8, {32, 32}}, {"a.weight_scale", kU8, {32, 2}}};

std::vector<Part> with(std::vector<Part> parts, const Part& more) {
  parts.push_back(more);
  return parts;
}

const std::vector<Similar> kSimilar{
    {"MXFP6 of Quark", {{"a.weight", kU8, {32, 48}}, {"a.weight_scale", kU8, {32, 2}}}, "24 bytes", "quark"},
    {"FP4 with E5M3 for 16 numbers",
     {{"a.weight_packed", kU8, {32, 32}}, {"a.weight_scale", kU8, {32, 4}}},
     "8 bytes",
     "auto-round"},
    {"FP4 with E5M3 for 32 numbers",
     kMxfp4,
     "E5M3",
     "auto-round",
     {.bits = 4, .group_size = 32, .numbers = "nvfp4_v2"}},
    {"FP4 with E5M3 in the words of compressed-tensors",
     kMxfp4,
     "E5M3",
     "compressed-tensors",
     {.format = "nvfp4-e5m3-pack-quantized"}},
    {"integers with exponents", kMxfp4, "integers", "auto-round", {.bits = 4, .numbers = "mx_int"}},
    {"float8 divided by its scales", kFloat8, "divided", "fp8", {.bits = 8, .divides = true}},
    {"planes of GPTQModel", kGptq, "'gptq_p'", "gptq", {.format = "gptq_p", .bits = 3}},
    {"planes of GPTQModel without a method", kGptq, "'gptq_p'", "", {.format = "gptq_p", .bits = 3}},
    {"GPTQ with 5 bits",
     {{"a.qweight", kI32, {10, 32}}, {"a.qzeros", kI32, {2, 5}}, {"a.scales", kF16, {2, 32}}, {"a.g_idx", kI32, {64}}},
     "5 bits",
     "gptq"},
    {"AWQ of AutoRound with 6 bits",
     {{"a.qweight", kI32, {64, 6}}, {"a.qzeros", kI32, {2, 6}}, {"a.scales", kF16, {2, 32}}},
     "6 bits",
     "auto-round",
     {.format = "gemm", .bits = 6}},
    {"W4A8 of msModelSlim, which has two levels of scales",
     {{"a.weight", kI8, {16, 512}}, {"a.weight_scale", kF32, {32, 1}}, {"a.weight_scale_second", kF32, {32, 2}}},
     "'a.weight_scale_second'"},
    {"W4A8 of msModelSlim, which has two codes in a byte",
     {{"a.weight", kI8, {32, 64}}, {"a.weight_scale", kF32, {32, 1}}, {"a.scale_bias", kF32, {32, 16}}},
     "'a.scale_bias'"},
    {"ParoQuant", with(kAwq, {"a.channel_scales", kF16, {1, 64}}), "'a.channel_scales'", "paroquant"},
    {"two codes in a byte of SGLang",
     {{"a.weight", kI8, {32, 64}}, {"a.weight_scale_inv", kF32, {32, 1}}},
     "two codes",
     "w4afp8"},
    {"activations that AutoAWQ divides", with(kAwq, {"h.mlp.act.scales", kF16, {64}}), "'h.mlp.act.scales'", "awq"},
    {"codes of nunchaku", {{"a.qweight", kI8, {32, 32}}, {"a.wscales", kBf16, {1, 32}}}, "no formula"},
    {"rotations of AutoRound", with(kGptq, {"a.spinquant_r1_type", kI32, {}}), "'a.spinquant_r1_type'", "auto-round"},
    {"FP4 with exponents and a second scale",
     {{"a.weight", kU8, {32, 32}}, {"a.weight_scale", kU8, {32, 2}}, {"a.weight_scale_2", kF32, {}}},
     "two levels",
     "quark"},
    {"random rotations of AutoRound", with(kMxfp4, {"a.hadamard_matrix", kF32, {32, 32}}), "'a.hadamard_matrix'"},
    {"rotations of Quark", with(kFloat8, {"a.input_rotation", kI8, {32, 32}}), "'a.input_rotation'", "quark"},
    {"a remainder of low rank", with(kFloat8, {"a.svdquant_lora_b", kF32, {32, 4}}), "'a.svdquant_lora_b'"},
    {"groups of int8 down the columns",
     {{"a.weight", kI8, {64, 32}}, {"a.weight_scale", kBf16, {2, 32}}},
     "down the columns",
     "quark",
     {.group_size = 32}},
    {"int8 with groups in any order",
     {{"a.weight", kI8, {32, 64}}, {"a.weight_scale", kF32, {32, 2}}, {"a.weight_g_idx", kI32, {64}}},
     "group index",
     "compressed-tensors"},
    {"NVFP4 experts as [in, out]",
     {{"e.up", kU8, {2, 16, 64}}, {"e.up_weight_scale", kF8, {2, 2, 64}}, {"e.up_weight_scale_2", kF32, {}}},
     "down the columns",
     "NVFP4"},
    {"INT4 of ModelOpt with scales of two levels",
     {{"a.weight", kU8, {16, 256}}, {"a.weight_scale", kBf16, {32, 2}}, {"a.weight_scale_2", kF32, {}}},
     "no formula",
     "W4A8_AWQ"},
    {"HQQ without its scales", {{"a.W_q", kU8, {32, 64}}}, "no formula"},
    {"codes beside a module that is recognized",
     {{"a.weight", kI8, {32, 64}}, {"a.weight_scale", kF32, {32, 1}}, {"embed_quantized", kU8, {48, 32}}},
     "its form is unknown",
     "gemma"},
};

TEST(SimilarForms, AreRefusedByName) {
  for (const Similar& similar : kSimilar) {
    Stored stored = zeros_of(similar.parts);
    QuantizationFacts facts{.is_quantized = !similar.method.empty(), .method = similar.method};
    if (similar.scheme != QuantizationScheme()) facts.is_quantized = true, facts.schemes.push_back(similar.scheme);
    try {
      dequantized(stored.reader(), kBf16, facts);
      ADD_FAILURE() << similar.title;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnsupported) << similar.title << ": " << error.what();
      EXPECT_THAT(error.what(), ::testing::HasSubstr(similar.message)) << similar.title;
    }
  }
}

TEST(SimilarForms, MasksOfBytesBesideModulesOfAnUnknownMethodStay) {
  Stored stored = zeros_of({{"a.weight", kF8, {8, 8}}, {"a.weight_scale", kF32, {1}}, {"h.attn.bias", kU8, {1, 8, 8}}});
  const auto reader = dequantized(stored.reader(), kBf16, {.is_quantized = true, .method = "auto-round"});
  EXPECT_EQ(reader->catalog().find("h.attn.bias")->dtype, kU8);
}

/// msModelSlim stores offsets of symmetric weights too.
TEST(SimilarForms, OffsetsOfSymmetricCodesAreAllZeroOrRefused) {
  const std::vector<Part> int8{{"a.weight", kI8, {2, 8}}, {"a.weight_scale", kF32, {2, 1}}};
  const std::vector<Part> nvfp4{
      {"a.weight_packed", kU8, {2, 8}}, {"a.weight_scale", kF8, {2, 1}}, {"a.weight_global_scale", kF32, {1}}};
  for (const std::vector<Part>& parts : {int8, nvfp4}) {
    for (const float offset : {0.0F, 1.0F}) {
      Stored stored = zeros_of(parts);
      const bool is_int8 = parts.size() == int8.size();
      stored.add(is_int8 ? "a.weight_offset" : "a.weight_zero_point", kF32, {2, 1}, std::vector<float>{0, offset});
      try {
        const auto reader = dequantized(stored.reader(), kBf16, {});
        EXPECT_EQ(reader->catalog().tensors.size(), 1U);
        EXPECT_EQ(offset, 0);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
        EXPECT_EQ(offset, 1);
      }
    }
  }
}

/// llm-compressor stores scales beside plain weights if it does not compress them.
TEST(SimilarForms, ThePlainWeightOfScalesIsNotCalledMissing) {
  Stored stored = zeros_of({{"a.weight", kBf16, {8, 8}}, {"a.weight_scale", kBf16, {8, 1}}});
  try {
    dequantized(stored.reader(), kBf16, {.is_quantized = true, .method = "compressed-tensors"});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCorruption);
    EXPECT_THAT(error.what(), ::testing::HasSubstr("is not quantized"));
  }
}

/// Many diffusion models are float8 without scales.
TEST(SimilarForms, Float8WithoutAnyScalesHasAHintToConvertIt) {
  Stored stored = zeros_of({{"a.weight", kF8, {8, 8}}});
  try {
    dequantized(stored.reader(), kBf16, {});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCorruption);
    EXPECT_THAT(error.hint(), ::testing::HasSubstr("convert it"));
  }
}

TEST(SimilarForms, ADescriptionOfBitsandbytesMustStateItsNumbers) {
  const auto described = [](const std::string& members) {
    const std::string text = R"({"blocksize": 64, "nested_blocksize": 256, )" + members + "}";
    Stored stored = zeros_of({{"a.weight", kU8, {32, 1}},
                              {"a.weight.absmax", kU8, {1}},
                              {"a.weight.quant_map", kF32, {16}},
                              {"a.weight.nested_absmax", kF32, {1}},
                              {"a.weight.nested_quant_map", kF32, {256}}});
    stored.add("a.weight.quant_state.bitsandbytes__nf4", kU8, {std::ssize(text)},
               std::vector<char>(text.begin(), text.end()));
    return dequantized(stored.reader(), kBf16, {});
  };
  EXPECT_EQ(described(R"("shape": [8, 8], "nested_offset": 0.5)")->catalog().tensors.size(), 1U);
  for (const char* const members : {R"("shape": [8, 8])", R"("shape": [8, 8], "nested_offset": "0.5")",
                                    R"("shape": [-8, -8], "nested_offset": 0.5)"}) {
    try {
      described(members);
      ADD_FAILURE() << members;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kCorruption) << members;
      EXPECT_EQ(error.tensor(), "a.weight.quant_state.bitsandbytes__nf4") << members;
    }
  }
}

/// ModelOpt's W4A8_NVFP4_FP8 has a scale for 32 numbers. The usual 16 need no statement.
TEST(SimilarForms, Nvfp4MayHaveGroupsOfAStatedSize) {
  for (const std::int64_t group : {16, 32}) {
    Stored stored;
    stored.add("a.weight", kU8, {1, 32}, std::vector<std::uint8_t>(32, 0x22));  // 1
    std::vector<std::uint8_t> scales{0x38, 0x40};                               // 1, 2
    if (group == 16) scales.insert(scales.end(), {0x38, 0x38});
    stored.add("a.weight_scale", kF8, {1, std::ssize(scales)}, scales);
    stored.add("a.weight_scale_2", kF32, {}, std::vector<float>{3});
    QuantizationFacts facts{.is_quantized = true, .method = "W4A8_NVFP4_FP8"};
    facts.schemes = {{.group_size = 128}, {.group_size = 32}};
    const auto reader = dequantized(stored.reader(), kBf16, facts);
    std::vector<float> wanted(64, 3);
    std::fill_n(wanted.begin() + group, group, 6.0F);
    EXPECT_EQ(test::read_bfloat16(*reader, "a.weight"), wanted) << group;
  }
}

/// The names of ModelOpt for experts in one tensor.
TEST(SimilarForms, ScalesOfAParameterWithANameOfItsOwnBelongToIt) {
  Stored stored;
  stored.add("e.up", kF8, {2, 1, 2}, std::vector<std::uint8_t>{0x38, 0x38, 0x38, 0x38});  // 1
  stored.add("e.up_weight_scale", kF32, {2, 2}, std::vector<float>{1, 2, 3, 4});          // One per column.
  stored.add("e.up_input_scale", kF32, {}, std::vector<float>{1});
  stored.add("e.w2_weight", kF8, {1, 1}, std::vector<std::uint8_t>{0x38});
  stored.add("e.w2_weight_scale", kF32, {1}, std::vector<float>{5});
  const auto reader = dequantized(stored.reader(), kBf16, {});
  ASSERT_EQ(reader->catalog().tensors.size(), 2U);
  EXPECT_EQ(test::read_bfloat16(*reader, "e.up"), (std::vector<float>{1, 2, 3, 4}));
  EXPECT_EQ(test::read_bfloat16(*reader, "e.w2_weight"), (std::vector<float>{5}));
}

}  // namespace
}  // namespace shard
