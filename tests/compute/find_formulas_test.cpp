#include "libshard/compute/find_formulas.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "libshard/core/error.h"
#include "tests/compute/stored.h"
#include "tests/support/cpu_time.h"

namespace shard {
namespace {

using test::Bytes;
using test::Numbers;
using test::Part;
using test::Stored;
using test::zeros_of;

constexpr DType kBf16 = DType::kBfloat16, kF8 = DType::kFloat8E4m3fn, kF32 = DType::kFloat32, kU8 = DType::kUint8,
                kI8 = DType::kInt8, kI32 = DType::kInt32, kI64 = DType::kInt64, kF16 = DType::kFloat16;

struct Wrong {
  const char* title;
  std::vector<Part> parts;
  ErrorCode code;
  const char* tensor;
  QuantizationFacts facts{};
};

const QuantizationFacts kQuantized{.is_quantized = true};
const QuantizationFacts kBlocks{.is_quantized = true, .schemes = {{.block = {128, 128}}}};

QuantizationFacts stating(const char* method, std::vector<QuantizationScheme> schemes = {},
                          std::vector<std::string> ignored = {}) {
  return {.is_quantized = true, .method = method, .schemes = std::move(schemes), .ignored = std::move(ignored)};
}

const std::vector<Wrong> kWrong{
    {"scales without a weight", {{"a.weight_scale_inv", kF32, {1, 1}}}, ErrorCode::kCorruption, "a.weight_scale_inv"},
    {"a weight without its scales", {{"a.weight", kF8, {8, 8}}}, ErrorCode::kCorruption, "a.weight", kQuantized},
    {"float8 without any scales", {{"a.weight", kF8, {8, 8}}}, ErrorCode::kCorruption, "a.weight"},
    {"one weight of two without its scales",
     {{"a.weight", kF8, {8, 8}}, {"b.weight", kF8, {8, 8}}, {"b.weight_scale", kF32, {1}}},
     ErrorCode::kCorruption,
     "a.weight"},
    {"too few blocks",
     {{"a.weight", kF8, {300, 256}}, {"a.weight_scale_inv", kF32, {2, 2}}},
     ErrorCode::kCorruption,
     "a.weight_scale_inv",
     kBlocks},
    {"too many blocks",
     {{"a.weight", kF8, {256, 256}}, {"a.weight_scale_inv", kF32, {3, 2}}},
     ErrorCode::kCorruption,
     "a.weight_scale_inv",
     kBlocks},
    {"one block of rows for two",
     {{"a.weight", kF8, {256, 256}}, {"a.weight_scale_inv", kF32, {1, 2}}},
     ErrorCode::kCorruption,
     "a.weight_scale_inv",
     kBlocks},
    {"a block for each row",
     {{"a.weight", kF8, {2, 256}}, {"a.weight_scale_inv", kF32, {2, 2}}},
     ErrorCode::kCorruption,
     "a.weight_scale_inv",
     kBlocks},
    {"one block of rows for two, with nothing stated",
     {{"a.weight", kF8, {256, 256}}, {"a.weight_scale_inv", kF32, {1, 2}}},
     ErrorCode::kCorruption,
     "a.weight_scale_inv"},
    {"scales of two names",
     {{"a.weight", kF8, {8, 8}}, {"a.weight_scale", kF32, {1}}, {"a.weight_scale_inv", kF32, {1}}},
     ErrorCode::kCorruption,
     "a.weight_scale_inv"},
    {"codes in words beside codes in bytes",
     {{"a.weight", kI8, {4, 16}}, {"a.weight_packed", kU8, {4, 16}}, {"a.weight_scale", kU8, {4, 1}}},
     ErrorCode::kCorruption,
     "a.weight_packed"},
    {"MXFP4 in blocks without its exponents",
     {{"a.up_blocks", kU8, {2, 4, 1, 16}}, {"b.up_blocks", kU8, {2, 4, 1, 16}}, {"b.up_scales", kU8, {2, 4, 1}}},
     ErrorCode::kCorruption,
     "a.up_blocks"},
    {"exponents without MXFP4 in blocks",
     {{"a.up_scales", kU8, {2, 4, 1}}},
     ErrorCode::kCorruption,
     "a.up_scales",
     stating("mxfp4")},
    {"factors of inputs",
     {{"a.weight", kU8, {4, 16}},
      {"a.weight_scale", kF8, {4, 2}},
      {"a.weight_scale_2", kF32, {}},
      {"a.pre_quant_scale", kF32, {32}}},
     ErrorCode::kUnsupported,
     "a.weight"},
    {"factors of inputs of a plain weight",
     {{"a.weight", kF8, {8, 8}},
      {"a.weight_scale", kF32, {1}},
      {"b.weight", kF32, {8, 8}},
      {"b.pre_quant_scale", kF32, {8}}},
     ErrorCode::kUnsupported,
     "b.pre_quant_scale"},
    {"rotated inputs",
     {{"a.weight", kF8, {8, 8}}, {"a.weight_scale", kF32, {1}}},
     ErrorCode::kUnsupported,
     "a.weight",
     {.is_quantized = true, .transforms_inputs = true}},
    {"a method whose tensors are unknown",
     {{"a.indices", kI32, {4, 4}}, {"a.centroids.weight", kF32, {4, 4}}},
     ErrorCode::kUnsupported,
     "a.indices",
     {.is_quantized = true, .method = "vptq"}},
    {"a method whose tensors are unknown, with scales",
     {{"a.indices", kI32, {4, 4}}, {"a.weight_scale", kF16, {4}}},
     ErrorCode::kUnsupported,
     "a.weight_scale",
     stating("vptq")},
    {"a method whose codes are rows of integers",
     {{"a.dense_weights", kI64, {16}}, {"a.row_offsets", kI32, {5}}},
     ErrorCode::kUnsupported,
     "a.dense_weights",
     stating("spqr")},
    {"GPTQ in the form of Marlin",
     {{"a.B", kI32, {4, 128}}, {"a.s", kF16, {1, 64}}},
     ErrorCode::kUnsupported,
     "a.B",
     stating("gptq", {{.format = "marlin", .bits = 4}})},
    {"a format whose tensors are unknown",
     {{"a.weight_packed", kI32, {4, 64}}, {"a.scale_packed", kF16, {1, 64}}},
     ErrorCode::kUnsupported,
     "a.weight_packed",
     stating("compressed-tensors", {{.format = "marlin-24", .bits = 4}})},
    {"sparse float8",
     {{"a.bitmask", kU8, {4, 2}}, {"a.compressed", kF8, {4, 8}}, {"a.weight_scale", kBf16, {4, 1}}},
     ErrorCode::kUnsupported,
     "a.weight_scale",
     stating("compressed-tensors", {{.format = "sparse-24-bitmask"}, {.format = "float-quantized"}})},
    {"a lost scale beside a whole module of a method without a list",
     {{"a.weight", kF8, {8, 8}}, {"b.weight", kF8, {8, 8}}, {"b.weight_scale", kF32, {1}}},
     ErrorCode::kCorruption,
     "a.weight",
     stating("modelopt")},
    {"AWQ in the form of gemv",
     {{"a.qweight", kI32, {64, 8}}, {"a.qzeros", kI32, {64, 1}}, {"a.scales", kF16, {64, 8}}},
     ErrorCode::kUnsupported,
     "a.qweight",
     stating("awq", {{.format = "gemv", .bits = 4, .group_size = 64}})},
    {"scales in columns instead of rows",
     {{"a.weight_packed", kU8, {4, 16}}, {"a.weight_scale", kF8, {2, 4}}, {"a.weight_global_scale", kF32, {1}}},
     ErrorCode::kCorruption,
     "a.weight_scale"},
    {"a scale for two rows each",
     {{"a.weight", kF8, {8, 8}}, {"a.weight_scale", kF32, {4}}},
     ErrorCode::kCorruption,
     "a.weight_scale"},
    {"NVFP4 of ModelOpt without its second scale",
     {{"a.input_scale", kF32, {}}, {"a.weight", kU8, {4, 16}}, {"a.weight_scale", kF8, {4, 2}}},
     ErrorCode::kCorruption,
     "a.weight"},
    {"scales that are integers",
     {{"a.weight", kF8, {8, 8}}, {"a.weight_scale", kI32, {1}}},
     ErrorCode::kCorruption,
     "a.weight_scale"},
    {"scales of a dtype that has no conversion",
     {{"a.weight", kF8, {8, 8}}, {"a.weight_scale", DType::kFloat4E2m1fnX2, {8}}},
     ErrorCode::kCorruption,
     "a.weight_scale"},
    {"scales that share bytes",
     {{"a.weight", kF8, {8, 8}}, {"a.weight_scale", DType::kFloat6E2m3fn, {8}}},
     ErrorCode::kCorruption,
     "a.weight_scale"},
    {"a shape whose elements are not integers",
     {{"a.weight_packed", kI32, {4, 16}},
      {"a.weight_scale", kF32, {4, 4}},
      {"a.weight_shape", DType::kFloat4E2m1fnX2, {2}}},
     ErrorCode::kCorruption,
     "a.weight_shape",
     kQuantized},
    {"zero points of another width",
     {{"a.qweight", kI32, {4, 8}}, {"a.scales", kF16, {1, 8}}, {"a.qzeros", kI64, {1, 1}}},
     ErrorCode::kCorruption,
     "a.qzeros"},
    {"zero points of AWQ in bytes",
     {{"a.qweight", kI32, {64, 5}}, {"a.scales", kF16, {2, 40}}, {"a.qzeros", kI8, {2, 5}}},
     ErrorCode::kCorruption,
     "a.qzeros"},
    {"codes of MXFP4 that are numbers",
     {{"a.up_blocks", kF8, {2, 4, 1, 16}}, {"a.up_scales", kU8, {2, 4, 1}}},
     ErrorCode::kCorruption,
     "a.up_blocks",
     stating("mxfp4")},
    {"codes that are numbers",
     {{"a.weight_packed", kF32, {4, 16}}, {"a.weight_scale", kF32, {4, 4}}, {"a.weight_shape", kI64, {2}}},
     ErrorCode::kCorruption,
     "a.weight_packed",
     kQuantized},
    {"scales of a plain weight",
     {{"a.weight", kF32, {8, 8}}, {"a.weight_scale_inv", kF32, {1, 1}}},
     ErrorCode::kCorruption,
     "a.weight_scale_inv",
     kQuantized},
    {"codes of 6 bits",
     {{"a.weight_packed", kU8, {4, 24}}, {"a.weight_scale", kU8, {4, 1}}},
     ErrorCode::kUnsupported,
     "a.weight_packed",
     stating("compressed-tensors", {{.format = "mxfp6-pack-quantized"}})},
    {"sparse weights",
     {{"a.bitmask", kU8, {4, 2}}, {"a.compressed", kBf16, {4, 8}}, {"a.shape", kI64, {2}}},
     ErrorCode::kUnsupported,
     "a.bitmask",
     {.is_quantized = true, .method = "compressed-tensors"}},
    {"EETQ", {{"a.weight", kI8, {8, 8}}, {"a.weight_scales", kF16, {8}}}, ErrorCode::kUnsupported, "a.weight"},
    {"a scale too many for NVFP4",
     {{"a.weight_packed", kU8, {4, 16}}, {"a.weight_scale", kF8, {4, 3}}, {"a.weight_global_scale", kF32, {1}}},
     ErrorCode::kCorruption,
     "a.weight_scale"},
    {"no global scale",
     {{"a.weight_packed", kU8, {4, 16}}, {"a.weight_scale", kF8, {4, 2}}},
     ErrorCode::kCorruption,
     "a.weight_packed"},
    {"zero points for other rows",
     {{"a.weight_packed", kI32, {64, 4}},
      {"a.weight_scale", kF32, {64, 2}},
      {"a.weight_zero_point", kI32, {4, 2}},
      {"a.weight_shape", kI64, {2}}},
     ErrorCode::kCorruption,
     "a.weight_zero_point",
     {.is_quantized = true, .schemes = {{.bits = 4, .group_size = 16}}}},
    {"only scales of scales",
     {{"a.weight_packed", kU8, {4, 16}}, {"a.weight_global_scale", kF32, {1}}},
     ErrorCode::kCorruption,
     "a.weight_packed"},
    {"no zero points for GPTQ",
     {{"a.qweight", kI32, {4, 8}}, {"a.scales", kF16, {1, 8}}, {"a.g_idx", kI32, {32}}},
     ErrorCode::kCorruption,
     "a.qweight"},
    {"a group index for other rows",
     {{"a.qweight", kI32, {4, 8}}, {"a.scales", kF16, {1, 8}}, {"a.qzeros", kI32, {1, 1}}, {"a.g_idx", kI32, {24}}},
     ErrorCode::kCorruption,
     "a.qweight"},
    {"GPTQ of an unknown version",
     {{"a.qweight", kI32, {8, 8}}, {"a.qzeros", kI32, {2, 1}}, {"a.scales", kF16, {2, 8}}},
     ErrorCode::kCorruption,
     "a.qzeros"},
    {"uneven groups whose size is not stated",
     {{"a.qweight", kI32, {40, 8}}, {"a.scales", kF16, {3, 8}}, {"a.qzeros", kI32, {3, 1}}},
     ErrorCode::kCorruption,
     "a.scales"},
    {"uneven groups that two stated sizes give",
     {{"a.qweight", kI32, {40, 8}}, {"a.scales", kF16, {3, 8}}, {"a.qzeros", kI32, {3, 1}}},
     ErrorCode::kCorruption,
     "a.scales",
     stating("gptq", {{.bits = 4, .group_size = 128}, {.bits = 4, .group_size = 120}})},
    {"packed integers without groups",
     {{"a.weight_packed", kI32, {8, 4}}, {"a.weight_scale", kF16, {8, 0}}, {"a.weight_shape", kI64, {2}}},
     ErrorCode::kCorruption,
     "a.weight_scale"},
    {"HQQ", {{"a.W_q", kU8, {8, 8}}, {"a.scale", kF16, {8}}, {"a.zero", kF16, {8}}}, ErrorCode::kUnsupported, "a.W_q"},
    {"quanto",
     {{"a.weight._data", kI8, {8, 8}}, {"a.weight._scale", kF16, {8, 1}}},
     ErrorCode::kUnsupported,
     "a.weight._data"},
    {"packed", {{"a._w_qdata", kU8, {8, 8}}, {"a._w_scale", kF8, {8, 1}}}, ErrorCode::kUnsupported, "a._w_qdata"},
    {"torchao's Int4Tensor",
     {{"a._w_qdata", kI8, {16, 4}}, {"a._w_scale", kBf16, {1, 16}}, {"a._w_zero_point", kBf16, {1, 16}}},
     ErrorCode::kUnsupported,
     "a._w_qdata"},
    {"torchao's sparse codes",
     {{"a._w_qdata", kF8, {8, 8}}, {"a._w_scale", kF32, {8, 1}}, {"a._w_sparse_metadata", kU8, {8, 2}}},
     ErrorCode::kUnsupported,
     "a._w_qdata"},
};

const std::vector<Part> kFloat8{{"a.b.weight", kF8, {8, 8}}, {"a.b.weight_scale", kF32, {8, 1}}};
const std::vector<Part> kInt4{{"a.b.weight_packed", kI32, {64, 4}}, {"a.b.weight_scale", kF32, {64, 2}}};
const std::vector<Part> kInt8{{"a.b.weight", kI8, {8, 8}}, {"a.b.weight_scale", kF32, {8, 1}}};
const std::vector<Part> kGptqOfOneGroup{
    {"a.b.qweight", kI32, {8, 8}}, {"a.b.qzeros", kI32, {1, 1}}, {"a.b.scales", kF16, {1, 8}}};
const std::vector<Part> kGptq4{
    {"a.b.qweight", kI32, {8, 8}}, {"a.b.qzeros", kI32, {2, 1}}, {"a.b.scales", kF16, {2, 8}}};

/// Modules that contradict the configuration.
const std::vector<Wrong> kContradicting{
    {"plain by name", kFloat8, ErrorCode::kCorruption, "a.b.weight", stating("fp8", {}, {"lm_head", "a.b"})},
    {"plain by a pattern", kFloat8, ErrorCode::kCorruption, "a.b.weight", stating("fp8", {}, {"re:a[.](b|c)$"})},
    {"other blocks", kFloat8, ErrorCode::kCorruption, "a.b.weight", stating("fp8", {{.block = {4, 4}}})},
    {"another method", kFloat8, ErrorCode::kCorruption, "a.b.weight", stating("gptq")},
    {"another format", kInt4, ErrorCode::kCorruption, "a.b.weight_packed",
     stating("compressed-tensors", {{.format = "nvfp4-pack-quantized"}, {.bits = 4, .group_size = 16}})},
    {"other bits", kGptq4, ErrorCode::kCorruption, "a.b.qweight", stating("gptq", {{.bits = 8, .group_size = 32}})},
    {"a scale per row for one of the tensor", kFloat8, ErrorCode::kCorruption, "a.b.weight",
     stating("compressed-tensors", {{.strategy = "tensor"}})},
    {"a scale for two rows",
     {{"a.b.weight", kF8, {8, 8}}, {"a.b.weight_scale", kF32, {4, 1}}},
     ErrorCode::kCorruption,
     "a.b.weight",
     stating("compressed-tensors", {{.strategy = "channel"}, {.group_size = -1, .strategy = "group"}})},
    {"groups in place of rows", kInt4, ErrorCode::kCorruption, "a.b.weight_packed",
     stating("compressed-tensors", {{.bits = 4, .group_size = 16, .strategy = "channel"}})},
    {"MXFP8 with too few exponents",
     {{"a.b.weight", kF8, {8, 96}}, {"a.b.weight_scale", kU8, {8, 2}}},
     ErrorCode::kCorruption,
     "a.b.weight",
     stating("mxfp8")},
    {"no zero points", kInt4, ErrorCode::kCorruption, "a.b.weight_packed",
     stating("compressed-tensors", {{.bits = 4, .group_size = 16, .is_symmetric = false}})},
    {"no zero points of bytes", kInt8, ErrorCode::kCorruption, "a.b.weight",
     stating("compressed-tensors", {{.bits = 8, .is_symmetric = false}, {.bits = 4, .is_symmetric = true}})},
    {"zero points of symmetric codes",
     {{"a.b.weight_packed", kI32, {64, 4}},
      {"a.b.weight_scale", kF32, {64, 2}},
      {"a.b.weight_zero_point", kI32, {8, 2}}},
     ErrorCode::kCorruption,
     "a.b.weight_packed",
     stating("compressed-tensors", {{.bits = 4, .group_size = 16, .is_symmetric = true}})},
    {"other groups in any order",
     {{"a.b.qweight", kI32, {8, 8}},
      {"a.b.qzeros", kI32, {2, 1}},
      {"a.b.scales", kF16, {2, 8}},
      {"a.b.g_idx", kI32, {64}}},
     ErrorCode::kCorruption,
     "a.b.qweight",
     stating("gptq", {{.bits = 4, .group_size = 64}})},
    {"formats of different zero points", kGptq4, ErrorCode::kCorruption, "a.b.qweight",
     stating("gptq", {{.format = "gptq", .bits = 4}, {.format = "gptq_v2"}})},
    {"no group index", kGptq4, ErrorCode::kCorruption, "a.b.qweight",
     stating("gptq", {{.bits = 4, .group_size = 32, .is_reordered = true}})},
    {"no group index of packed codes", kInt4, ErrorCode::kCorruption, "a.b.weight_packed",
     stating("compressed-tensors",
             {{.format = "pack-quantized"}, {.bits = 4, .group_size = 16, .is_reordered = true}})},
    {"other groups", kGptq4, ErrorCode::kCorruption, "a.b.qweight",
     stating("gptq", {{.bits = 4, .group_size = 16}, {.bits = 4, .group_size = 8}})},
};

TEST(FindFormulas, TheConfigurationMustAllowEachModule) {
  for (const Wrong& wrong : kContradicting) {
    Stored stored = zeros_of(wrong.parts);
    try {
      dequantized(stored.reader(), kBf16, wrong.facts);
      ADD_FAILURE() << wrong.title;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), wrong.code) << wrong.title << ": " << error.what();
      EXPECT_EQ(error.tensor(), wrong.tensor) << wrong.title << ": " << error.what();
      EXPECT_THAT(error.what(), ::testing::HasSubstr("configuration")) << wrong.title;
    }
  }
}

