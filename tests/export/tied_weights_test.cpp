// A head and the embedding that it may repeat, by their names.
#include "libshard/export/tied_weights.h"

#include <gtest/gtest.h>

#include "tests/catalog/build.h"

namespace shard {
namespace {

/// The names of the pairs.
std::string pair_of(const std::vector<std::string>& names) {
  Catalog catalog;
  for (const std::string& name : names) test::add_tensor(catalog, name, {2});
  const Selection selection = select(catalog, {});
  std::string text;
  for (const TiedPair& tied : find_tied(selection.tensors)) {
    if (!text.empty()) text += ", ";
    text.append(selection.tensors[tied.repeated].name).append(" ").append(selection.tensors[tied.original].name);
  }
  return text;
}

TEST(FindTied, TheHeadAndTheEmbeddingAreKnownByName) {
  EXPECT_EQ(pair_of({"lm_head.weight", "model.embed_tokens.weight", "model.norm.weight"}),
            "lm_head.weight model.embed_tokens.weight");
  EXPECT_EQ(pair_of({"lm_head.weight", "transformer.wpe.weight", "transformer.wte.weight"}),
            "lm_head.weight transformer.wte.weight");
}

TEST(AbsentTies, AHeadThatIsNotStoredMayRepeatTheEmbedding) {
  const auto ties_of = [](const std::vector<std::string>& names) {
    Catalog catalog;
    for (const std::string& name : names) test::add_tensor(catalog, name, {2});
    std::string text;
    for (const AbsentTie& tie : absent_ties(catalog)) text.append(tie.repeated).append(" ").append(tie.tensor) += ';';
    return text;
  };
  EXPECT_EQ(ties_of({"model.norm.weight", "transformer.wte.weight"}),
            "lm_head.weight transformer.wte.weight;embed_out.weight transformer.wte.weight;");
  EXPECT_EQ(ties_of({"lm_head.weight", "model.decoder.embed_tokens.weight"}), "");
  EXPECT_EQ(ties_of({"a.weight"}), "");
}

TEST(FindTied, EncodersAndDecodersShareEmbeddings) {
  EXPECT_EQ(pair_of({"decoder.embed_tokens.weight", "encoder.embed_tokens.weight", "shared.weight"}),
            "encoder.embed_tokens.weight shared.weight, decoder.embed_tokens.weight shared.weight");
  EXPECT_EQ(pair_of({"decoder.embed_tokens.weight", "lm_head.weight", "shared.weight"}),
            "lm_head.weight shared.weight, decoder.embed_tokens.weight shared.weight");
  EXPECT_EQ(pair_of({"model.decoder.embed_tokens.weight", "proj_out.weight"}),
            "proj_out.weight model.decoder.embed_tokens.weight");
  EXPECT_EQ(pair_of({"bert.embeddings.word_embeddings.weight", "cls.predictions.bias", "cls.predictions.decoder.bias",
                     "cls.predictions.decoder.weight"}),
            "cls.predictions.decoder.weight bert.embeddings.word_embeddings.weight, "
            "cls.predictions.decoder.bias cls.predictions.bias");
}

TEST(FindTied, AModelThatLacksOneHasNone) {
  EXPECT_EQ(pair_of({"model.embed_tokens.weight"}), "");
  EXPECT_EQ(pair_of({"lm_head.weight"}), "");
  EXPECT_EQ(pair_of({"old_lm_head.weight", "model.embed_tokens.weight"}), "");
}

}  // namespace
}  // namespace shard
