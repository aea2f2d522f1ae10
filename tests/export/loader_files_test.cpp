// The weights that a loader opens, by the names in its folder.
#include "libshard/export/loader_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace shard {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Names = std::vector<std::string>;

/// The variant and the first file, or the index, of each set: "fp16:model.fp16.safetensors".
Names sets(const Names& names, Loader loader = Loader::kTransformers) {
  Names shown;
  for (const LoaderFiles& set : loader_files(names, loader)) {
    shown.push_back(set.variant + ":" + (set.index.empty() ? set.weights.front() : set.index));
  }
  return shown;
}

TEST(LoaderFiles, OtherWeightsInTheFolderAreNoneOfTheModels) {
  EXPECT_THAT(sets({"adapter_model.safetensors", "config.json", "consolidated.safetensors", "model.safetensors",
                    "model_1.safetensors", "optimizer.bin", "pytorch_model_fsdp.bin"}),
              ElementsAre(":model.safetensors"));
  EXPECT_THAT(sets({"consolidated.safetensors", "params.json"}), IsEmpty());
}

TEST(LoaderFiles, SafetensorsComesBeforeTorchAndOneFileBeforeAnIndex) {
  EXPECT_THAT(sets({"model.safetensors", "model.safetensors.index.json", "pytorch_model.bin"}),
              ElementsAre(":model.safetensors", ":model.safetensors.index.json", ":pytorch_model.bin"));
  EXPECT_THAT(
      sets({"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json"}),
      ElementsAre(":model.safetensors.index.json"));
}

TEST(LoaderFiles, PartsWithoutAnIndexAreOneSet) {
  const auto found =
      loader_files({"model-00002-of-00002.safetensors", "model-00001-of-00002.safetensors"}, Loader::kTransformers);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_THAT(found[0].weights, ElementsAre("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"));
  EXPECT_EQ(found[0].index, "");
}

TEST(LoaderFiles, AVariantIsOpenedOnlyWhereThereIsNothingElse) {
  EXPECT_THAT(sets({"model.fp16.safetensors", "model.safetensors"}),
              ElementsAre(":model.safetensors", "fp16:model.fp16.safetensors"));
  EXPECT_THAT(sets({"model.fp16.safetensors", "pytorch_model.bin"}),
              ElementsAre(":pytorch_model.bin", "fp16:model.fp16.safetensors"));
  EXPECT_THAT(sets({"model.bf16.safetensors"}), ElementsAre("bf16:model.bf16.safetensors"));
}

TEST(LoaderFiles, PartsOfAVariantHaveTwoForms) {
  for (const std::string part : {"model.fp16-00001-of-00002.safetensors", "model-00001-of-00002.fp16.safetensors"}) {
    for (const std::string index : {"model.safetensors.index.fp16.json", "model.fp16.safetensors.index.json"}) {
      const auto found = loader_files({part, index}, Loader::kTransformers);
      ASSERT_EQ(found.size(), 1U) << part << " " << index;
      EXPECT_EQ(found[0].variant, "fp16");
      EXPECT_EQ(found[0].index, index);
      EXPECT_THAT(found[0].weights, ElementsAre(part));
    }
  }
}

TEST(LoaderFiles, ASuffixBeforeTheNumberIsNoVariant) {
  const auto found = loader_files({"model.safetensors-00001-of-00001.safetensors"}, Loader::kTransformers);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].variant, "");
}

TEST(LoaderFiles, DiffusersHasAStemOfItsOwnAndLooksForTheIndexFirst) {
  const Names names{"config.json", "diffusion_pytorch_model.safetensors",
                    "diffusion_pytorch_model.safetensors.index.json", "model.safetensors"};
  EXPECT_THAT(sets(names, Loader::kDiffusers),
              ElementsAre(":diffusion_pytorch_model.safetensors.index.json", ":diffusion_pytorch_model.safetensors"));
  EXPECT_THAT(sets({"diffusion_pytorch_model.bin"}, Loader::kDiffusers), ElementsAre(":diffusion_pytorch_model.bin"));
}

TEST(LoaderFiles, PeftOpensTheAdapter) {
  EXPECT_THAT(sets({"adapter_model.bin", "adapter_model.safetensors", "model.safetensors"}, Loader::kPeft),
              ElementsAre(":adapter_model.safetensors", ":adapter_model.bin"));
}

TEST(LoaderFiles, NamesThatOnlyBeginLikeThemAreOthers) {
  EXPECT_THAT(
      sets({"model", "model.", "model.json", "model..safetensors", "model.a.b.safetensors", "model-1.safetensors",
            "model-x-of-2.safetensors", "model.safetensors.index", "model.safetensors.index.a.b.json",
            "models.safetensors", "model-00001-of-00002..safetensors", "model.-of-.safetensors"}),
      ElementsAre("-of-:model.-of-.safetensors"));
}

}  // namespace
}  // namespace shard
