// The model's tensors in a training checkpoint, and their names.
#include "libshard/export/model_part.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "libshard/core/value.h"
#include "libshard/export/adapter.h"
#include "tests/catalog/build.h"
#include "tests/support/cpu_time.h"
#include "tests/support/expect_error.h"

namespace shard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const auto kAll = [](std::string_view) { return true; };

std::vector<std::string> model_names(const Catalog& catalog) {
  return test::names_of(find_model(catalog, kAll).tensors);
}

Catalog catalog_of(const std::vector<std::string>& names) {
  Catalog catalog;
  for (const std::string& name : names) test::add_tensor(catalog, name, {2});
  return catalog;
}

void add_below(Catalog& catalog, std::initializer_list<std::string_view> path) {
  std::string name;
  for (const std::string_view part : path) name.append(name.empty() ? "" : ".").append(part);
  test::add_tensor(catalog, name, {2}, DType::kFloat32, test::make_path(catalog, path));
}

TEST(WithoutWrappers, EachWrapperGoesWhereverItStands) {
  EXPECT_EQ(without_wrappers("module.a.weight"), "a.weight");
  EXPECT_EQ(without_wrappers("_orig_mod.a.weight"), "a.weight");
  EXPECT_EQ(without_wrappers("layers.0._orig_mod.a.weight"), "layers.0.a.weight");
  EXPECT_EQ(without_wrappers("layers.0._checkpoint_wrapped_module.a.weight"), "layers.0.a.weight");
  EXPECT_EQ(without_wrappers("_fsdp_wrapped_module.layers.0._fsdp_wrapped_module.a"), "layers.0.a");
  EXPECT_EQ(without_wrappers("_forward_module.a"), "a");
}

TEST(WithoutWrappers, NestedOnesGoTogether) {
  EXPECT_EQ(without_wrappers("_forward_module.module._orig_mod.a"), "a");
  EXPECT_EQ(without_wrappers("module.module.a"), "a");
  EXPECT_EQ(without_wrappers("h.0._fsdp_wrapped_module._checkpoint_wrapped_module._orig_mod.a"), "h.0.a");
  EXPECT_EQ(without_wrappers("net._orig_mod.module.a"), "net.a");
}

TEST(WithoutWrappers, AModelsOwnPartsStay) {
  EXPECT_EQ(without_wrappers("encoder.module.weight"), "encoder.module.weight");
  EXPECT_EQ(without_wrappers("submodule.weight"), "submodule.weight");
  EXPECT_EQ(without_wrappers("a._orig_mod"), "a._orig_mod");
  EXPECT_EQ(without_wrappers("module"), "module");
  EXPECT_EQ(without_wrappers(""), "");
  EXPECT_EQ(without_wrappers("a..b"), "a..b");
}

TEST(FindModel, AContainerOfTheModelIsAllThatCounts) {
  Catalog catalog;
  add_below(catalog, {"model", "model.norm.weight"});
  add_below(catalog, {"model", "lm_head.weight"});
  add_below(catalog, {"optimizer", "state", "0", "exp_avg"});
  add_below(catalog, {"extra", "a"});
  const ModelPart part = find_model(catalog, kAll);
  EXPECT_THAT(test::names_of(part.tensors), ElementsAre("lm_head.weight", "model.norm.weight"));
  EXPECT_EQ(part.container, "model");
  EXPECT_EQ(part.other_tensors, 2);
  EXPECT_EQ(part.renamed, 2);
}

TEST(FindModel, AContainerMayBeTwoDeep) {
  Catalog catalog;
  add_below(catalog, {"state", "model", "a.weight"});
  add_below(catalog, {"state", "optimizers", "b"});
  EXPECT_THAT(model_names(catalog), ElementsAre("a.weight"));
}

TEST(FindModel, FlatNamesThatBeginLikeAContainerAreTheModelsOwn) {
  EXPECT_THAT(model_names(catalog_of({"model.layers.0.w", "model.norm.weight"})),
              ElementsAre("model.layers.0.w", "model.norm.weight"));
}

TEST(FindModel, OtherStatesBesideTheModelsTensorsAreLeftOut) {
  Catalog catalog = catalog_of({"dataloader.buffer", "layers.0.w", "lr_scheduler.x", "norm.weight",
                                "optimizer.state.layers.0.w.exp_avg", "train_state"});
  test::add_object(catalog, "optimizer.step", nullptr);
  test::add_object(catalog, "note", nullptr);
  const ModelPart part = find_model(catalog, kAll);
  EXPECT_THAT(test::names_of(part.tensors), ElementsAre("layers.0.w", "norm.weight"));
  EXPECT_EQ(part.other_tensors, 4);
  EXPECT_EQ(part.other_objects, 1);
  EXPECT_THAT(part.objects, ElementsAre(1U));
}

