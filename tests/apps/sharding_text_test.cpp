#include "apps/shardctl/text/sharding_text.h"

#include <gtest/gtest.h>

#include <limits>
#include <optional>

namespace shard::app {
namespace {

using Numbers = std::vector<std::int64_t>;

/// A catalog of one tensor, box by box.
struct Map {
  explicit Map(const Numbers& shape, std::optional<std::int64_t> world_size = std::nullopt) {
    tensor.shape = catalog.arena->dims(shape);
    catalog.world_size = world_size;
  }
  Map& add(const Numbers& offsets, const Numbers& sizes, std::int32_t rank) {
    catalog.stored.emplace_back().rank = rank;
    catalog.chunks.push_back({catalog.arena->dims(offsets),
                              catalog.arena->dims(sizes),
                              {},
                              0,
                              static_cast<std::uint32_t>(catalog.stored.size() - 1)});
    ++tensor.chunk_count;
    return *this;
  }
  Map& words(const std::string& mesh, const std::vector<std::string>& placements, const Numbers& ranks = {}) {
    Sharding sharding{parse_mesh(mesh), ranks, {}};
    for (const std::string& placement : placements) sharding.placements.push_back(parse_placement(placement));
    catalog.shardings.push_back(sharding);
    tensor.sharding = 0;
    return *this;
  }
  std::string text() const { return sharding_text(catalog, tensor, Detail::kSizes); }
  Catalog catalog;
  Tensor tensor;
};

TEST(ShardingText, TheLargestSizeIsCutToo) {
  const std::int64_t most = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(Map({most, 0}).words("2", {"S(0)"}).text(), "S(0) over 2 ranks (4611686018427387904, 4611686018427387903)");
}

TEST(ShardingText, OneMeshAxisWithoutANameIsOverRanks) {
  EXPECT_EQ(Map({8, 4}).words("4", {"S(0)"}).text(), "S(0) over 4 ranks");
}
TEST(ShardingText, AMeshIsNamedAxisByAxis) {
  EXPECT_EQ(Map({8, 4}).words("dp=2,tp=4", {"R", "S(1)"}).text(), "dp=2 tp=4: R, S(1)");
}
TEST(ShardingText, RanksThatDoNotRunFromZeroAreNamed) {
  EXPECT_EQ(Map({8}).words("tp=2", {"S(0)"}, {4, 6}).text(), "tp=2 (ranks 4, 6): S(0)");
}
TEST(ShardingText, UnevenAndEmptyPiecesAreNamed) {
  EXPECT_EQ(Map({9}).words("4", {"S(0)"}).text(), "S(0) over 4 ranks (3, 3, 3, 0)");
}
TEST(ShardingText, SizesOfTwoDimensionsSayWhich) {
  EXPECT_EQ(Map({7, 4}).words("a=2,b=2", {"S(0)", "S(1)"}).text(), "a=2 b=2: S(0), S(1) (dim 0: 4, 3)");
}
TEST(ShardingText, ManySizesAreCounted) {
  EXPECT_EQ(Map({100}).words("64", {"S(0)"}).text(), "S(0) over 64 ranks (50 of 2, 14 empty)");
}
TEST(ShardingText, StridedShardsKeepTheirWords) {
  EXPECT_EQ(Map({8}).words("dp=2,tp=2", {"_S(0,2)", "S(0)"}).text(), "dp=2 tp=2: _S(0,2), S(0)");
}
TEST(ShardingText, TheBriefFormSaysNoSizes) {
  const Map map = Map({9}).words("4", {"S(0)"});
  EXPECT_EQ(sharding_text(map.catalog, map.tensor, Detail::kBrief), "S(0) over 4 ranks");
}

TEST(ShardingText, PiecesOfRanksInOrderAreAShard) {
  EXPECT_EQ(Map({4, 3}, 2).add({0, 0}, {2, 3}, 0).add({2, 0}, {2, 3}, 1).text(), "S(0) over 2 ranks");
}
TEST(ShardingText, SomeRanksAreNamed) {
  EXPECT_EQ(Map({4, 3}, 4).add({0, 0}, {4, 2}, 1).add({0, 2}, {4, 1}, 3).text(), "S(1) over ranks 1, 3 (2, 1)");
}
TEST(ShardingText, PiecesOfOtherSizesThanChunksAreNoShard) {
  EXPECT_EQ(Map({4}, 2).add({0}, {1}, 0).add({1}, {3}, 1).text(), "sharded along dim 0 over 2 ranks (1, 3)");
  EXPECT_EQ(Map({13}, 4).add({0}, {4}, 0).add({4}, {3}, 1).add({7}, {3}, 2).add({10}, {3}, 3).text(),
            "sharded along dim 0 over 4 ranks (4, 3, 3, 3)");
}
TEST(ShardingText, PiecesInAnotherOrderAreOnlyPieces) {
  EXPECT_EQ(Map({4}, 2).add({0}, {2}, 1).add({2}, {2}, 0).text(), "2 pieces along dim 0, ranks 0-1");
}
TEST(ShardingText, EmptyPiecesMayLiePastTheEnd) {
  EXPECT_EQ(Map({4}, 3).add({0}, {2}, 0).add({2}, {2}, 1).add({8}, {0}, 2).text(), "S(0) over 3 ranks (2, 2, 0)");
}
TEST(ShardingText, CutsThatCrossAreAGrid) {
  const std::string text =
      Map({4, 5}, 4).add({0, 0}, {2, 3}, 0).add({0, 3}, {2, 2}, 1).add({2, 0}, {2, 3}, 2).add({2, 3}, {2, 2}, 3).text();
  EXPECT_EQ(text, "2 x 2 grid (dims 0, 1), ranks 0-3 (dim 1: 3, 2)");
}
TEST(ShardingText, OtherCutsAreBoxes) {
  EXPECT_EQ(Map({4, 4}).add({0, 0}, {4, 2}, 0).add({0, 2}, {2, 2}, 1).add({2, 2}, {2, 2}, 2).text(),
            "3 boxes (dims 0, 1), ranks 0-2");
}
TEST(ShardingText, ReplicasAreCopies) {
  EXPECT_EQ(Map({4}).add({0}, {4}, 0).add({0}, {4}, 1).text(), "2 copies, ranks 0-1");
}
TEST(ShardingText, ReplicasOfPiecesAreCounted) {
  EXPECT_EQ(Map({4}).add({0}, {2}, 0).add({0}, {2}, 1).add({2}, {2}, 2).add({2}, {2}, 3).text(),
            "2 pieces along dim 0, ranks 0-3, each 2 times");
}
TEST(ShardingText, AWholeTensorIsWhereItsRankIs) {
  EXPECT_EQ(Map({4}).add({0}, {4}, 3).text(), "rank 3");
  EXPECT_EQ(Map({4}).add({0}, {4}, -1).text(), "");
}

TEST(RanksText, JoinsRuns) { EXPECT_EQ(ranks_text({7, 0, 1, 2, 5}), "0-2, 5, 7"); }
TEST(RanksText, EndsSomewhere) {
  EXPECT_EQ(ranks_text({0, 2, 4, 6, 8, 10, 12, 14, 16, 18}), "0, 2, 4, 6, 8, 10, 12, 14, ... (10 ranks)");
}

TEST(Meshes, AreDistinct) {
  Map map({8});
  map.words("dp=2", {"R"}).words("dp=2", {"S(0)"}, {0, 1}).words("tp=2", {"R"});
  const Meshes meshes(map.catalog);
  EXPECT_EQ(meshes.list.size(), 2U);
  EXPECT_EQ(meshes.of_sharding, (std::vector<std::size_t>{0, 0, 1}));
}

}  // namespace
}  // namespace shard::app
