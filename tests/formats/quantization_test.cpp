// Statements of a model folder's JSON files about quantization.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "formats/parts/quantization/config.h"
#include "libshard/core/error.h"
#include "tests/support/memory_disk.h"

namespace shard {
namespace {

QuantizationFacts facts(const std::string& text) { return parse_quantization(text, "config.json"); }

TEST(QuantizationConfig, IsStatedByTheModelOrAPartOfIt) {
  EXPECT_EQ(facts(R"({"quantization_config": {"quant_method": "gptq", "bits": 4}})").method, "gptq");
  EXPECT_TRUE(facts(R"({"text_config": {"quantization_config": {"quant_method": "fp8"}}})").is_quantized);
  EXPECT_TRUE(facts(R"({"compression_config": {"format": "pack-quantized"}})").is_quantized);
  EXPECT_EQ(facts(R"({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4"}})").method, "NVFP4");
}

TEST(QuantizationConfig, IsNotStatedByOtherMembers) {
  for (const char* text : {"{}", "[1]", R"({"quantization_config": null})", R"({"dtype": "bfloat16", "limit": NaN})",
                           R"({"vision_config": {"depth": 2}, "quantization_config_file": "x"})"}) {
    EXPECT_FALSE(facts(text).is_quantized) << text;
  }
}

TEST(QuantizationConfig, RefusesWhatIsNoJson) { EXPECT_THROW(facts("{"), Error); }

TEST(QuantizationConfig, ANumberPast64BitsIsSkippedAsAWhole) {
  EXPECT_TRUE(facts(R"({"quantization_config": {"bits": "1111111111111111111111111"}})").schemes.empty());
}

TEST(QuantizationConfig, IsStatedByFilesOfToolsAndNotByBrokenOnes) {
  const auto state = std::make_shared<MemoryState>();
  const std::unique_ptr<LocalDisk> disk = make_memory_disk(state);
  const auto put = [&](const char* path, std::string_view text) { state->put(path, std::as_bytes(std::span(text))); };
  put("/m/model.safetensors", "");
  EXPECT_FALSE(read_quantization(*disk, "/m").is_quantized);
  put("/m/config.json", R"({"quantization_config": {)");
  EXPECT_FALSE(read_quantization(*disk, "/m").is_quantized);
  put("/m/quantize_config.json", R"({"bits": 4})");
  EXPECT_TRUE(read_quantization(*disk, "/m").is_quantized);
  EXPECT_EQ(read_quantization(*disk, "/m").schemes.at(0).bits, 4);
}

TEST(QuantizationConfig, FormatsAreWordsAndNotVersionsOfTools) {
  const auto format = [](const std::string& member) {
    return facts(R"({"quantization_config": {"bits": 4, )" + member + "}}").schemes.at(0).format;
  };
  EXPECT_EQ(format(R"("format": "pack-quantized", "version": "0.9.1")"), "pack-quantized");
  EXPECT_EQ(format(R"("version": "gemm")"), "gemm");
  EXPECT_EQ(format(R"("is_marlin_format": true)"), "marlin");
  EXPECT_EQ(format(R"("is_marlin_format": false)"), "");
}

TEST(QuantizationConfig, TheStrategyIsThatOfWeights) {
  const QuantizationFacts found = facts(R"({"quantization_config": {"config_groups": {"group_0": {
      "input_activations": {"strategy": "token"}, "weights": {"strategy": "channel"}}}}})");
  ASSERT_EQ(found.schemes.size(), 1U);
  EXPECT_EQ(found.schemes[0].strategy, "channel");
}

/// AutoRound stores zero points less 1 only in the form of AutoGPTQ.
TEST(QuantizationConfig, PackingFormatsOfAutoRoundAreThoseOfGptqAndAwq) {
  const std::vector<std::pair<std::string, std::string>> formats{
      {"auto_round:auto_gptq", "gptq"}, {"auto_round:gptq", "gptq"},         {"auto", "gptq"},
      {"auto_round", "gptq_v2"},        {"auto_round:gptqmodel", "gptq_v2"}, {"auto_round:auto_awq", "gemm"}};
  for (const auto& [packing, format] : formats) {
    const QuantizationFacts found =
        facts(R"({"quantization_config": {"quant_method": "auto-round", "packing_format": ")" + packing + "\"}}");
    EXPECT_EQ(found.schemes.at(0).format, format) << packing;
  }
}