TEST(FindFormulas, SeveralSchemesAndPatternsThatNameOthersAreAllowed) {
  const std::vector<std::pair<std::vector<Part>, QuantizationFacts>> right{
      {kFloat8, stating("fp8", {}, {"a", "b", "re:b", "re:a\\.b\\.c", "re:(?=a).*", "re:("})},
      {kFloat8, stating("a new method")},
      {kFloat8, stating("compressed-tensors", {{.strategy = "tensor"}, {.strategy = "channel"}})},
      {{{"a.b.weight", kF8, {1, 8}}, {"a.b.weight_scale", kF32, {1, 1}}},
       stating("compressed-tensors", {{.strategy = "channel"}})},
      {{{"a.b.weight", kF8, {256, 384}}, {"a.b.weight_scale", kF32, {2, 1, 3, 1}}}, stating("modelopt")},
      {kFloat8, stating("compressed-tensors", {{.format = "mixed-precision"}, {.format = "float-quantized"}})},
      {kInt4, stating("compressed-tensors", {{.format = "a new format"}, {.bits = 4, .group_size = 16}})},
      {kInt4, stating("compressed-tensors", {{.bits = 8, .group_size = 128}, {.bits = 4, .group_size = 16}})},
      {kGptq4, stating("gptq", {{.bits = 4, .group_size = 32}})},
      {kGptq4, stating("gptq", {{.bits = 4, .group_size = -1}})},
      {kInt4, stating("compressed-tensors",
                      {{.bits = 4, .group_size = 16, .is_symmetric = false}, {.bits = 4, .is_symmetric = true}})},
      {kInt4, stating("compressed-tensors", {{.bits = 8, .is_symmetric = false}, {.bits = 4, .group_size = 16}})},
      {kInt8, stating("compressed-tensors", {{.bits = 8, .is_symmetric = true}})},
      {kInt4, stating("compressed-tensors",
                      {{.bits = 4, .group_size = 16, .is_reordered = true}, {.bits = 4, .group_size = 16}})},
      {kInt4, stating("compressed-tensors", {{.bits = 4, .group_size = 16, .is_reordered = false}})},
      {kGptqOfOneGroup, stating("gptq", {{.bits = 4, .is_reordered = true}})},
      {kGptq4, stating("gptq", {{.bits = 4, .is_reordered = true}, {.bits = 4, .is_reordered = false}})},
  };
  for (const auto& [parts, facts] : right) {
    Stored stored = zeros_of(parts);
    const auto reader = dequantized(stored.reader(), kBf16, facts);
    EXPECT_NE(reader->catalog().find("a.b.weight"), nullptr);
  }
}

