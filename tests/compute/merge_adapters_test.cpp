#include "libshard/compute/merge_adapters.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>

#include "libshard/compute/computed_reader.h"
#include "libshard/compute/find_formulas.h"
#include "tests/compute/stored.h"
#include "tests/support/cpu_time.h"
#include "tests/support/expect_error.h"

namespace shard {
namespace {

using test::Bytes;
using test::bytes_of;
using test::Numbers;
using test::read_tensor;
using test::Stored;

constexpr DType kF32 = DType::kFloat32;
constexpr const char* kPlain = R"({"peft_type": "LORA", "lora_alpha": 6})";

/// Numbers with few bits, so that products and sums are exact in float32.
std::vector<float> numbers(std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& each : values) each = static_cast<float>(static_cast<int>(random() % 17) - 8) / 8;
  return values;
}

std::vector<float> read_floats(Reader& reader, const std::string& name) {
  const Bytes bytes = read_tensor(reader, name);
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

std::unique_ptr<Reader> merged(Stored base, Stored adapter, const std::string& config = kPlain, double weight = 1) {
  std::vector<Adapter> adapters;
  adapters.push_back(
      {.reader = adapter.reader(), .config = parse_adapter_config(config, "c.json"), .weight = weight, .label = "x"});
  std::vector<MergedAdapter> counts;
  return merge_adapters(base.reader(), std::move(adapters), counts);
}

std::pair<ErrorCode, std::string> refusal(Stored base, Stored adapter, const std::string& config = kPlain) {
  try {
    merged(std::move(base), std::move(adapter), config);
  } catch (const Error& error) {
    return {error.code(), error.what()};
  }
  return {ErrorCode::kPeer, "none"};
}

Stored weights(const std::string& name, const Numbers& shape) {
  Stored stored;
  stored.add(name, kF32, shape, numbers(checked_numel(shape), 1));
  return stored;
}

Stored pair(const std::string& module, const Numbers& a, const Numbers& b) {
  Stored stored;
  stored.add("base_model.model." + module + ".lora_A.weight", kF32, a, numbers(checked_numel(a), 2));
  stored.add("base_model.model." + module + ".lora_B.weight", kF32, b, numbers(checked_numel(b), 3));
  return stored;
}

TEST(MergeAdapters, IsTheLoopInDouble) {
  constexpr std::int64_t kRows = 300, kColumns = 1001, kRank = 5;
  const auto reader = merged(weights("m.q.weight", {kRows, kColumns}), pair("m.q", {kRank, kColumns}, {kRows, kRank}));
  const std::vector<float> w = numbers(kRows * kColumns, 1), a = numbers(kRank * kColumns, 2),
                           b = numbers(kRows * kRank, 3);
  const std::vector<float> found = read_floats(*reader, "m.q.weight");
  for (std::int64_t i = 0; i < kRows; ++i) {
    for (std::int64_t j = 0; j < kColumns; ++j) {
      double sum = 0;
      for (std::int64_t k = 0; k < kRank; ++k) {
        sum += static_cast<double>(b[static_cast<std::size_t>(i * kRank + k)]) *
               static_cast<double>(a[static_cast<std::size_t>(k * kColumns + j)]);
      }
      const double wanted = static_cast<double>(w[static_cast<std::size_t>(i * kColumns + j)]) + sum * (6.0 / 5);
      ASSERT_NEAR(found[static_cast<std::size_t>(i * kColumns + j)], wanted, 1e-5) << i << ' ' << j;
    }
  }
}

TEST(MergeAdapters, BiasesThatWereTrainedReplaceThoseOfTheBaseModel) {
  constexpr const char* kConfig = R"({"peft_type": "LORA", "lora_alpha": 6, "bias": "lora_only"})";
  const auto base = [] {
    Stored stored = weights("m.q.weight", {4, 3});
    stored.add("m.q.bias", kF32, {4}, std::vector<float>{1, 2, 3, 4});
    return stored;
  };
  const auto adapter = [] {
    Stored stored = pair("m.q", {2, 3}, {4, 2});
    stored.add("base_model.model.m.q.base_layer.bias", kF32, {4}, std::vector<float>{5, 6, 7, 8});
    return stored;
  };
  EXPECT_EQ(read_floats(*merged(base(), adapter(), kConfig), "m.q.bias"), (std::vector<float>{5, 6, 7, 8}));
  EXPECT_EQ(read_floats(*merged(base(), pair("m.q", {2, 3}, {4, 2}), kConfig), "m.q.bias"),
            (std::vector<float>{1, 2, 3, 4}));
  const Error error = test::error_of([&] { merged(base(), adapter(), kConfig, 0.5); });
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
}

TEST(MergeAdapters, Bfloat16IsTheSumRoundedOnce) {
  constexpr std::int64_t kRows = 13, kColumns = 1001, kRank = 5;
  const auto as = [](DType dtype) {
    Stored base;
    std::vector<std::uint16_t> codes;
    for (const float each : numbers(kRows * kColumns, 1)) codes.push_back(Bfloat16::encode(each));
    dtype == kF32 ? base.add("m.q.weight", kF32, {kRows, kColumns}, numbers(kRows * kColumns, 1))
                  : base.add("m.q.weight", dtype, {kRows, kColumns}, codes);
    return merged(std::move(base), pair("m.q", {kRank, kColumns}, {kRows, kRank}));
  };
  const std::vector<float> sums = read_floats(*as(kF32), "m.q.weight");
  const std::vector<float> found = test::read_bfloat16(*as(DType::kBfloat16), "m.q.weight");
  for (std::size_t i = 0; i < sums.size(); ++i) ASSERT_EQ(found[i], test::rounded(sums[i])) << i;
}

TEST(MergeAdapters, ReadsAnyRangeAsTheWhole) {
  Stored base;
  base.add_cut("m.q.weight", kF32, {60, 70}, bytes_of(numbers(60 * 70, 1)), 25, 33);
  const auto reader = merged(std::move(base), pair("m.q", {3, 70}, {60, 3}));
  const Bytes whole =
      read_tensor(*merged(weights("m.q.weight", {60, 70}), pair("m.q", {3, 70}, {60, 3})), "m.q.weight");
  EXPECT_EQ(read_tensor(*reader, "m.q.weight"), whole);
  const auto bytes = reader->bytes_of(reader->catalog().stored_of(reader->catalog().tensors[0]).storage);
  std::mt19937 random(4);
  for (int i = 0; i < 200; ++i) {
    const std::size_t begin = random() % whole.size(),
                      count = random() % std::min<std::size_t>(whole.size() - begin, 999) + 1;
    Bytes part(count);
    bytes->read_at(static_cast<std::int64_t>(begin), part);
    ASSERT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + static_cast<std::ptrdiff_t>(begin))) << begin;
  }
}