TEST(QuantizationConfig, SchemesAreThoseOfWeightsAndNotOfActivations) {
  const QuantizationFacts found = facts(R"({"hidden_size": 8, "bits": 1, "quantization_config": {
      "config_groups": {"group_0": {"format": "pack-quantized", "input_activations": {"num_bits": 3},
                                    "weights": {"num_bits": 4, "group_size": 32, "block_structure": null}},
                        "group_1": {"weights": {"num_bits": 8, "block_structure": [128, 64]}}},
      "kv_cache_scheme": {"num_bits": 5}, "checkpoint_format": "gptq_v2"}})");
  ASSERT_EQ(found.schemes.size(), 4U);
  EXPECT_EQ(found.schemes[0].bits, 4);
  EXPECT_EQ(found.schemes[0].group_size, 32);
  EXPECT_EQ(found.schemes[1].format, "pack-quantized");
  EXPECT_EQ(found.schemes[2].block, (std::vector<std::int64_t>{128, 64}));
  EXPECT_EQ(found.schemes[3].format, "gptq_v2");
}

TEST(QuantizationConfig, StatesWhichPartsAModuleHas) {
  const QuantizationFacts found = facts(R"({"symmetric": false, "quantization_config": {"desc_act": true,
      "config_groups": {"group_0": {"input_activations": {"symmetric": true}, "weights": {"symmetric": false}}}}})");
  ASSERT_EQ(found.schemes.size(), 2U);
  EXPECT_EQ(found.schemes[0].is_symmetric, false);
  EXPECT_EQ(found.schemes[1].is_symmetric, std::nullopt);
  EXPECT_EQ(found.schemes[1].is_reordered, true);
}

TEST(QuantizationConfig, StatesWhetherAGroupIndexIsStored) {
  const std::vector<std::pair<const char*, std::optional<bool>>> cases{
      {R"("group")", true},   {R"("dynamic")", true}, {"true", true},         {R"("weight")", false},
      {R"("static")", false}, {"false", false},       {"null", std::nullopt}, {R"("a new one")", std::nullopt}};
  for (const auto& [order, expected] : cases) {
    const QuantizationFacts found =
        facts(R"({"quantization_config": {"config_groups": {"g": {"weights": {"num_bits": 4, "actorder": )" +
              std::string(order) + "}}}}}");
    ASSERT_EQ(found.schemes.size(), 1U) << order;
    EXPECT_EQ(found.schemes[0].is_reordered, expected) << order;
  }
}

TEST(QuantizationConfig, KnowsWhetherInputsAreTransformed) {
  const auto transforms = [](const std::string& place) {
    return facts(R"({"quantization_config": {"transform_config": {"config_groups": {"u": {"apply": [{"location": ")" +
                 place + R"("}]}}}}})")
        .transforms_inputs;
  };
  EXPECT_TRUE(transforms("input"));
  EXPECT_TRUE(transforms("output"));
  EXPECT_FALSE(transforms("weight_input"));
  EXPECT_FALSE(transforms("k_cache"));
  EXPECT_FALSE(facts(R"({"quantization_config": {"transform_config": null}})").transforms_inputs);
  for (const char* const rotation :
       {R"("rotation_config": {"hadamard_type": "hadamard"})", R"("rotation": "random")"}) {
    EXPECT_TRUE(facts(R"({"quantization_config": {)" + std::string(rotation) + "}}").transforms_inputs) << rotation;
    EXPECT_FALSE(facts(R"({"vision_config": {)" + std::string(rotation) + "}}").transforms_inputs) << rotation;
  }
  for (const char* const none :
       {R"("rotation_config": null)", R"("rotation_config": {})", R"("rotation": false)", R"("rotation": "")"}) {
    EXPECT_FALSE(facts(R"({"quantization_config": {)" + std::string(none) + "}}").transforms_inputs) << none;
  }
}