TEST(FindModel, MegatronsOptimizersAreLeftOut) {
  const Catalog catalog = catalog_of({"chained_0.optimizer.state.exp_avg.decoder.w", "chained_up.weight", "decoder.w",
                                      "optimizer.state.exp_avg.decoder.w"});
  const ModelPart part = find_model(catalog, kAll);
  EXPECT_EQ(part.tensors.size(), 2U);
  EXPECT_EQ(part.other_tensors, 2);
}

TEST(FindModel, ADoubledModelLosesOneEverywhere) {
  EXPECT_THAT(model_names(catalog_of({"model.lm_head.weight", "model.model.layers.0.w"})),
              ElementsAre("lm_head.weight", "model.layers.0.w"));
  EXPECT_THAT(model_names(catalog_of({"loss.weight", "model.model.model.a.w"})),
              ElementsAre("loss.weight", "model.a.w"));
}

/// A reader whose object costs I/O.
struct LateObjects final : Reader {
  LateObjects() {
    test::add_tensor(content, "w", {2});
    test::add_object(content, "step", nullptr);
  }
  const Catalog& catalog() const override { return content; }
  void locate(std::span<const std::uint32_t>) override {}
  std::shared_ptr<const RandomReader> file(std::uint32_t) const override { return nullptr; }
  void load_objects() override { content.objects[0].value = &value; }
  std::int64_t unread_object_bytes() const override { return content.objects[0].value == nullptr ? 5 : 0; }

  Catalog content;
  Value value;
};

TEST(ModelReader, LoadsTheObjectsOfItsSource) {
  ModelPart part;
  part.tensors.push_back({0, "w"});
  part.objects.push_back(0);
  const auto reader = model_reader(std::make_unique<LateObjects>(), part);
  EXPECT_EQ(reader->unread_object_bytes(), 5);
  reader->load_objects();
  EXPECT_NE(reader->catalog().objects.at(0).value, nullptr);
  EXPECT_EQ(reader->unread_object_bytes(), 0);
}