TEST(FindFormulas, IntegersInAModuleThatIsStatedPlainStayAsTheyAre) {
  Stored stored = zeros_of({{"a.weight", kF8, {8, 8}}, {"a.weight_scale", kF32, {1}}, {"table.weight", kI32, {4, 4}}});
  const auto reader = dequantized(stored.reader(), kBf16, stating("fp8", {}, {"table"}));
  EXPECT_EQ(reader->catalog().find("table.weight")->dtype, kI32);
  EXPECT_EQ(reader->catalog().find("a.weight")->dtype, kBf16);
}

TEST(FindFormulas, PatternsOfAnyConfigurationAreMatchedInBoundedTime) {
  std::vector<std::string> ignored;
  for (int i = 0; i < 20'000; ++i) ignored.push_back(fmt::format("re:.*layer{}.*(a|b){{1,20}}x?y*$", i));
  Stored stored;
  for (int i = 0; i < 2'000; ++i) stored.add(fmt::format("l{}.weight", i), kF8, {2, 2}, Bytes(4));
  for (int i = 0; i < 2'000; ++i) stored.add(fmt::format("l{}.weight_scale", i), kF32, {1}, Bytes(4));
  auto inner = stored.reader();
  const double seconds = test::cpu_seconds([&] {
    try {
      dequantized(std::move(inner), kBf16, stating("fp8", {}, ignored));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    }
  });
  EXPECT_LT(seconds, test::cpu_limit(4));
}

/// All damage is reported, and the other modules are computed.
TEST(FindFormulas, ASinkThatCollectsReceivesEachModule) {
  Stored stored = zeros_of({{"a.weight", kF8, {8, 8}},
                            {"b.weight", kF8, {8, 8}},
                            {"b.weight_scale", kF32, {1}},
                            {"c.weight_scale_inv", kF32, {1, 1}}});
  CollectedFindings found;
  const auto reader = dequantized(stored.reader(), kBf16, {}, found);
  ASSERT_EQ(found.all().size(), 2U);
  for (const Error& each : found.all()) EXPECT_EQ(each.file(), "file0");
  EXPECT_EQ(found.all()[0].tensor(), "a.weight");
  EXPECT_EQ(found.all()[1].tensor(), "c.weight_scale_inv");
  ASSERT_EQ(reader->catalog().tensors.size(), 1U);
  EXPECT_EQ(reader->catalog().tensors[0].name, "b.weight");
}

TEST(FindFormulas, RefusesByNameInsteadOfGuessing) {
  for (const Wrong& wrong : kWrong) {
    Stored stored = zeros_of(wrong.parts);
    try {
      dequantized(stored.reader(), kBf16, wrong.facts);
      ADD_FAILURE() << wrong.title;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), wrong.code) << wrong.title << ": " << error.what();
      EXPECT_EQ(error.tensor(), wrong.tensor) << wrong.title << ": " << error.what();
      EXPECT_EQ(error.file(), "file0") << wrong.title;
    }
  }
}

/// A convolution, whose last two dimensions are those of its kernel.
TEST(FindFormulas, ConvolutionsMayHaveAScalePerOutputChannel) {
  for (const Numbers& shape : {Numbers{2, 1, 1, 1}, Numbers{2}}) {
    for (const DType dtype : {kF8, kI8}) {
      Stored stored;
      stored.add("a.weight", dtype, {2, 1, 1, 2}, std::vector<std::uint8_t>(4, dtype == kF8 ? 0x38 : 1));  // 1
      stored.add("a.weight_scale", kF32, shape, std::vector<float>{1, 2});
      const auto reader = dequantized(stored.reader(), kBf16, {});
      EXPECT_EQ(reader->catalog().tensors[0].shape.size(), 4);
      EXPECT_EQ(test::read_bfloat16(*reader, "a.weight"), (std::vector<float>{1, 1, 2, 2}));
    }
  }
}

TEST(FindFormulas, ExponentsThatAreNanAreFoundWhenTheyAreRead) {
  Stored stored;
  stored.add("a.weight_packed", kU8, {1, 32}, Bytes(32));
  stored.add("a.weight_scale", kU8, {1, 2}, std::vector<std::uint8_t>{127, 255});
  const auto reader = dequantized(stored.reader(), kBf16, {});
  try {
    test::read_tensor(*reader, "a.weight");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCorruption);
    EXPECT_EQ(error.file(), "file0");
    EXPECT_THAT(error.what(), ::testing::HasSubstr("'a.weight_scale'"));
  }
}

