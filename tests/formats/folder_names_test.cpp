// Missing parts, inferred from the names in a folder.
#include "formats/parts/hf_index/folder_names.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace shard::hf_index {
namespace {

using Names = std::vector<std::string>;

std::string missing(const Names& names) { return missing_part(names, ".safetensors"); }

TEST(MissingPart, IsTheFirstThatTheOthersCount) {
  EXPECT_EQ(missing({"model-00001-of-00003.safetensors", "model-00003-of-00003.safetensors"}),
            "model-00002-of-00003.safetensors");
  EXPECT_EQ(missing({"model-00002-of-00002.safetensors"}), "model-00001-of-00002.safetensors");
  EXPECT_EQ(missing({"m-1-of-2.safetensors"}), "m-2-of-2.safetensors");
}

TEST(MissingPart, IsNoneOfAWholeCheckpoint) {
  EXPECT_EQ(missing({"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"}), "");
  EXPECT_EQ(missing({"model-00000-of-00002.safetensors", "model-00001-of-00002.safetensors"}), "");
}

TEST(MissingPart, CountsEachBaseAlone) {
  EXPECT_EQ(missing({"a-00001-of-00001.safetensors", "b-00001-of-00002.safetensors"}), "b-00002-of-00002.safetensors");
}

TEST(MissingPart, SaysNothingOfOtherNames) {
  EXPECT_EQ(missing({"model.safetensors", "00001-of-00002.safetensors", "model-x-of-00002.safetensors",
                     "model-00001-of-00002.bin", ".model-00001-of-00002.safetensors", "one-of-2.safetensors",
                     "model-1-of-99999999999.safetensors"}),
            "");
}

TEST(MissingPart, IsFoundAtOnceWhateverTheCount) {
  EXPECT_EQ(missing({"m-1-of-999999999.safetensors"}), "m-2-of-999999999.safetensors");
}

TEST(MissingPart, CountsVariantsApart) {
  EXPECT_EQ(missing({"m-00001-of-00002.fp16.safetensors", "m-00002-of-00002.safetensors"}),
            "m-00002-of-00002.fp16.safetensors");
  EXPECT_EQ(missing({"m.fp16-00001-of-00001.safetensors", "m-00001-of-00002.safetensors"}),
            "m-00002-of-00002.safetensors");
}

TEST(CountedSets, AreThoseOfOneBaseCountAndVariant) {
  const std::vector<CountedSet> sets =
      counted_sets({"m-2-of-3.h5", "m-1-of-3.h5", "m-1-of-1.h5", "n-0-of-1.h5", "m-1-of-1.bf16.h5", "other.h5"}, ".h5");
  ASSERT_EQ(sets.size(), 4U);
  const auto set = [&](const std::string& pattern) -> const CountedSet& {
    return *std::ranges::find_if(sets, [&](const CountedSet& each) { return each.pattern() == pattern; });
  };
  EXPECT_EQ(set("m-*-of-3.h5").names, (Names{"m-1-of-3.h5", "m-2-of-3.h5"}));
  EXPECT_EQ(set("m-*-of-3.h5").missing, "m-3-of-3.h5");
  EXPECT_EQ(set("m-*-of-1.h5").missing, "");
  EXPECT_EQ(set("m-*-of-1.bf16.h5").names.size(), 1U);
  EXPECT_EQ(set("n-*-of-1.h5").missing, "");
}

TEST(OthersWarning, NamesThreeAndCountsTheRest) {
  EXPECT_EQ(others_warning({"a", "b", "c", "d", "e", "f", "g"}),
            "other files of the folder are not part of the checkpoint, and are not copied: 'a', 'b', 'c' and 4 more");
}

}  // namespace
}  // namespace shard::hf_index