TEST(MergeAdapters, FindsOnePrefixForAllModules) {
  for (const auto& [base, adapter] : {std::pair{"model.l.q", "l.q"},
                                      {"l.q", "model.l.q"},
                                      {"language_model.l.q", "l.q"},
                                      {"model.language_model.l.q", "model.l.q"},
                                      {"l.q", "module.l.q"}}) {
    const auto reader = merged(weights(std::string(base) + ".weight", {2, 3}), pair(adapter, {1, 3}, {2, 1}));
    EXPECT_NE(read_floats(*reader, std::string(base) + ".weight"), numbers(6, 1)) << base;
  }
}

/// transformers 5 puts the towers of Gemma 3 and others into one module, and their files do not.
TEST(MergeAdapters, FilesOfABaseModelMayLackItsName) {
  Stored base = weights("h.0.attn.weight", {2, 3}), adapter = pair("transformer.h.0.attn", {1, 3}, {2, 1});
  base.add("h.1.attn.weight", kF32, {2, 3}, numbers(6, 1));
  const auto reader = merged(base, adapter);
  EXPECT_NE(read_floats(*reader, "h.0.attn.weight"), numbers(6, 1));
  EXPECT_EQ(read_floats(*reader, "h.1.attn.weight"), numbers(6, 1));
}