TEST(FindFormulas, CodesInTheOrderOfAKernelAreRefused) {
  for (const std::uint8_t format : {std::uint8_t{0}, std::uint8_t{2}}) {
    Stored stored;
    stored.add("a.weight", kI8, {2, 2}, Bytes(4)).add("a.SCB", kF32, {2}, std::vector<float>{1, 1});
    stored.add("a.weight_format", kU8, {}, std::vector<std::uint8_t>{format});
    try {
      dequantized(stored.reader(), kBf16, {});
      EXPECT_EQ(format, 0);
    } catch (const Error& error) {
      EXPECT_EQ(format, 2);
      EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    }
  }
}

/// ComfyUI's FP4 and MXFP8 have the shapes of other tools, in another order.
TEST(FindFormulas, OfComfyuiOnlyFloat8IsComputed) {
  const auto of = [](const std::string& format, bool is_in_header) {
    const std::string text = R"({"format": ")" + format + R"("})", all = R"({"layers": {"a": )" + text + "}}";
    const bool is_fp4 = format == "nvfp4";
    Stored stored = zeros_of({{"a.weight", is_fp4 ? kU8 : kF8, {128, 64}}});
    stored.add("a.weight_scale",
               is_fp4              ? kF8
               : format == "mxfp8" ? kU8
                                   : kF32,
               is_fp4              ? Numbers{128, 8}
               : format == "mxfp8" ? Numbers{128, 2}
                                   : Numbers{1},
               Bytes(static_cast<std::size_t>(is_fp4              ? 1024
                                              : format == "mxfp8" ? 256
                                                                  : 4)));
    if (is_fp4) stored.add("a.weight_scale_2", kF32, {}, std::vector<float>{1});
    if (is_in_header) stored.set_metadata("_quantization_metadata", all);
    if (!is_in_header)
      stored.add("a.comfy_quant", kU8, {std::ssize(text)}, std::vector<char>(text.begin(), text.end()));
    stored.add("scaled_fp8", kF8, {0}, Bytes());
    return dequantized(stored.reader(), kBf16, {});
  };
  for (const bool is_in_header : {false, true}) {
    const auto reader = of("float8_e4m3fn", is_in_header);
    ASSERT_EQ(reader->catalog().tensors.size(), 1U);
    EXPECT_EQ(reader->catalog().tensors[0].name, "a.weight");
    for (const char* const format : {"nvfp4", "mxfp8"}) {
      try {
        of(format, is_in_header);
        ADD_FAILURE() << format;
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kUnsupported) << format;
        EXPECT_EQ(error.tensor(), "a.weight");
        EXPECT_THAT(error.what(), ::testing::HasSubstr("ComfyUI"));
      }
    }
  }
}

