// The arithmetic of Megatron-LM's saves: layers of stages, parts of tensors, offsets in flat buffers, and names.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/megatron/arguments.h"
#include "formats/megatron/names.h"
#include "tests/support/expect_error.h"

namespace shard::megatron {
namespace {

using ::testing::ElementsAre;

TEST(Stages, EvenStagesFollowOneAnother) {
  const Stages stages{.layers = 8, .stages = 4};
  EXPECT_EQ(layers_of(stages, 0, 0), (LayerRange{0, 2}));
  EXPECT_EQ(layers_of(stages, 3, 0), (LayerRange{6, 2}));
}

TEST(Stages, VirtualStagesTakeTurns) {
  const Stages stages{.layers = 8, .stages = 2, .chunks = 2};
  EXPECT_EQ(layers_of(stages, 0, 0), (LayerRange{0, 2}));
  EXPECT_EQ(layers_of(stages, 1, 0), (LayerRange{2, 2}));
  EXPECT_EQ(layers_of(stages, 0, 1), (LayerRange{4, 2}));
  EXPECT_EQ(layers_of(stages, 1, 1), (LayerRange{6, 2}));
}

TEST(Stages, TheFirstAndTheLastStageMayHoldOtherNumbers) {
  const Stages stages{.layers = 9, .stages = 4, .first = 1, .last = 2};
  EXPECT_EQ(layers_of(stages, 0, 0), (LayerRange{0, 1}));
  EXPECT_EQ(layers_of(stages, 1, 0), (LayerRange{1, 3}));
  EXPECT_EQ(layers_of(stages, 2, 0), (LayerRange{4, 3}));
  EXPECT_EQ(layers_of(stages, 3, 0), (LayerRange{7, 2}));
  const Stages last_only{.layers = 7, .stages = 3, .last = 1};
  EXPECT_EQ(layers_of(last_only, 1, 0), (LayerRange{3, 3}));
  EXPECT_EQ(layers_of(last_only, 2, 0), (LayerRange{6, 1}));
}

TEST(Stages, UnevenVirtualStagesDivideEachStage) {
  const Stages stages{.layers = 12, .stages = 3, .chunks = 2, .first = 2, .last = 4};
  EXPECT_EQ(layers_of(stages, 0, 0), (LayerRange{0, 1}));
  EXPECT_EQ(layers_of(stages, 1, 0), (LayerRange{1, 3}));
  EXPECT_EQ(layers_of(stages, 2, 0), (LayerRange{4, 2}));
  EXPECT_EQ(layers_of(stages, 0, 1), (LayerRange{6, 1}));
  EXPECT_EQ(layers_of(stages, 2, 1), (LayerRange{10, 2}));
}

TEST(Stages, EmbeddingAndLossTakeThePlaceOfALayer) {
  const Stages stages{.layers = 6, .stages = 2, .chunks = 2, .embedding_counts = true, .loss_counts = true};
  EXPECT_EQ(layers_of(stages, 0, 0), (LayerRange{0, 1}));
  EXPECT_EQ(layers_of(stages, 1, 0), (LayerRange{1, 2}));
  EXPECT_EQ(layers_of(stages, 0, 1), (LayerRange{3, 2}));
  EXPECT_EQ(layers_of(stages, 1, 1), (LayerRange{5, 1}));
}

TEST(Stages, LayersThatDoNotDivideHaveNoRange) {
  EXPECT_EQ(layers_of({.layers = 7, .stages = 2}, 0, 0), std::nullopt);
  EXPECT_EQ(layers_of({.layers = 7, .stages = 3, .first = 2, .last = 4}, 0, 0), (std::optional(LayerRange{0, 2})));
  EXPECT_EQ(layers_of({.layers = 7, .stages = 3, .first = 9}, 0, 0), std::nullopt);
  EXPECT_EQ(layers_of({.layers = 7, .stages = 2, .first = 3, .last = 3}, 0, 0), std::nullopt);
  EXPECT_EQ(layers_of({.layers = 0, .stages = 1, .embedding_counts = true, .loss_counts = true}, 0, 0),
            (std::optional(LayerRange{0, 0})));
}

Part part_of(std::vector<std::int64_t> shape) {
  Part part{shape, shape};
  std::int64_t stride = 1;
  for (std::size_t i = shape.size(); i-- > 0; stride *= shape[i]) part.strides[i] = stride;
  return part;
}

TEST(Pieces, RowsAndColumnsFollowTheRank) {
  const Pieces rows = pieces_of(part_of({2, 3}), Cut::kRows, {1, 4});
  EXPECT_THAT(rows.whole, ElementsAre(8, 3));
  EXPECT_EQ(rows.pieces, (std::vector<Piece>{{{2, 0}, {2, 3}, {3, 1}, 0}}));
  const Pieces columns = pieces_of(part_of({2, 3}), Cut::kColumns, {3, 4});
  EXPECT_THAT(columns.whole, ElementsAre(2, 12));
  EXPECT_EQ(columns.pieces, (std::vector<Piece>{{{0, 9}, {2, 3}, {3, 1}, 0}}));
}

TEST(Pieces, AGateAndItsOtherHalfArePiecesOfTheirOwn) {
  const Pieces pieces = pieces_of(part_of({4, 3}), Cut::kGatedRows, {1, 2});
  EXPECT_THAT(pieces.whole, ElementsAre(8, 3));
  EXPECT_EQ(pieces.pieces, (std::vector<Piece>{{{2, 0}, {2, 3}, {3, 1}, 0}, {{6, 0}, {2, 3}, {3, 1}, 6}}));
  test::expect_error(ErrorCode::kCorruption, "shape", [] { pieces_of(part_of({3}), Cut::kGatedRows, {0, 2}); });
  test::expect_error(ErrorCode::kCorruption, "shape", [] { pieces_of(part_of({3}), Cut::kColumns, {0, 2}); });
}

TEST(Pieces, AnExpertIsARowOfAllExperts) {
  const Pieces pieces = pieces_of_expert(part_of({4}), Cut::kGatedRows, {0, 2}, 5, 8);
  EXPECT_THAT(pieces.whole, ElementsAre(8, 8));
  EXPECT_EQ(pieces.pieces, (std::vector<Piece>{{{5, 0}, {1, 2}, {0, 1}, 0}, {{5, 4}, {1, 2}, {0, 1}, 2}}));
}

/// Element (row, column) of a part.
std::int64_t at(const Part& part, std::int64_t row, std::int64_t column) {
  return part.first + row * part.strides[0] + column * part.strides[1];
}

TEST(Pieces, PackedExpertsAreTransposedMatricesOneAfterTheOther) {
  // Two experts, 3 columns in, 4 rows of linear_fc1 each: view(2, 3, 4) of the tensor's elements.
  const std::vector<Part> first = packed_experts(part_of({3, 8}), true, 2);
  ASSERT_EQ(first.size(), 2);
  EXPECT_THAT(first[1].shape, ElementsAre(4, 3));
  EXPECT_EQ(at(first[1], 2, 1), 12 + 1 * 4 + 2);
  const std::vector<Part> second = packed_experts(part_of({8, 3}), false, 2);  // view(2, 4, 3)
  EXPECT_THAT(second[1].shape, ElementsAre(3, 4));
  EXPECT_EQ(at(second[1], 1, 2), 12 + 2 * 3 + 1);
  test::expect_error(ErrorCode::kCorruption, "shape", [] { packed_experts(part_of({3, 7}), true, 2); });
}

TEST(Names, ExpertsAreOneTensorHoweverTheyAreStored) {
  const std::string experts = "decoder.layers.2.mlp.experts.experts.linear_fc1.weight";
  const Meaning alone = meaning_of("decoder.layers.2.mlp.experts.local_experts.13.linear_fc1.weight", true);
  EXPECT_EQ(alone.name, experts);
  EXPECT_EQ(alone.experts, Meaning::Experts::kOne);
  EXPECT_EQ(alone.expert, 13);
  EXPECT_EQ(alone.cut, Cut::kGatedRows);
  const Meaning grouped = meaning_of("decoder.layers.2.mlp.experts.linear_fc1.weight13", true);
  EXPECT_EQ(grouped.name, experts);
  EXPECT_EQ(grouped.expert, 13);
  EXPECT_EQ(meaning_of("decoder.layers.2.mlp.experts.weight1", true).name, experts);
  EXPECT_EQ(meaning_of("decoder.layers.2.mlp.experts.weight2", true).experts, Meaning::Experts::kSecondPacked);
  EXPECT_EQ(meaning_of("decoder.layers.2.mlp.experts.unheard_of", true).cut, std::nullopt);
}

TEST(Names, TellHowRanksShareATensor) {
  const std::pair<const char*, std::optional<Cut>> names[] = {
      {"embedding.word_embeddings.weight", Cut::kRows},
      {"embedding.position_embeddings.weight", Cut::kNot},
      {"decoder.layers.0.self_attention.linear_qkv.weight", Cut::kRows},
      {"decoder.layers.0.self_attention.linear_qkv.bias", Cut::kRows},
      {"decoder.layers.0.self_attention.linear_qkv.layer_norm_weight", Cut::kNot},
      {"decoder.layers.0.self_attention.q_layernorm.weight", Cut::kNot},
      {"decoder.layers.0.self_attention.linear_proj.weight", Cut::kColumns},
      {"decoder.layers.0.self_attention.linear_proj.bias", Cut::kNot},
      {"decoder.layers.0.mlp.linear_fc1.bias", Cut::kRows},
      {"decoder.layers.0.mlp.linear_fc2.weight", Cut::kColumns},
      {"decoder.layers.0.mlp.router.expert_bias", Cut::kNot},
      {"decoder.layers.0.mlp.shared_experts.gate_weight", Cut::kNot},
      {"decoder.layers.0.self_attention.linear_q_down_proj.weight", std::nullopt},
      {"decoder.final_layernorm.bias", Cut::kNot},
      {"output_layer.weight", Cut::kRows},
      {"my_output_layer.weight", std::nullopt},
      {"decoder.layers.0.mixer.in_proj.weight", std::nullopt},
  };
  for (const auto& [name, cut] : names) EXPECT_EQ(meaning_of(name, false).cut, cut) << name;
}

TEST(Names, LayersAreCountedInDecodersOnly) {
  EXPECT_EQ(layer_in("decoder.layers.12.mlp.linear_fc2.weight"), 12);
  EXPECT_EQ(with_layer("decoder.layers.12.mlp.linear_fc2.weight", 40), "decoder.layers.40.mlp.linear_fc2.weight");
  EXPECT_EQ(layer_in("mtp.layers.0.eh_proj.weight"), std::nullopt);
  EXPECT_EQ(layer_in("decoder.layers.x.weight"), std::nullopt);
  EXPECT_EQ(layer_in("decoder.layers.99999999999999999999.weight"), std::nullopt);
}

TEST(OldNames, HavePresentOnes) {
  const std::pair<const char*, const char*> names[] = {
      {"language_model.embedding.word_embeddings.weight", "embedding.word_embeddings.weight"},
      {"language_model.encoder.layers.3.self_attention.query_key_value.bias",
       "decoder.layers.3.self_attention.linear_qkv.bias"},
      {"language_model.transformer.layers.3.attention.dense.weight",
       "decoder.layers.3.self_attention.linear_proj.weight"},
      {"language_model.encoder.layers.0.post_attention_layernorm.weight", "decoder.layers.0.pre_mlp_layernorm.weight"},
      {"language_model.encoder.layers.0.mlp.dense_4h_to_h.weight", "decoder.layers.0.mlp.linear_fc2.weight"},
      {"language_model.encoder.final_layernorm.weight", "decoder.final_layernorm.weight"},
      {"word_embeddings_for_head.weight", "output_layer.weight"},
  };
  for (const auto& [old, present] : names) {
    EXPECT_TRUE(is_old_name(old));
    EXPECT_EQ(present_name(old), present);
  }
  EXPECT_EQ(present_name("language_model.pooler.dense.weight"), std::nullopt);
  EXPECT_EQ(present_name("language_model.encoder.layers.3.inter_attention.query.weight"), std::nullopt);
  EXPECT_FALSE(is_old_name("decoder.layers.0.mlp.linear_fc1.weight"));
}

}  // namespace
}  // namespace shard::megatron