TEST(MergeAdapters, TowersMayHaveDifferentPrefixes) {
  Stored base;
  for (const char* name : {"language_model.model.l.q.weight", "language_model.model.l.v.weight", "visual.q.weight"}) {
    base.add(name, kF32, {2, 3}, numbers(6, 1));
  }
  Stored adapter;
  for (const char* module : {"model.language_model.l.q", "model.language_model.l.v", "model.visual.q"}) {
    const std::string name = fmt::format("base_model.model.{}.lora_", module);
    adapter.add(name + "A.weight", kF32, {1, 3}, numbers(3, 2)).add(name + "B.weight", kF32, {2, 1}, numbers(2, 3));
  }
  const auto reader = merged(base, adapter);
  for (const Tensor& each : reader->catalog().tensors) {
    EXPECT_NE(read_floats(*reader, std::string(each.name)), numbers(6, 1)) << each.name;
  }
  Stored unclear = weights("language_model.model.l.q.weight", {2, 3});
  unclear.add("language_model.model.l.v.weight", kF32, {2, 3}, numbers(6, 1));
  unclear.add("language_model.model.visual.q.weight", kF32, {2, 3}, numbers(6, 1));
  unclear.add("visual.q.weight", kF32, {2, 3}, numbers(6, 1));
  EXPECT_EQ(refusal(unclear, adapter).first, ErrorCode::kInvalidArgument);
}

TEST(MergeAdapters, TiedWeightsStayOne) {
  Stored base = weights("a.weight", {2, 3});
  base.add_alias("b.weight", "a.weight");
  const auto reader = merged(base, pair("a", {1, 3}, {2, 1}));
  EXPECT_EQ(reader->catalog().tensors[1].alias_of, 0U);
  EXPECT_EQ(read_tensor(*reader, "a.weight"), read_tensor(*reader, "b.weight"));
}

TEST(MergeAdapters, OneOfTwoTiedTensorsIsNotReplaced) {
  Stored base = weights("a.weight", {2, 3});
  base.add_alias("b.weight", "a.weight");
  for (const std::string name : {"a.weight", "b.weight"}) {
    Stored adapter;
    adapter.add("base_model.model." + name, kF32, {2, 3}, numbers(6, 4));
    const auto [code, message] = refusal(base, adapter);
    EXPECT_EQ(code, ErrorCode::kUnsupported) << name;
    EXPECT_NE(message.find("replaces '" + name + "' only"), std::string::npos) << message;
  }
}

/// A quantized weight, a plain one, and an adapter for both, merged after dequantization to bfloat16.
std::unique_ptr<Reader> merged_dequantized(const std::vector<std::uint8_t>& codes, const std::vector<float>& scales) {
  Stored base = weights("m.o.weight", {4, 6});
  base.add("m.q.weight", DType::kFloat8E4m3fn, {4, 6}, codes).add("m.q.weight_scale_inv", kF32, {2, 3}, scales);
  Stored adapter = pair("m.q", {2, 6}, {4, 2});
  adapter.add("base_model.model.m.o.lora_A.weight", kF32, {2, 6}, numbers(12, 2));
  adapter.add("base_model.model.m.o.lora_B.weight", kF32, {4, 2}, numbers(8, 3));
  std::vector<Adapter> adapters;
  adapters.push_back({.reader = adapter.reader(), .config = parse_adapter_config(kPlain, "c.json"), .label = "x"});
  std::vector<MergedAdapter> counts;
  auto plain = dequantized(base.reader(), DType::kBfloat16, {.is_quantized = true, .schemes = {{.block = {2, 2}}}});
  const auto& computed = dynamic_cast<const ComputedReader&>(*plain);
  return merge_adapters(std::move(plain), std::move(adapters), counts, {&computed});
}

TEST(MergeAdapters, DequantizedWeightsAreRoundedOnce) {
  std::vector<std::uint8_t> codes(24);
  for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::uint8_t>(0x31 + 3 * i);
  const std::vector<float> scales{1.01F, 0.7F, 1.3F, 0.11F, 0.37F, 2.9F};
  const auto reader = merged_dequantized(codes, scales);
  const std::vector<float> found = test::read_bfloat16(*reader, "m.q.weight"), a = numbers(12, 2), b = numbers(8, 3);
  int differing = 0;  // From the result with two roundings.
  for (std::size_t i = 0; i < found.size(); ++i) {
    const std::size_t row = i / 6, column = i % 6;
    const float weight = Float8E4m3fn::decode(codes[i]) * scales[row / 2 * 3 + column / 2];
    const float delta = (b[row * 2] * a[column] + b[row * 2 + 1] * a[6 + column]) * 3;
    EXPECT_EQ(found[i], test::rounded(weight + delta)) << i;
    differing += test::rounded(weight + delta) != test::rounded(test::rounded(weight) + delta) ? 1 : 0;
  }
  EXPECT_GT(differing, 0);
  const std::vector<float> plain = read_floats(*reader, "m.o.weight"), w = numbers(24, 1);
  for (std::size_t i = 0; i < plain.size(); ++i) {
    EXPECT_EQ(plain[i], w[i] + (b[i / 6 * 2] * a[i % 6] + b[i / 6 * 2 + 1] * a[6 + i % 6]) * 3);
  }
}