/// compressed-tensors' strategy `tensor`.
TEST(FindFormulas, PackedIntegersMayHaveOneScaleForTheTensor) {
  for (const bool has_zero : {false, true}) {
    Stored stored;
    stored.add("a.weight_packed", kI32, {2, 1}, std::vector<std::uint32_t>{0x76543210U, 0xFEDCBA98U});
    stored.add("a.weight_scale", kF32, {1}, std::vector<float>{0.5F});
    stored.add("a.weight_shape", kI64, {2}, std::vector<std::int64_t>{2, 8});
    if (has_zero) stored.add("a.weight_zero_point", kI8, {1}, std::vector<std::int8_t>{-2});
    const auto reader =
        dequantized(stored.reader(), kBf16, stating("compressed-tensors", {{.bits = 4, .is_symmetric = !has_zero}}));
    const std::vector<float> values = test::read_bfloat16(*reader, "a.weight");
    ASSERT_EQ(values.size(), 16U);
    for (int i = 0; i < 16; ++i) EXPECT_EQ(values[static_cast<std::size_t>(i)], 0.5 * (i - 8 + (has_zero ? 2 : 0)));
  }
}

TEST(FindFormulas, NumbersOfActivationsAndCachesAreDropped) {
  Stored stored = zeros_of({{"a.k_proj.weight", kF8, {8, 8}},
                            {"a.k_proj.weight_scale", kF32, {8, 1}},
                            {"a.k_proj.input_scale_ub", kF32, {1}},
                            {"a.k_scale", kF32, {1}},
                            {"a.k_zero_point", kI8, {1}},
                            {"a.v_global_scale", kF32, {1}},
                            {"a.v_zero_point", kI8, {1}},
                            {"a.prob_output_scale", kF32, {1}},
                            {"a.kv_cache_scaling_factor", kF32, {1}}});
  const auto reader = dequantized(stored.reader(), kBf16, stating("compressed-tensors"));
  ASSERT_EQ(reader->catalog().tensors.size(), 1U);
  EXPECT_EQ(reader->catalog().tensors[0].name, "a.k_proj.weight");
}

