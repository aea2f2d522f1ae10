// Statements of a model folder's JSON files about quantization.
#include <gtest/gtest.h>

#include <memory>
#include <span>
#include <string>

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
}

}  // namespace
}  // namespace shard