TEST(MergeAdapters, ExpertsThatAreSquareFollowTheOthers) {
  Stored base = weights("e.down", {2, 3, 3});
  EXPECT_EQ(refusal(base, pair("e", {4, 3}, {3, 4})).first, ErrorCode::kUnsupported);
  base.add("e.up", kF32, {2, 3, 6}, numbers(36, 5));
  Stored adapter = pair("e", {4, 3}, {3, 4});
  adapter.add("base_model.model.e.base_layer.lora_A.weight", kF32, {4, 3}, numbers(12, 6));
  adapter.add("base_model.model.e.base_layer.lora_B.weight", kF32, {6, 4}, numbers(24, 7));
  const auto reader = merged(base, adapter);
  const std::vector<float> found = read_floats(*reader, "e.down"), w = numbers(18, 1), a = numbers(12, 2),
                           b = numbers(12, 3);
  for (std::size_t e = 0; e < 2; ++e) {
    for (std::size_t i = 0; i < 3; ++i) {
      for (std::size_t j = 0; j < 3; ++j) {  // in x out: A^T B^T.
        float sum = 0;
        for (std::size_t k = 0; k < 2; ++k) sum += a[(e * 2 + k) * 3 + i] * b[j * 4 + k * 2 + e];
        EXPECT_FLOAT_EQ(found[(e * 3 + i) * 3 + j], w[(e * 3 + i) * 3 + j] + 3 * sum) << e << i << j;
      }
    }
  }
}

void add_pair(Stored& adapter, const std::string& module, const Numbers& a, const Numbers& b) {
  adapter.add("base_model.model." + module + ".lora_A.weight", kF32, a, numbers(checked_numel(a), 4));
  adapter.add("base_model.model." + module + ".lora_B.weight", kF32, b, numbers(checked_numel(b), 5));
}

/// GPT-2 has Conv1D in its layers and Linear as its head; PEFT's flag is that of the module which it changed last.
TEST(MergeAdapters, SizesShowWhichMatricesAreTransposed) {
  Stored base = weights("h.attn.c_proj.weight", {3, 3}), adapter = pair("h.attn.c_proj", {1, 3}, {3, 1});
  base.add("h.mlp.c_proj.weight", kF32, {6, 3}, numbers(18, 6)).add("head.weight", kF32, {7, 3}, numbers(21, 7));
  add_pair(adapter, "h.mlp.c_proj", {1, 6}, {3, 1});
  add_pair(adapter, "head", {1, 3}, {7, 1});
  const auto reader = merged(base, adapter);
  const std::vector<float> w = numbers(9, 1), a = numbers(3, 2), b = numbers(3, 3);
  const std::vector<float> found = read_floats(*reader, "h.attn.c_proj.weight");
  for (std::size_t i = 0; i < 9; ++i) EXPECT_EQ(found[i], w[i] + 6 * a[i / 3] * b[i % 3]) << i;
  const std::vector<float> head = read_floats(*reader, "head.weight"), v = numbers(21, 7), of_a = numbers(3, 4),
                           of_b = numbers(7, 5);
  for (std::size_t i = 0; i < 21; ++i) EXPECT_EQ(head[i], v[i] + 6 * of_a[i % 3] * of_b[i / 3]) << i;
  base.add("h.q.weight", kF32, {3, 3}, numbers(9, 8));
  add_pair(adapter, "h.q", {1, 3}, {3, 1});
  EXPECT_EQ(refusal(base, adapter).first, ErrorCode::kUnsupported);
}

