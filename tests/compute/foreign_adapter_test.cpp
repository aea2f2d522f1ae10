#include "libshard/compute/foreign_adapter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/compute/stored.h"
#include "tests/support/expect_error.h"

namespace shard {
namespace {

using test::Numbers;
using test::Stored;
using ::testing::ElementsAre;

constexpr DType kF32 = DType::kFloat32;

/// A base model with modules [8, 6].
Stored base_of(const std::vector<std::string>& modules, const Numbers& shape = {8, 6}) {
  Stored base;
  for (const std::string& module : modules) {
    base.add(module + ".weight", kF32, shape, std::vector<float>(static_cast<std::size_t>(checked_numel(shape))));
  }
  return base;
}

/// Adds a pair of rank 2 for [8, 6], and its alpha if that is not 0.
void add_pair(Stored& adapter, const std::string& module, float alpha = 0,
              const std::string& down = ".lora_down.weight", const std::string& up = ".lora_up.weight") {
  adapter.add(module + down, kF32, {2, 6}, std::vector<float>(12));
  adapter.add(module + up, kF32, {8, 2}, std::vector<float>(16));
  if (alpha != 0) adapter.add(module + ".alpha", kF32, {}, std::vector<float>{alpha});
}

ForeignAdapter read_from(Stored& adapter, Stored base) {
  const std::unique_ptr<Reader> reader = adapter.reader();
  EXPECT_TRUE(is_foreign_adapter(reader->catalog()));
  const std::unique_ptr<Reader> model = base.reader();
  return read_foreign_adapter(reader, model->catalog(), "x");
}

std::vector<std::string> names_in(const ForeignAdapter& adapter) {
  std::vector<std::string> names;
  for (const ForeignAdapter::Factor& each : adapter.factors) names.push_back(each.name);
  std::ranges::sort(names);
  return names;
}

std::pair<ErrorCode, std::string> refusal_of(Stored& adapter, Stored base) {
  const Error error = test::error_of([&] { read_from(adapter, std::move(base)); });
  return {error.code(), error.what()};
}

TEST(ForeignAdapter, UnderscoresOfKohyaAreTheDotsOfTheBaseModel) {
  Stored adapter;
  add_pair(adapter, "lora_unet_down_blocks_0_to_q", 4);
  add_pair(adapter, "lora_unet_down_blocks_0_to_out_0");
  const ForeignAdapter found = read_from(adapter, base_of({"down_blocks.0.to_q", "down_blocks.0.to_out.0", "other"}));
  EXPECT_THAT(names_in(found),
              ElementsAre("down_blocks.0.to_out.0.lora_A.weight", "down_blocks.0.to_out.0.lora_B.weight",
                          "down_blocks.0.to_q.lora_A.weight", "down_blocks.0.to_q.lora_B.weight"));
  EXPECT_EQ(found.config.scale_of("down_blocks.0.to_q", 2), 2);
  EXPECT_EQ(found.config.scale_of("down_blocks.0.to_out.0", 2), 1);  // The alpha is the rank.
  EXPECT_THAT(found.warnings, ::testing::IsEmpty());
}

TEST(ForeignAdapter, ModelsInOneFileHaveTheirOwnPrefixes) {
  Stored adapter;
  add_pair(adapter, "lora_unet_blocks_0_q");
  add_pair(adapter, "lora_te1_text_model_layers_0_q");
  const ForeignAdapter found =
      read_from(adapter, base_of({"model.diffusion_model.blocks.0.q", "cond.transformer.text_model.layers.0.q"}));
  EXPECT_THAT(names_in(found), ElementsAre("cond.transformer.text_model.layers.0.q.lora_A.weight",
                                           "cond.transformer.text_model.layers.0.q.lora_B.weight",
                                           "model.diffusion_model.blocks.0.q.lora_A.weight",
                                           "model.diffusion_model.blocks.0.q.lora_B.weight"));
}

TEST(ForeignAdapter, PartsForOtherModelsAreAWarning) {
  Stored adapter;
  add_pair(adapter, "unet.blocks.0.to_q", 0, ".lora.down.weight", ".lora.up.weight");
  add_pair(adapter, "text_encoder.layers.0.q_proj", 0, ".lora_linear_layer.down.weight",
           ".lora_linear_layer.up.weight");
  const ForeignAdapter found = read_from(adapter, base_of({"blocks.0.to_q"}));
  EXPECT_EQ(found.factors.size(), 2U);
  EXPECT_THAT(found.warnings,
              ElementsAre("x: skipped 1 pair for 'text_encoder', because the base model has no such modules"));
  // Equal names of other sizes belong to a different model.
  EXPECT_EQ(refusal_of(adapter, base_of({"blocks.0.to_q"}, {8, 7})).first, ErrorCode::kInvalidArgument);
}

TEST(ForeignAdapter, APartOfWhichSomeModulesExistIsNotSkipped) {
  Stored adapter;
  add_pair(adapter, "text_encoder.q_proj");
  for (int i = 10; i < 90; ++i) add_pair(adapter, "unet.blocks." + std::to_string(i) + ".to_q");
  add_pair(adapter, "unet.last.to_q");
  EXPECT_EQ(refusal_of(adapter, base_of({"q_proj", "last.to_q"})),
            std::pair(ErrorCode::kInvalidArgument, std::string("cannot merge x: the base model has nothing for "
                                                               "'unet.blocks.10.to_q.lora_down.weight'")));
}

TEST(ForeignAdapter, NamesOfTextModelsMayLackTheirFirstPart) {
  Stored adapter;
  add_pair(adapter, "lora_te_text_model_encoder_layers_0_q_proj");
  EXPECT_EQ(names_in(read_from(adapter, base_of({"encoder.layers.0.q_proj"}))).front(),
            "encoder.layers.0.q_proj.lora_A.weight");
  // CLIP's encoder of images has the same names, and may have the same sizes.
  EXPECT_EQ(refusal_of(adapter, base_of({"vision_model.encoder.layers.0.q_proj"})).first, ErrorCode::kInvalidArgument);
}

TEST(ForeignAdapter, MetadataOfDiffusersStatesTheScale) {
  Stored adapter;
  add_pair(adapter, "transformer.blocks.0.ff", 0, ".lora_A.weight", ".lora_B.weight");
  EXPECT_FALSE(is_foreign_adapter(adapter.reader()->catalog()));  // Also a name in GPT-2's form.
  adapter.set_metadata(
      "lora_adapter_metadata",
      R"({"transformer.lora_alpha": 8, "transformer.alpha_pattern": {"ff": 3}, "other.lora_alpha": 1})");
  EXPECT_EQ(read_from(adapter, base_of({"blocks.0.ff"})).config.scale_of("blocks.0.ff", 2), 1.5);
  adapter.set_metadata("lora_adapter_metadata", R"({"transformer.lora_alpha": 8, "transformer.lora_bias": true})");
  EXPECT_EQ(refusal_of(adapter, base_of({"blocks.0.ff"})).first, ErrorCode::kUnsupported);
  adapter.set_metadata("lora_adapter_metadata", "{");
  EXPECT_EQ(refusal_of(adapter, base_of({"blocks.0.ff"})).first, ErrorCode::kCorruption);
}

TEST(ForeignAdapter, AmbiguousNamesAreRefused) {
  Stored adapter;
  add_pair(adapter, "lora_unet_a_b_c");
  EXPECT_EQ(refusal_of(adapter, base_of({"a.b_c", "a_b.c"})),
            std::pair(ErrorCode::kUnsupported, std::string("cannot merge x: 'lora_unet_a_b_c.lora_down.weight' fits "
                                                           "several modules of the base model, such as 'a.b_c'")));
  EXPECT_EQ(refusal_of(adapter, base_of({"one.a.b.c", "two.a.b.c"})),
            std::pair(ErrorCode::kUnsupported,
                      std::string("cannot merge x: 'lora_unet_a_b_c.lora_down.weight' fits several modules of the base "
                                  "model: 'one.a.b.c' and 'two.a.b.c'")));
  add_pair(adapter, "lora_te_a_b_c");
  EXPECT_EQ(refusal_of(adapter, base_of({"a.b.c"})).first, ErrorCode::kUnsupported);
}

TEST(ForeignAdapter, MissingModulesAndHalvesAreErrors) {
  Stored adapter;
  add_pair(adapter, "lora_unet_a_q");
  add_pair(adapter, "lora_unet_longer_name_q");
  EXPECT_EQ(refusal_of(adapter, base_of({"a.q"})),
            std::pair(ErrorCode::kInvalidArgument, std::string("cannot merge x: the base model has nothing for "
                                                               "'lora_unet_longer_name_q.lora_down.weight'")));
  Stored half;
  half.add("lora_unet_a_q.lora_down.weight", kF32, {2, 6}, std::vector<float>(12));
  EXPECT_EQ(refusal_of(half, base_of({"a.q"})).first, ErrorCode::kCorruption);
  half.add("lora_unet_a_q.dora_scale", kF32, {8}, std::vector<float>(8));
  EXPECT_EQ(refusal_of(half, base_of({"a.q"})).first, ErrorCode::kUnsupported);
}

TEST(ForeignAdapter, AnAlphaIsOneFiniteNumber) {
  for (const std::vector<float>& alpha : {std::vector<float>{1, 2}, std::vector<float>{INFINITY}}) {
    Stored adapter;
    add_pair(adapter, "lora_unet_a_q");
    adapter.add("lora_unet_a_q.alpha", kF32, {std::ssize(alpha)}, alpha);
    EXPECT_EQ(refusal_of(adapter, base_of({"a.q"})).first, ErrorCode::kCorruption);
  }
}

}  // namespace
}  // namespace shard
