#include "libshard/catalog/layouts/layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/catalog/build.h"
#include "tests/support/expect_error.h"

namespace shard {
namespace {

using test::expect_error;
using test::Numbers;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::vector<std::string> boxes_of(const RankPiece& piece) {
  std::vector<std::string> boxes;
  for (const Box& box : piece.boxes) boxes.push_back(to_string(box));
  return boxes;
}

/// Every rank's boxes.
std::vector<std::vector<std::string>> boxes(const Numbers& shape, const std::string& mesh,
                                            const std::vector<std::string>& texts,
                                            const std::vector<std::size_t>& order = {}) {
  std::vector<Placement> placements;
  for (const std::string& text : texts) placements.push_back(parse_placement(text));
  std::vector<std::vector<std::string>> all;
  for (const RankPiece& piece : place(shape, parse_mesh(mesh), placements, order)) {
    all.push_back(boxes_of(piece));
    if (!order.empty()) continue;
    const RankPiece alone = place_rank(shape, parse_mesh(mesh), placements, piece.rank);
    EXPECT_EQ(boxes_of(alone), all.back());
    EXPECT_EQ(alone.rank, piece.rank);
    EXPECT_EQ(alone.replica, piece.replica);
    EXPECT_EQ(alone.local_sizes, piece.local_sizes);
    EXPECT_EQ(alone.local_offsets, piece.local_offsets);
  }
  return all;
}

using All = std::vector<std::vector<std::string>>;

TEST(ParsePlacement, ReadsEveryKindWithSpaces) {
  for (const char* text : {"R", "S(0)", "S(-2)", "_S(1,4)"}) EXPECT_EQ(to_string(parse_placement(text)), text);
  EXPECT_EQ(to_string(parse_placement(" _S( 1 , 4 ) ")), "_S(1,4)");
}

TEST(ParsePlacement, RefusesEverythingElse) {
  for (const char* text : {"", "r", "S", "S()", "S(x)", "S(0", "S(0,2)", "_S(0)", "_S(0,0)", "_S(0,-1)", "P", "S(999)",
                           "S(99999999999999999999)"}) {
    expect_error(ErrorCode::kInvalidArgument, "is not a placement", [&] { parse_placement(text); });
  }
}

TEST(ParseMesh, ReadsNamedAxesSlowestFirst) {
  const std::vector<MeshAxis> mesh = parse_mesh("dp=2, tp=4");
  ASSERT_EQ(mesh.size(), 2U);
  EXPECT_EQ(mesh[0].name, "dp");
  EXPECT_EQ(mesh[0].size, 2);
  EXPECT_EQ(mesh[1].name, "tp");
  EXPECT_EQ(mesh[1].size, 4);
}

TEST(ParseMesh, ReadsOneNumberAsOneAxis) {
  const std::vector<MeshAxis> mesh = parse_mesh("8");
  ASSERT_EQ(mesh.size(), 1U);
  EXPECT_EQ(mesh[0].size, 8);
}

TEST(ParseMesh, RefusesMalformedMeshes) {
  for (const char* text :
       {"", "a", "a=", "=2", "a=0", "a=-1", "2,3", "a=2,", "a=2,a=3", "a=2000000", "a=2048,b=2048"}) {
    expect_error(ErrorCode::kInvalidArgument, "is not a mesh", [&] { parse_mesh(text); });
  }
}

TEST(Place, CutsAsTorchChunk) {
  EXPECT_EQ(boxes({10}, "4", {"S(0)"}), (All{{"[0:3]"}, {"[3:6]"}, {"[6:9]"}, {"[9:10]"}}));
}

TEST(Place, LeavesLaterRanksWithoutElements) {
  EXPECT_EQ(boxes({5}, "4", {"S(0)"}), (All{{"[0:2]"}, {"[2:4]"}, {"[4:5]"}, {}}));
}

TEST(Place, CountsNegativeDimensionsFromTheEnd) {
  EXPECT_EQ(boxes({2, 4}, "2", {"S(-1)"}), (All{{"[0:2, 0:2]"}, {"[0:2, 2:4]"}}));
}

TEST(Place, TakesAPlacementOnALackingDimensionForReplicate) {
  const std::vector<RankPiece> pieces = place(Numbers{4}, parse_mesh("2"), std::vector{parse_placement("S(1)")});
  EXPECT_EQ(boxes_of(pieces[1]), std::vector<std::string>{"[0:4]"});
  EXPECT_FALSE(pieces[0].replica);
  EXPECT_TRUE(pieces[1].replica);
}

TEST(Place, NumbersRanksRowMajorInTheMesh) {
  EXPECT_EQ(boxes({4, 4}, "a=2,b=2", {"S(1)", "S(0)"}),
            (All{{"[0:2, 0:2]"}, {"[2:4, 0:2]"}, {"[0:2, 2:4]"}, {"[2:4, 2:4]"}}));
}

TEST(Place, CutsOneDimensionByTwoAxesLeftToRight) {
  EXPECT_EQ(boxes({8}, "a=2,b=2", {"S(0)", "S(0)"}), (All{{"[0:2]"}, {"[2:4]"}, {"[4:6]"}, {"[6:8]"}}));
}

TEST(Place, StridesAsFsdpOverTensorParallel) {  // The example of torch's _StridedShard.
  EXPECT_EQ(boxes({8}, "dp=2,tp=2", {"_S(0,2)", "S(0)"}), (All{{"[0:2]"}, {"[4:6]"}, {"[2:4]"}, {"[6:8]"}}));
}

TEST(Place, GivesOneRankSeveralBoxesOfAStridedShard) {  // Indices [0,1,5] [2,3,6] [4,7] [8], also from torch's source.
  EXPECT_EQ(boxes({9}, "4", {"_S(0,2)"}), (All{{"[0:2]", "[5:6]"}, {"[2:4]", "[6:7]"}, {"[4:5]", "[7:8]"}, {"[8:9]"}}));
}

TEST(Place, OrdersBoxesAsLocalElements) {
  const std::vector<Placement> placements = {parse_placement("_S(0,2)"), parse_placement("_S(1,2)")};
  const RankPiece piece = place(Numbers{4, 4}, parse_mesh("a=2,b=2"), placements)[0];
  EXPECT_EQ(boxes_of(piece), (std::vector<std::string>{"[0:1, 0:1]", "[0:1, 2:3]", "[2:3, 0:1]", "[2:3, 2:3]"}));
  EXPECT_EQ(piece.local_sizes, (Numbers{2, 2}));
  EXPECT_EQ(piece.local_offsets, (std::vector<Numbers>{{0, 0}, {0, 1}, {1, 0}, {1, 1}}));
}

TEST(Place, CutsInTheOrderThatIsGiven) {
  EXPECT_EQ(boxes({8}, "dp=2,tp=2", {"S(0)", "S(0)"}, {1, 0}), (All{{"[0:2]"}, {"[4:6]"}, {"[2:4]"}, {"[6:8]"}}));
}

TEST(Place, HoldsAScalarOnEveryRank) { EXPECT_EQ(boxes({}, "2", {"S(0)"}), (All{{"[]"}, {"[]"}})); }

TEST(Place, GivesNothingOfAnEmptyTensor) { EXPECT_EQ(boxes({0, 3}, "2", {"S(1)"}), (All{{}, {}})); }

TEST(Place, RefusesMillionsOfRuns) {
  expect_error(ErrorCode::kUnsupported, "more than 1048576 runs", [] { boxes({1 << 24}, "2", {"_S(0,4194304)"}); });
}

TEST(Place, RefusesAHugeSplitFactorAlsoForRanksThatGetNothing) {
  expect_error(ErrorCode::kUnsupported, "more than 1048576 runs",
               [] { boxes({std::int64_t{1} << 62}, "2", {"_S(0,4611686018427387904)"}); });
}

TEST(Place, RefusesTooManyBoxesOfATensor) {
  EXPECT_EQ(boxes({4096, 8}, "a=2,b=2", {"_S(0,2048)", "_S(1,2)"})[0].size(), 4096U);
  expect_error(ErrorCode::kUnsupported, "into more than 1048576 boxes", [] {
    boxes({4096, 4096}, "a=2,b=2", {"_S(0,2048)", "_S(1,2048)"});
  });
}

TEST(Place, CutsHugeDimensionsWithoutOverflow) {
  const std::int64_t n = std::int64_t{1} << 62;
  const std::vector<RankPiece> pieces = place(Numbers{n}, parse_mesh("3"), std::vector{parse_placement("S(0)")});
  EXPECT_EQ(pieces[2].boxes[0].offset[0] + pieces[2].boxes[0].size[0], n);
}

/// The parts of one dimension, by rank; nothing for an empty part.
All split_boxes(std::int64_t n, std::int64_t parts, CutRule split, const Numbers& widths = {}) {
  Placement placement{Placement::kShard, 0, 1, split, ends_of(widths, "w")};
  All all;
  for (const RankPiece& piece : place(Numbers{n}, std::vector<MeshAxis>{{"tp", parts}}, std::vector{placement})) {
    all.push_back(boxes_of(piece));
  }
  return all;
}

TEST(Place, CutsAsEachSplitSays) {
  EXPECT_EQ(split_boxes(6, 3, CutRule::kEven), (All{{"[0:2]"}, {"[2:4]"}, {"[4:6]"}}));
  EXPECT_EQ(split_boxes(10, 4, CutRule::kFirstExtra), (All{{"[0:3]"}, {"[3:6]"}, {"[6:8]"}, {"[8:10]"}}));
  EXPECT_EQ(split_boxes(2, 3, CutRule::kFirstExtra), (All{{"[0:1]"}, {"[1:2]"}, {}}));
  EXPECT_EQ(split_boxes(10, 4, CutRule::kWidths, {4, 0, 1, 5}), (All{{"[0:4]"}, {}, {"[4:5]"}, {"[5:10]"}}));
  EXPECT_EQ(split_boxes(0, 2, CutRule::kEven), (All{{}, {}}));
}

TEST(Place, RefusesASplitThatDoesNotFit) {
  const Error uneven = test::error_of([] { split_boxes(10, 4, CutRule::kEven); });
  EXPECT_EQ(uneven.code(), ErrorCode::kInvalidArgument);
  EXPECT_STREQ(uneven.what(), "the axis 'tp' cannot divide 10 evenly into 4");
  for (const Numbers& widths : {Numbers{4, 5}, Numbers{4, 4, 3}, Numbers{}}) {
    expect_error(ErrorCode::kInvalidArgument, "do not add up to 10",
                 [&] { split_boxes(10, 2, CutRule::kWidths, widths); });
  }
  expect_error(ErrorCode::kInvalidArgument, "do not add up to 0", [] { split_boxes(0, 2, CutRule::kWidths, {1, 1}); });
}

TEST(Place, CutsByWidthsInTimeThatGrowsWithTheRanks) {
  const Numbers widths(1 << 18, 1);
  EXPECT_EQ(split_boxes(1 << 18, 1 << 18, CutRule::kWidths, widths).back(),
            std::vector<std::string>{"[262143:262144]"});
}

}  // namespace
}  // namespace shard