TEST(FindFormulas, AStatedShapeMustBeTheOneOfTheScales) {
  Stored stored;
  stored.add("a.weight_packed", kI32, {2, 4}, Bytes(32)).add("a.weight_scale", kF32, {2, 2}, std::vector<float>(4, 1));
  stored.add("a.weight_shape", kI64, {2}, std::vector<std::int64_t>{2, 31});
  const auto reader =
      dequantized(stored.reader(), kBf16, {.is_quantized = true, .schemes = {{.bits = 4, .group_size = 16}}});
  EXPECT_THROW(test::read_tensor(*reader, "a.weight"), Error);
}

TEST(FindFormulas, APlainCheckpointStaysTheReaderThatItWas) {
  Stored stored = zeros_of({{"a.weight", kF32, {2, 2}}, {"a.scale", kF32, {2}}});
  auto inner = stored.reader();
  const Reader* const before = inner.get();
  EXPECT_EQ(dequantized(std::move(inner), kBf16, {}).get(), before);
}

TEST(FindFormulas, NamesOfResultsAreThoseOfPlainWeights) {
  Stored stored = zeros_of({{"a.qweight", kI32, {4, 8}},
                            {"a.qzeros", kI32, {1, 1}},
                            {"a.scales", kF16, {1, 8}},
                            {"b.weight_packed", kU8, {4, 16}},
                            {"b.weight_scale", kU8, {4, 1}},
                            {"c.gate_blocks", kU8, {1, 4, 1, 16}},
                            {"c.gate_scales", kU8, {1, 4, 1}},
                            {"d.gate", kF8, {2, 4, 4}},
                            {"d.gate_scale_inv", kF32, {2, 1, 1}},
                            {"e.k_scale", kF32, {1}},
                            {"f.gate_packed", kU8, {2, 4, 16}},
                            {"f.gate_scale", kF8, {2, 4, 2}},
                            {"f.gate_global_scale", kF32, {2}},
                            {"g._weight_qdata", kI8, {4, 8}},
                            {"g._weight_scale", kF32, {4, 2}},
                            {"g._weight_zero_point", kI8, {4, 2}}});
  const auto reader = dequantized(stored.reader(), kBf16, kQuantized);
  std::vector<std::string> names;
  for (const Tensor& tensor : reader->catalog().tensors) names.emplace_back(tensor.name);
  EXPECT_EQ(names, (std::vector<std::string>{"a.weight", "b.weight", "c.gate", "d.gate", "f.gate", "g.weight"}));
}

TEST(FindFormulas, CostIsLinearInTheTensors) {
  Stored stored;
  for (int i = 0; i < 46'000; ++i) {
    const std::string name = fmt::format("model.layers.{}.mlp.experts.{}.gate_proj.weight", i / 384, i % 384);
    stored.add(name, kF8, {2, 2}, Bytes(4)).add(name + "_scale", kF32, {1}, Bytes(4));
  }
  auto inner = stored.reader();
  std::unique_ptr<Reader> reader;
  const double seconds = test::cpu_seconds([&] { reader = dequantized(std::move(inner), kBf16, {}); });
  EXPECT_EQ(reader->catalog().tensors.size(), 46'000U);
  EXPECT_LT(seconds, test::cpu_limit(2));
}

}  // namespace
}  // namespace shard
