// Tensors of adapters under the names of PEFT's files.
#include "libshard/export/adapter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/catalog/build.h"

namespace shard {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<ModelTensor> tensors_of(const std::vector<std::string>& names) {
  std::vector<ModelTensor> tensors;
  for (const std::string& name : names) tensors.push_back({0, name});
  return tensors;
}

std::string named(const std::string& name) {
  std::vector<ModelTensor> tensors = tensors_of({name});
  name_as_peft(tensors);
  return tensors.empty() ? std::string() : tensors.front().name;
}

TEST(NameAsPeft, TheAdaptersOwnNameGoes) {
  EXPECT_EQ(named("base_model.model.a.lora_A.default.weight"), "base_model.model.a.lora_A.weight");
  EXPECT_EQ(named("base_model.model.a.lora_B.other.bias"), "base_model.model.a.lora_B.bias");
  EXPECT_EQ(named("base_model.model.e.lora_embedding_A.default"), "base_model.model.e.lora_embedding_A");
  EXPECT_EQ(named("base_model.model.a.lora_magnitude_vector.default.weight"),
            "base_model.model.a.lora_magnitude_vector");
  EXPECT_EQ(named("base_model.model.h.modules_to_save.default.weight"), "base_model.model.h.weight");
  EXPECT_EQ(named("base_model.model.e.token_adapter.trainable_tokens_delta.default"),
            "base_model.model.e.token_adapter.trainable_tokens_delta");
}

TEST(NameAsPeft, NamesOfPeftsFilesStay) {
  for (const char* const name : {"base_model.model.a.lora_A.weight", "base_model.model.e.lora_embedding_B",
                                 "base_model.model.a.lora_magnitude_vector", "base_model.model.h.weight"}) {
    EXPECT_EQ(named(name), name);
  }
}

TEST(NameAsPeft, TheWrapperIsAddedOrFoundInside) {
  EXPECT_EQ(named("model.layers.0.q.lora_A.weight"), "base_model.model.model.layers.0.q.lora_A.weight");
  EXPECT_EQ(named("net.base_model.model.a.lora_A.weight"), "base_model.model.a.lora_A.weight");
}

TEST(NameAsPeft, TheOriginalOfASavedModuleIsNotTheAdapters) {
  EXPECT_EQ(named("base_model.model.h.original_module.weight"), "");
}

TEST(NameAsPeft, AdaptersAreListed) {
  std::vector<ModelTensor> tensors = tensors_of({"a.lora_A.one.weight", "a.lora_A.two.weight", "b.lora_A.one.weight"});
  EXPECT_THAT(name_as_peft(tensors), ElementsAre("one", "two"));
  tensors = tensors_of({"a.lora_A.weight"});
  EXPECT_THAT(name_as_peft(tensors), IsEmpty());
}

TEST(BaseWeightBeside, AdaptedModulesWithTheirWeightsAreABaseModel) {
  EXPECT_EQ(base_weight_beside(tensors_of({"m.q.base_layer.weight", "m.q.lora_A.default.weight"})),
            "m.q.base_layer.weight");
  EXPECT_EQ(base_weight_beside(tensors_of({"m.q.lora_A.weight", "m.q.weight"})), "m.q.weight");
}

TEST(BaseWeightBeside, ModulesThatWereTrainedAsAWholeAreNot) {
  EXPECT_EQ(base_weight_beside(tensors_of({"h.weight", "q.lora_A.weight", "q.lora_B.weight"})), "");
  // A resized embedding is saved with the adapter.
  EXPECT_EQ(base_weight_beside(
                tensors_of({"e.base_layer.weight", "e.lora_embedding_A", "k.lora_A.weight", "q.lora_A.weight"})),
            "");
}

TEST(WithoutAdapter, ABaseModelInPeftsWrapperLosesIt) {
  EXPECT_EQ(without_adapter("base_model.model.a.base_layer.weight"), "a.weight");
  EXPECT_EQ(without_adapter("a.base_layer.weight"), "a.base_layer.weight");
}

}  // namespace
}  // namespace shard