/// PEFT saves the base weights of embeddings beside their factors.
TEST(MergeAdapters, SavedBaseWeightsAreChangedByTheirPairs) {
  const Stored base = weights("embed.weight", {5, 2});
  Stored adapter;
  adapter.add("base_model.model.embed.base_layer.base_layer.weight", kF32, {5, 2}, numbers(10, 4));
  adapter.add("base_model.model.embed.lora_embedding_A", kF32, {1, 5}, numbers(5, 2));
  adapter.add("base_model.model.embed.lora_embedding_B", kF32, {2, 1}, numbers(2, 3));
  for (const double weight : {1.0, 0.5}) {
    const std::vector<float> found = read_floats(*merged(base, adapter, kPlain, weight), "embed.weight");
    const std::vector<float> w = numbers(10, 4), a = numbers(5, 2), b = numbers(2, 3);
    for (std::size_t i = 0; i < 10; ++i) {
      EXPECT_EQ(found[i], w[i] + static_cast<float>(6 * weight) * (a[i / 2] * b[i % 2])) << i;
    }
  }
}

/// The scale of the merged pair of a module: a rank of 1, an alpha of 1 unless a pattern says otherwise.
float found_scale(const Numbers& shape, const std::string& weight, const std::string& more) {
  const Numbers a{shape.size() == 3 ? shape[0] : 1, shape.back()}, b{shape[shape.size() - 2], a[0]};
  const auto ones = [](const Numbers& of) {
    return std::vector<float>(static_cast<std::size_t>(checked_numel(of)), 1);
  };
  Stored adapter;
  adapter.add("base_model.model.m.e.lora_A.weight", kF32, a, ones(a));
  adapter.add("base_model.model.m.e.lora_B.weight", kF32, b, ones(b));
  Stored base;
  base.add(weight, kF32, shape, std::vector<float>(static_cast<std::size_t>(checked_numel(shape))));
  return read_floats(*merged(base, adapter, R"({"peft_type": "LORA", "lora_alpha": 1, )" + more + "}"), weight)[0];
}

/// PEFT matches alpha_pattern with the name of the parameter if `target_parameters` named it.
TEST(MergeAdapters, AlphasOfParametersFollowTheirOwnNames) {
  const auto of_experts = [](const std::string& key) {
    return found_scale({2, 4, 3}, "m.e.up", R"("target_parameters": ["e.up"], "alpha_pattern": {")" + key + R"(": 5})");
  };
  for (const char* key : {"up", "e.up", "m.e.up", R"(e\\..*)"}) EXPECT_EQ(of_experts(key), 5) << key;
  for (const char* key : {"e", "m.e", "p"}) EXPECT_EQ(of_experts(key), 1) << key;
  const auto of_matrix = [](const std::string& targets, const std::string& key) {
    return found_scale({4, 3}, "m.e.weight",
                       R"("target_parameters": )" + targets + R"(, "alpha_pattern": {")" + key + R"(": 5})");
  };
  EXPECT_EQ(of_matrix(R"(["x", "e.weight"])", "e.weight"), 5);
  EXPECT_EQ(of_matrix(R"(["x", "e.weight"])", "e"), 1);
  for (const char* targets : {"null", "[]", R"(["x.weight", "ee.weight"])"}) {
    EXPECT_EQ(of_matrix(targets, "e.weight"), 1) << targets;
    EXPECT_EQ(of_matrix(targets, "e"), 5) << targets;
  }
}

TEST(MergeAdapters, RefusesByName) {
  const Stored base = weights("m.q.weight", {2, 3});
  EXPECT_EQ(refusal(base, pair("m.v", {1, 3}, {2, 1})).first, ErrorCode::kInvalidArgument);
  EXPECT_EQ(refusal(base, pair("m.q", {1, 4}, {2, 1})).first, ErrorCode::kCorruption);
  EXPECT_EQ(refusal(base, pair("m.q", {1, 3, 1, 1}, {2, 1, 2, 1})).first, ErrorCode::kUnsupported);
  Stored half;
  half.add("base_model.model.m.q.lora_A.weight", kF32, {1, 3}, numbers(3, 1));
  const auto of_half = refusal(base, half);
  EXPECT_EQ(of_half.first, ErrorCode::kCorruption);
  EXPECT_NE(of_half.second.find("half a pair"), std::string::npos) << of_half.second;
  Stored other = pair("m.q", {1, 3}, {2, 1});
  other.add("base_model.model.m.q.lora_B.bias", kF32, {2}, numbers(2, 1));
  EXPECT_EQ(refusal(base, other).first, ErrorCode::kUnsupported);
  Stored bytes;
  bytes.add("m.q.weight", DType::kFloat8E4m3fn, {2, 3}, Bytes(6));
  EXPECT_EQ(refusal(bytes, pair("m.q", {1, 3}, {2, 1})).first, ErrorCode::kUnsupported);
  // nn.MultiheadAttention: PEFT has the output projection inside the wrapped module of the packed input projections.
  Stored attention = weights("m.in_proj_weight", {6, 2});
  attention.add("m.out_proj.weight", kF32, {2, 2}, numbers(4, 3));
  for (const auto& [name, rows] : {std::pair("m", 6), std::pair("m.base_layer.out_proj", 2)}) {
    const auto of_attention = refusal(attention, pair(name, {1, 2}, {rows, 1}));
    EXPECT_EQ(of_attention.first, ErrorCode::kUnsupported) << name;
    EXPECT_NE(of_attention.second.find("nn.MultiheadAttention"), std::string::npos) << of_attention.second;
  }
  Stored packed;
  packed.add("m.q.bias", kF32, {2}, numbers(2, 1)).add("m.q.weight_packed", DType::kInt32, {2, 1}, Bytes(8));
  EXPECT_EQ(refusal(packed, pair("m.q", {1, 3}, {2, 1})).first, ErrorCode::kUnsupported);
  EXPECT_EQ(
      refusal(base, pair("m.q", {1, 3}, {2, 1}), R"({"peft_type": "LORA", "lora_alpha": 1, "use_dora": true})").first,
      ErrorCode::kCorruption);
}