TEST(FindModel, ANameThatRepeatsAPrefixTakesLinearTime) {
  std::string name;
  for (int i = 0; i < 300'000; ++i) name += "model.";
  const Catalog catalog = catalog_of({name + "w"});
  const double seconds = test::cpu_seconds([&] { EXPECT_EQ(find_model(catalog, kAll).tensors.size(), 1U); });
  EXPECT_LT(seconds, test::cpu_limit(0.5));  // If the prefixes are removed one by one, it takes 10 seconds.
}

TEST(FindModel, AHeadHasNoModelAboveIt) {
  EXPECT_THAT(model_names(catalog_of({"model.lm_head.weight", "model.transformer.h.0.w"})),
              ElementsAre("lm_head.weight", "transformer.h.0.w"));
  EXPECT_THAT(model_names(catalog_of({"model.bert.w", "model.classifier.bias"})),
              ElementsAre("bert.w", "classifier.bias"));
  EXPECT_THAT(model_names(catalog_of({"lm_head.weight", "model.layers.0.w"})),
              ElementsAre("lm_head.weight", "model.layers.0.w"));
  EXPECT_THAT(model_names(catalog_of({"model.ctc_head.bias", "model.encoder.w"})),
              ElementsAre("ctc_head.bias", "encoder.w"));
  // Pix2Struct's head is in its decoder.
  EXPECT_THAT(model_names(catalog_of({"model.decoder.lm_head.weight", "model.encoder.w"})),
              ElementsAre("decoder.lm_head.weight", "encoder.w"));
  // CLIP's projection is beside its base models, Grounding DINO's inside of it.
  EXPECT_THAT(model_names(catalog_of({"model.text_model.w", "model.text_projection.weight"})),
              ElementsAre("text_model.w", "text_projection.weight"));
  EXPECT_THAT(model_names(catalog_of({"bbox_embed.0.w", "model.text_projection.weight"})),
              ElementsAre("bbox_embed.0.w", "model.text_projection.weight"));
}

TEST(FindModel, ABackboneBesideADecoderIsInsideTheModel) {
  const auto names_of_type = [](const std::vector<std::string>& names, const ModelHints& hints) {
    return test::names_of(find_model(catalog_of(names), kAll, hints).tensors);
  };
  EXPECT_THAT(names_of_type({"model.backbone.w", "model.decoder.w"}, {.type = "rt_detr"}),
              ElementsAre("model.backbone.w", "model.decoder.w"));
  EXPECT_THAT(names_of_type({"model.backbone.w", "model.neck.w"}, {.type = "depth_anything"}),
              ElementsAre("backbone.w", "neck.w"));
  // RfDetrForInstanceSegmentation, by itself and in the module of a trainer.
  for (const std::string outer : {"", "model."}) {
    EXPECT_THAT(names_of_type({outer + "blocks.0.w", outer + "model.class_embed.w", outer + "model.model.backbone.w"},
                              {.type = "rf_detr"}),
                ElementsAre("blocks.0.w", "model.class_embed.w", "model.model.backbone.w"));
  }
  // Names of the reference stay.
  const auto is_inner = [](std::string_view name) { return name.starts_with("model.model."); };
  EXPECT_THAT(names_of_type({"model.model.a", "model.model.b"}, {.has = is_inner, .type = "rf_detr"}),
              ElementsAre("model.model.a", "model.model.b"));
}

TEST(FindModel, TwoTensorsOfOneResultingNameAreRefused) {
  const Error error = test::error_of([] { find_model(catalog_of({"_orig_mod.a", "module.a"}), kAll); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_STREQ(error.what(), "tensors '_orig_mod.a' and 'module.a' would both be named 'a'");
}

TEST(FindModel, WhatDoesNotTakePartIsNoClash) {
  const Catalog catalog = catalog_of({"_orig_mod.a", "module.a"});
  const ModelPart part = find_model(catalog, [](std::string_view name) { return name != "module.a"; });
  EXPECT_THAT(test::names_of(part.tensors), ElementsAre("a"));
  EXPECT_EQ(part.other_tensors, 0);
}

TEST(FindModel, AnAdapterBesideItsBaseModelIsRefused) {
  const Error error = test::error_of([] {
    find_model(catalog_of({"base_model.model.a.lora_A.default.weight", "base_model.model.a.weight"}), kAll);
  });
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_EQ(error.tensor(), "base_model.model.a.lora_A.default.weight");
  EXPECT_THAT(model_names(catalog_of({"base_model.model.a.weight"})), ElementsAre("a.weight"));
  EXPECT_FALSE(is_lora("a.flora_b"));
}

TEST(FindModel, AdaptersWithNamesOfOtherToolsAreRefusedByName) {
  for (const char* const name :
       {"lora_unet_a_to_q.lora_down.weight", "diffusion_model.a.lora_up.weight", "lora_te_a.hada_w1_a"}) {
    const Error error = test::error_of([&] { find_model(catalog_of({name}), kAll); });
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported) << name;
    EXPECT_NE(std::string_view(error.what()).find(name), std::string_view::npos);
  }
  EXPECT_TRUE(is_lora_of_other_tool("unet.a.to_q_lora.down.weight"));
  EXPECT_FALSE(is_lora_of_other_tool("base_model.model.a.lora_A.weight"));
}

TEST(FindModel, AnAdapterAloneGetsTheNamesOfPeft) {
  Catalog catalog;
  add_below(catalog, {"model_state", "model", "base_model.model.a.lora_A.default.weight"});
  add_below(catalog, {"model_state", "model", "base_model.model.head.modules_to_save.default.weight"});
  const ModelPart part = find_model(catalog, kAll);
  EXPECT_TRUE(part.is_adapter);
  EXPECT_EQ(part.container, "model_state.model");
  EXPECT_THAT(test::names_of(part.tensors),
              ElementsAre("base_model.model.a.lora_A.weight", "base_model.model.head.weight"));
}

TEST(FindModel, NamesInPeftsOwnFileStay) {
  for (const char* const name :
       {"base_model.model.model.norm.weight", "base_model.model.a.hada_w1_a", "prompt_embeddings"}) {
    const ModelPart part = find_model(catalog_of({name}), kAll, {.is_adapters_file = true});
    EXPECT_TRUE(part.is_adapter);
    EXPECT_THAT(test::names_of(part.tensors), ElementsAre(name));
  }
}

TEST(FindModel, SeveralModelsAreChoices) {
  Catalog catalog;
  for (const char* const each : {"critic", "generator", "optimizer_g"}) add_below(catalog, {each, "0.weight"});
  const ModelPart part = find_model(catalog, kAll);
  EXPECT_THAT(part.choices, ElementsAre("critic", "generator"));
  EXPECT_THAT(part.tensors, ::testing::IsEmpty());
  const auto is_generators = [](std::string_view name) { return name.starts_with("generator."); };
  EXPECT_THAT(test::names_of(find_model(catalog, is_generators).tensors), ElementsAre("0.weight"));
  EXPECT_THAT(test::names_of(find_model(catalog, kAll, {.takes_several = true}).tensors),
              ElementsAre("critic.0.weight", "generator.0.weight"));
}

TEST(FindModel, ModelsInAListAreChoices) {
  Catalog catalog;
  add_below(catalog, {"model", "0", "a.w"});
  add_below(catalog, {"model", "1", "a.w"});
  EXPECT_THAT(find_model(catalog, kAll).choices, ElementsAre("model.0", "model.1"));
}

TEST(FindModel, AnotherCopyBesideTheModelIsNamed) {
  Catalog catalog;
  for (const char* const each : {"amp_scaler", "optimizer", "state_dict", "state_dict_ema"})
    add_below(catalog, {each, "a.w"});
  const ModelPart part = find_model(catalog, kAll);
  EXPECT_EQ(part.container, "state_dict");
  ASSERT_EQ(part.beside.size(), 1U);
  EXPECT_EQ(part.beside[0].container, "state_dict_ema");
  EXPECT_EQ(part.beside[0].tensors, 1);
  EXPECT_EQ(part.other_tensors, 3);
}

TEST(FindModel, OneContainerOfAStateDictIsTakenOffWhateverItsKey) {
  Catalog catalog;
  add_below(catalog, {"network_x", "_orig_mod.0.weight"});
  add_below(catalog, {"optimizer_state", "state", "0", "momentum_buffer"});
  add_below(catalog, {"best_score"});
  const ModelPart part = find_model(catalog, kAll);
  EXPECT_EQ(part.container, "network_x");
  EXPECT_THAT(test::names_of(part.tensors), ElementsAre("0.weight"));
  EXPECT_EQ(part.beside.size(), 1U);  // best_score, which is in no container.
}

TEST(FindModel, GroupsOfAModelsOwnAreNoContainers) {
  Catalog catalog;
  add_below(catalog, {"layers", "d1", "vars", "0"});
  add_below(catalog, {"optimizer", "vars", "0"});
  const ModelPart part = find_model(catalog, kAll);
  EXPECT_EQ(part.container, "");
  EXPECT_THAT(test::names_of(part.tensors), ElementsAre("layers.d1.vars.0"));
}

TEST(FindModel, KerasOptimizerIsNoModel) {
  Catalog catalog;
  add_below(catalog, {"model_weights", "d1", "d1", "kernel"});
  add_below(catalog, {"optimizer_weights", "adam", "kernel_momentum"});
  EXPECT_THAT(model_names(catalog), ElementsAre("d1.d1.kernel"));
}

TEST(FindModel, TheCounterOfAnAverageIsNotTheModels) {
  Catalog catalog;
  add_below(catalog, {"ema_model", "n_averaged"});
  add_below(catalog, {"ema_model", "module.0.weight"});
  EXPECT_THAT(model_names(catalog), ElementsAre("0.weight"));
}

TEST(FindModel, FlatParametersAreRefused) {
  const Error error = test::error_of([] {
    find_model(catalog_of({"_fsdp_wrapped_module._flat_param", "a.weight"}), kAll);
  });
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(error.hint(), HasSubstr("SHARDED_STATE_DICT"));
}

TEST(FindModel, FlatParametersOfFairscaleAreNamed) {
  for (const char* const name : {"flat_param_0", "decoder.layers.0.flat_param_12"}) {
    const std::optional<Error> refusal = refused_flat_parameter(name, "merge");
    ASSERT_TRUE(refusal) << name;
    EXPECT_EQ(refusal->code(), ErrorCode::kUnsupported);
    EXPECT_THAT(refusal->hint(), HasSubstr("fairscale"));
  }
  EXPECT_TRUE(refused_flat_parameter("module.flat_param", "merge"));
  for (const char* const name : {"my_flat_param", "flat_param_x", "flat_params", "flat_param.weight", "a"}) {
    EXPECT_FALSE(refused_flat_parameter(name, "merge")) << name;
  }
}

}  // namespace
}  // namespace shard
