// A head and the embedding that it may repeat, by their names.
#include "libshard/export/tied_weights.h"

#include <gtest/gtest.h>

#include "tests/catalog/build.h"

namespace shard {
namespace {

/// The names of the pair, or nothing.
std::string pair_of(const std::vector<std::string>& names) {
  Catalog catalog;
  for (const std::string& name : names) test::add_tensor(catalog, name, {2});
  const Selection selection = select(catalog, {});
  const std::optional<TiedPair> tied = find_tied(selection.tensors);
  if (!tied) return {};
  return std::string(selection.tensors[tied->head].name) + " " + std::string(selection.tensors[tied->embedding].name);
}

TEST(FindTied, TheHeadAndTheEmbeddingAreKnownByName) {
  EXPECT_EQ(pair_of({"lm_head.weight", "model.embed_tokens.weight", "model.norm.weight"}),
            "lm_head.weight model.embed_tokens.weight");
  EXPECT_EQ(pair_of({"lm_head.weight", "transformer.wpe.weight", "transformer.wte.weight"}),
            "lm_head.weight transformer.wte.weight");
}

TEST(FindTied, AModelThatLacksOneHasNone) {
  EXPECT_EQ(pair_of({"model.embed_tokens.weight"}), "");
  EXPECT_EQ(pair_of({"lm_head.weight"}), "");
  EXPECT_EQ(pair_of({"old_lm_head.weight", "model.embed_tokens.weight"}), "");
}

}  // namespace
}  // namespace shard