/// transformers 5 fuses experts, and PEFT names pairs so. Most checkpoints store experts one by one.
TEST(MergeAdapters, AdaptersOfFusedExpertsNameTheMapThatFuses) {
  const auto remedy = [](const std::string& module) {
    const Error error = test::error_of([&] {
      merged(weights("m.experts.0.up.weight", {2, 3}), pair(module, {2, 3}, {4, 2}));
    });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.suggestions().at(0).remedy;
  };
  EXPECT_EQ(remedy("m.experts"), Remedy::kFuseExperts);
  EXPECT_EQ(remedy("m.experts.base_layer"), Remedy::kFuseExperts);
  EXPECT_EQ(remedy("m.experts.1.up"), Remedy::kMatchNames);
}

TEST(AdapterConfig, TheFirstPatternThatMatchesCounts) {
  const AdapterConfig config = parse_adapter_config(
      R"({"peft_type": "LORA", "lora_alpha": 8, "alpha_pattern": {"z.q": 2, "q": 4, "layers\\.[0-9]+\\.k": 16}})", "c");
  EXPECT_EQ(config.scale_of("a.z.q", 2), 1);
  EXPECT_EQ(config.scale_of("a.y.q", 2), 2);
  EXPECT_EQ(config.scale_of("layers.12.k", 2), 8);
  EXPECT_EQ(config.scale_of("layers.12.kk", 2), 4);
  EXPECT_EQ(
      parse_adapter_config(R"({"peft_type": "LORA", "lora_alpha": 8, "use_rslora": true})", "c").scale_of("q", 16), 2);
}