TEST(QuantizationConfig, StatesTheMeaningOfCodesAndScales) {
  const QuantizationFacts found = facts(R"({"quantization_config": {"a": {"data_type": "mx_int"},
      "b": {"weight_scale_semantics": "inverse"}}, "data_type": "x"})");
  ASSERT_EQ(found.schemes.size(), 2U);
  EXPECT_EQ(found.schemes[0].numbers, "mx_int");
  EXPECT_FALSE(found.schemes[0].divides);
  EXPECT_TRUE(found.schemes[1].divides);
  const auto has_powers = [](const std::string& format) {
    const std::string config = R"({"quantization_config": {"weight_block_size": [128, 128], "scale_fmt": ")" + format;
    return facts(config + "\"}}").schemes.at(0).has_powers;
  };
  EXPECT_TRUE(has_powers("ue8m0"));
  EXPECT_FALSE(has_powers("float"));
}

TEST(QuantizationConfig, ListsModulesThatStayPlain) {
  const QuantizationFacts found = facts(R"({"ignore": ["a"], "text_config": {"quantization_config": {
      "ignore": ["lm_head", 3, "re:.*\\.gate$", ["b"]], "kv_cache_scheme": {"ignore": ["c"]}}}})");
  EXPECT_EQ(found.ignored, (std::vector<std::string>{"lm_head", "re:.*\\.gate$"}));
}

TEST(QuantizationConfig, KeepsEachSchemeOnceAndALimitedNumber) {
  std::string text = R"({"quantization_config": {)";
  for (int i = 0; i < 100; ++i) text += fmt::format(R"("a{0}": {{"bits": {1}}}, "b{0}": {{"bits": {1}}}, )", i, i / 2);
  EXPECT_EQ(facts(text + R"("bits": 4}})").schemes.size(), 50U);
  for (int i = 100; i < 200; ++i) text += fmt::format(R"("a{0}": {{"bits": {0}}}, )", i);
  EXPECT_EQ(facts(text + R"("bits": 4}})").schemes.size(), QuantizationFacts::kMostSchemes);
}

std::string plain(const std::string& text) { return plain_config(text, "config.json", DType::kBfloat16); }

TEST(PlainConfig, LosesStatementsAboutQuantizationAndNothingElse) {
  EXPECT_EQ(plain(R"({"a": 1, "quantization_config": {"bits": 4}, "b": [1, 2]})"), R"({"a": 1,"b": [1, 2]})");
  EXPECT_EQ(plain(R"({"quantization_config": {}, "a": NaN})"), R"({"a": NaN})");
  EXPECT_EQ(plain(R"({"a": 1, "quantization_config": {}, "compression_config": {}})"), R"({"a": 1})");
  EXPECT_EQ(plain(R"({"quantization_config": {}})"), "{}");
  EXPECT_EQ(plain(R"({"quantization": {"bits": 4}, "quantization_config": {"bits": 4}, "a": 1})"), R"({"a": 1})");
  EXPECT_EQ(plain("{\n  \"a\": 1,\n  \"text_config\": {\n    \"b\": 2,\n    \"quantization_config\": {}\n  }\n}\n"),
            "{\n  \"a\": 1,\n  \"text_config\": {\n    \"b\": 2\n  }\n}\n");
}

TEST(PlainConfig, StatesTheDtypeWhereOneIsStated) {
  EXPECT_EQ(plain(R"({"torch_dtype": "float16", "text_config": {"dtype": "float32"}, "dtype": null})"),
            R"({"torch_dtype": "bfloat16","text_config": {"dtype": "bfloat16"},"dtype": null})");
  EXPECT_THROW(plain("["), Error);
}

}  // namespace
}  // namespace shard
