#include "apps/shardctl/text/alike_layers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace shard::app {
namespace {

using ::testing::ElementsAre;

/// "NAME xCOUNT" of each line.
std::vector<std::string> lines_of(const std::vector<LayerTensor>& tensors) {
  std::vector<std::string> lines;
  for (const LayerLine& line : join_alike_layers(tensors)) {
    lines.push_back(line.name + " x" + std::to_string(line.members.size()));
  }
  return lines;
}

TEST(AlikeLayers, AFullRunIsOneLine) {
  EXPECT_THAT(lines_of({{"h.0.w", 1}, {"h.1.w", 1}, {"h.10.w", 1}, {"h.2.w", 1}, {"norm", 2}}),
              ElementsAre("h.{0..2}.w x3", "h.10.w x1", "norm x1"));
}

TEST(AlikeLayers, MembersAreInTheOrderOfTheirNumbers) {
  const std::vector<LayerTensor> tensors{{"h.1.w", 1}, {"h.10.w", 1}, {"h.9.w", 1}, {"h.8.w", 1}};
  const std::vector<LayerLine> lines = join_alike_layers(tensors);
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[1].name, "h.{8..10}.w");
  EXPECT_THAT(lines[1].members, ElementsAre(3, 2, 1));
}

TEST(AlikeLayers, OtherKindsStayApart) {
  EXPECT_THAT(lines_of({{"h.0.w", 1}, {"h.1.w", 2}, {"h.2.w", 1}}), ElementsAre("h.0.w x1", "h.1.w x1", "h.2.w x1"));
}

TEST(AlikeLayers, EachTensorOfALayerHasItsLine) {
  EXPECT_THAT(lines_of({{"h.0.a", 1}, {"h.0.b", 1}, {"h.1.a", 1}, {"h.1.b", 1}}),
              ElementsAre("h.{0..1}.a x2", "h.{0..1}.b x2"));
}

TEST(AlikeLayers, ExpertsOfLayersAreOneLine) {
  EXPECT_THAT(lines_of({{"h.0.e.0.w", 1}, {"h.0.e.1.w", 1}, {"h.1.e.0.w", 1}, {"h.1.e.1.w", 1}}),
              ElementsAre("h.{0..1}.e.{0..1}.w x4"));
}

TEST(AlikeLayers, AnExpertOfAnotherKindPartsItsLayer) {
  EXPECT_THAT(lines_of({{"h.0.e.0.w", 1}, {"h.0.e.1.w", 1}, {"h.1.e.0.w", 1}, {"h.1.e.1.w", 2}}),
              ElementsAre("h.0.e.{0..1}.w x2", "h.1.e.0.w x1", "h.1.e.1.w x1"));
}

TEST(AlikeLayers, LayersWhoseExpertsDifferStillShareALine) {
  EXPECT_THAT(lines_of({{"h.0.e.1.w", 1}, {"h.0.e.3.w", 1}, {"h.1.e.1.w", 1}, {"h.1.e.3.w", 1}}),
              ElementsAre("h.{0..1}.e.1.w x2", "h.{0..1}.e.3.w x2"));
}

TEST(AlikeLayers, NumbersAtTheEndsOfANameCount) {
  EXPECT_THAT(lines_of({{"0", 1}, {"1", 1}, {"a.0", 1}, {"a.1", 1}, {"7.w", 1}, {"8.w", 1}}),
              ElementsAre("{0..1} x2", "a.{0..1} x2", "{7..8}.w x2"));
}

TEST(AlikeLayers, TheLastEightNumbersOfANameCount) {
  EXPECT_THAT(lines_of({{"0.1.2.3.4.5.6.7", 1}, {"1.1.2.3.4.5.6.7", 1}}), ElementsAre("{0..1}.1.2.3.4.5.6.7 x2"));
  EXPECT_THAT(lines_of({{"0.1.2.3.4.5.6.7.8", 1}, {"1.1.2.3.4.5.6.7.8", 1}}),
              ElementsAre("0.1.2.3.4.5.6.7.8 x1", "1.1.2.3.4.5.6.7.8 x1"));
}

TEST(AlikeLayers, OnlyWholePartsAreNumbers) {
  const std::vector<LayerTensor> tensors{
      {"h1.w", 1}, {"h2.w", 1}, {"h.01.w", 1}, {"h.02.w", 1}, {"h.-1.w", 1},         {"h.-2.w", 1},
      {"", 1},     {"..", 1},   {"a..1", 2},   {"a{..}", 1},  {"h.9999999999.w", 1}, {"h.9999999998.w", 1}};
  EXPECT_EQ(join_alike_layers(tensors).size(), tensors.size());
}

}  // namespace
}  // namespace shard::app