TEST(AdapterConfig, CostIsLinearInItsKeys) {
  std::string text = R"({"peft_type": "LORA", "lora_alpha": 8)";
  for (int i = 0; i < 80'000; ++i) text += fmt::format(R"(,"{:x}":0)", i);
  const double seconds =
      test::cpu_seconds([&] { EXPECT_EQ(parse_adapter_config(text + "}", "c").scale_of("q", 2), 4); });
  EXPECT_LT(seconds, test::cpu_limit(0.5));  // If each key is compared with all others, it takes 4 seconds.
}

TEST(AdapterConfig, TheTaskOrTheClassShowsWhetherTheModelHasAHead) {
  const auto has_no_head = [](const std::string& more) {
    return parse_adapter_config(R"({"peft_type": "LORA", "lora_alpha": 8)" + more + "}", "c").has_no_head;
  };
  for (const char* with : {"", R"(, "task_type": null)", R"(, "task_type": "CAUSAL_LM")",
                           R"(, "auto_mapping": {"base_model_class": "LlamaForCausalLM"})",
                           R"(, "auto_mapping": {"base_model_class": "GPT2LMHeadModel"})"}) {
    EXPECT_FALSE(has_no_head(with)) << with;
  }
  for (const char* without : {R"(, "task_type": "FEATURE_EXTRACTION")", R"(, "task_type": "SEQ_CLS")",
                              R"(, "auto_mapping": {"base_model_class": "OPTModel"})"}) {
    EXPECT_TRUE(has_no_head(without)) << without;
  }
}

TEST(MergeAdapters, AConvolutionIsAProductOfMatrices) {
  constexpr std::int64_t kOut = 3, kIn = 2, kKernel = 4, kRank = 2;
  for (const Numbers& tail : {Numbers{kKernel}, Numbers{2, 2}}) {
    Numbers weight{kOut, kIn}, a{kRank, kIn}, b{kOut, kRank};
    weight.insert(weight.end(), tail.begin(), tail.end());
    a.insert(a.end(), tail.begin(), tail.end());
    b.resize(weight.size(), 1);
    const auto reader = merged(weights("c.weight", weight), pair("c", a, b));
    const std::vector<float> w = numbers(kOut * kIn * kKernel, 1), factors_a = numbers(kRank * kIn * kKernel, 2),
                             factors_b = numbers(kOut * kRank, 3), found = read_floats(*reader, "c.weight");
    for (std::size_t i = 0; i < w.size(); ++i) {
      const std::size_t row = i / (kIn * kKernel), column = i % (kIn * kKernel);
      float sum = 0;
      for (std::size_t r = 0; r < kRank; ++r) sum += factors_b[row * kRank + r] * factors_a[r * kIn * kKernel + column];
      EXPECT_EQ(found[i], w[i] + 6 / static_cast<float>(kRank) * sum) << i;
    }
  }
  // The factors of groups are not those of the whole weight.
  const auto [code, text] = refusal(weights("c.weight", {4, 1, 3}), pair("c", {2, 1, 3}, {4, 1, 1}));
  EXPECT_EQ(code, ErrorCode::kUnsupported);
  EXPECT_NE(text.find("is for a convolution with groups"), std::string::npos) << text;
}

TEST(MergeAdapters, WarnsOfModulesToSaveWithoutTensors) {
  const std::string config =
      R"({"peft_type": "LORA", "lora_alpha": 6, "bias": "all", "modules_to_save": ["classifier", "m.head"]})";
  const auto warnings = [&](bool has_head) {
    Stored base = weights("m.q.weight", {2, 3}), adapter = pair("m.q", {1, 3}, {2, 1});
    base.add("m.head.weight", kF32, {2, 2}, numbers(4, 1)).add("m.q.bias", kF32, {2}, numbers(2, 3));
    adapter.add("base_model.model.m.q.base_layer.bias", kF32, {2}, numbers(2, 4));
    if (has_head) adapter.add("base_model.model.m.head.weight", kF32, {2, 2}, numbers(4, 2));
    return merged(std::move(base), std::move(adapter), config)->catalog().warnings;
  };
  EXPECT_EQ(warnings(false),
            std::vector<std::string>{"x has no tensors for its modules_to_save ('classifier', 'm.head'); "
                                     "those of the base model are kept"});
  EXPECT_TRUE(warnings(true).empty());
}

TEST(AdapterConfig, MalformedOnesAreRefused) {
  const auto code = [](const std::string& text) {
    try {
      parse_adapter_config(text, "c");
    } catch (const Error& error) {
      return error.code();
    }
    return ErrorCode::kPeer;
  };
  for (const char* text : {"", "[]", "{", R"({"peft_type": "LORA"})", R"({"peft_type": "LORA", "lora_alpha": "8"})",
                           R"({"peft_type": "LORA", "lora_alpha": 8, "use_dora": 1})",
                           R"({"peft_type": "LORA", "lora_alpha": 8, "alpha_pattern": {"q": null}})",
                           R"({"peft_type": "LORA", "lora_alpha": 8, "alpha_pattern": [["q", 4]]})",
                           R"({"peft_type": "LORA", "lora_alpha": 8, "target_parameters": "q"})",
                           R"({"peft_type": "LORA", "lora_alpha": 8, "modules_to_save": {"q": 1}})"}) {
    EXPECT_EQ(code(text), ErrorCode::kCorruption) << text;
  }
  EXPECT_EQ(code("{}"), ErrorCode::kUnsupported);
  EXPECT_EQ(code(R"j({"peft_type": "LORA", "lora_alpha": 8, "alpha_pattern": {"(?=q)": 1}})j"),
            ErrorCode::kUnsupported);
  EXPECT_EQ(code(std::string(100'000, '[')), ErrorCode::kCorruption);
}

}  // namespace
}  // namespace shard
