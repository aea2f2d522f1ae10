#include "libshard/catalog/layout.h"

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
  for (const RankPiece& piece : place(shape, parse_mesh(mesh), placements, order)) all.push_back(boxes_of(piece));
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

/// The parts of one dimension, by rank; nothing for a part without elements.
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
  EXPECT_STREQ(uneven.what(), "the axis 'tp' cannot cut 10 evenly into 4");
  for (const Numbers& widths : {Numbers{4, 5}, Numbers{4, 4, 3}, Numbers{}}) {
    expect_error(ErrorCode::kInvalidArgument, "do not make up 10",
                 [&] { split_boxes(10, 2, CutRule::kWidths, widths); });
  }
  expect_error(ErrorCode::kInvalidArgument, "do not make up 0", [] { split_boxes(0, 2, CutRule::kWidths, {1, 1}); });
}

TEST(Place, CutsByWidthsInTimeThatGrowsWithTheRanks) {
  const Numbers widths(1 << 18, 1);
  EXPECT_EQ(split_boxes(1 << 18, 1 << 18, CutRule::kWidths, widths).back(),
            std::vector<std::string>{"[262143:262144]"});
}

// --- Documents ---

MeshLayout parse(const std::string& keys) {
  return parse_layout_document(R"({"schema": "shardctl.layout/1", )" + keys + "}", "layout.json");
}

TEST(LayoutDocument, ReadsMeshInTheDocumentsOrder) {
  const MeshLayout layout = parse(R"("name": "x", "mesh": {"tp": 4, "dp": 2}, "files": {"path": "r{tp}"})");
  ASSERT_EQ(layout.mesh.size(), 2U);
  EXPECT_EQ(layout.mesh[0].name, "tp");
  EXPECT_EQ(layout.mesh[0].size, 4);
  EXPECT_EQ(layout.mesh[1].name, "dp");
  EXPECT_EQ(layout.file_path, "r{tp}");
}

TEST(LayoutDocument, ReadsRulesThatMatchWholeNames) {
  const MeshLayout layout = parse(
      R"("mesh": {"tp": 2}, "rules": [{"id": "q", "match": ".*\\.weight", "shard": [{"axis": "tp", "dim": 1}]}])");
  ASSERT_EQ(layout.rules.size(), 1U);
  EXPECT_THAT(layout.rules_for("a.weight"), ElementsAre(0));
  EXPECT_THAT(layout.rules_for("a.weight.x"), IsEmpty());
  EXPECT_EQ(to_string(layout.rules[0].placements[0]), "S(1)");
}

TEST(LayoutDocument, NamesAllRulesThatMatchInTheirOrder) {
  const MeshLayout layout = parse(
      R"("mesh": {"tp": 2}, "rules": [{"match": "b\\..*"}, {"match": "a|c"}, {"match": "[ab].*"}, {"match": "a"}])");
  EXPECT_THAT(layout.rules_for("a"), ElementsAre(1, 2, 3));
  EXPECT_THAT(layout.rules_for("b.x"), ElementsAre(0, 2));
  EXPECT_THAT(layout.rules_for("c"), ElementsAre(1));
  EXPECT_THAT(layout.rules_for("d"), IsEmpty());
  EXPECT_THAT(parse(R"("mesh": {"tp": 2})").rules_for("a"), IsEmpty());
}

TEST(LayoutDocument, KeepsTheOrderOfCutting) {
  const MeshLayout layout = parse(
      R"("mesh": {"dp": 2, "tp": 2, "x": 1}, "rules": [
         {"match": ".*", "shard": [{"axis": "tp", "dim": 0}, {"axis": "dp", "dim": 0}]}])");
  EXPECT_EQ(layout.rules[0].order, (std::vector<std::size_t>{1, 0, 2}));
  EXPECT_EQ(to_string(layout.rules[0].placements[2]), "R");
}

TEST(LayoutDocument, RefusesWhatItCannotReadYetByName) {
  expect_error(ErrorCode::kUnsupported, "'flatten'", [] { parse(R"("mesh": {"a": 1}, "flatten": {})"); });
  expect_error(ErrorCode::kUnsupported, "'root'", [] { parse(R"("mesh": {"a": 1}, "files": {"root": "m"})"); });
  expect_error(ErrorCode::kUnsupported, "'pad'",
               [] { parse(R"("mesh": {"a": 1}, "rules": [{"match": "x", "pad": 1}])"); });
  expect_error(ErrorCode::kUnsupported, "'fill'", [] {
    parse(R"("mesh": {"a": 1}, "rules": [{"match": "x", "shard": [{"axis": "a", "dim": 0, "fill": "zero"}]}])");
  });
}

TEST(LayoutDocument, ReadsSplits) {
  const MeshLayout layout = parse(R"("mesh": {"a": 2, "b": 3}, "rules": [{"match": "x", "shard": [
      {"axis": "a", "dim": 0, "split": "first_extra"},
      {"axis": "b", "dim": 1, "split": "widths", "widths": [0, "a * b - 1", 3]}]}, {"match": "y", "shard": [
      {"axis": "a", "dim": 0, "split": "even"}, {"axis": "b", "dim": 1, "split": "chunk"}]}])");
  EXPECT_EQ(to_string(layout.rules[0].placements[0]), "S(0,first_extra)");
  EXPECT_EQ(to_string(layout.rules[0].placements[1]), "S(1,widths=0+5+3)");
  EXPECT_EQ(to_string(layout.rules[1].placements[0]), "S(0,even)");
  EXPECT_EQ(to_string(layout.rules[1].placements[1]), "S(1)");
}

TEST(LayoutDocument, RefusesMistakes) {
  const char* const mistakes[][2] = {
      {R"("mesh": 3)", "mesh is not an object"},
      {R"("name": "x")", "has no key 'mesh'"},
      {R"("mesh": {"a": 0})", "mesh.a is not a size"},
      {R"("mesh": {"a": 1.5})", "mesh.a is not a size"},
      {R"("mesh": {"a": 2, "a": 2})", "appears twice"},
      {R"("mesh": {"a": 99999999})", "mesh.a is not a size"},
      {R"("mesh": {"a": 1}, "rules": {})", "rules is not a list"},
      {R"("mesh": {"a": 1}, "rules": [{"id": "q"}])", "rules[0] has no key 'match'"},
      {R"("mesh": {"a": 1}, "rules": [{"match": "("}])", "not a regular expression"},
      {R"("mesh": {"a": 1}, "rules": [{"match": 5}])", "match is not a string"},
      {R"("mesh": {"a": 1}, "rules": [{"match": "x", "shard": [{"axis": "b", "dim": 0}]}])",
       "axis 'b', which mesh lacks"},
      {R"("mesh": {"a": 1}, "rules": [{"match": "x", "shard": [{"axis": "a"}]}])",
       "rules[0].shard[0] has no key 'dim'"},
      {R"("mesh": {"a": 1}, "rules": [{"match": "x", "shard": [{"axis": "a", "dim": 18446744073709551615}]}])",
       "dim is not a dimension"},
  };
  for (const auto& [keys, words] : mistakes)
    expect_error(ErrorCode::kInvalidArgument, words, [&, k = keys] { parse(k); });
}

TEST(LayoutDocument, RefusesAnotherSchema) {
  expect_error(ErrorCode::kInvalidArgument, "wrong schema",
               [] { parse_layout_document(R"({"schema": "shardctl.layout/2"})", "f"); });
}

TEST(LayoutDocument, RefusesTextThatIsNoJsonNamingTheFile) {
  const Error error = test::error_of([] { parse_layout_document("{", "layout.json"); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(error.file(), "layout.json");
}

TEST(LayoutDocument, RefusesDeepNestingWithoutFollowingIt) {
  const std::string deep = std::string(1 << 20, '[');
  expect_error(ErrorCode::kInvalidArgument, "deeper than", [&] { parse_layout_document(deep, "f"); });
}

TEST(LayoutDocument, ReadsStridedCuts) {
  const MeshLayout layout = parse_layout_document(
      R"({"schema": "shardctl.layout/1", "mesh": {"dp": 2},
          "rules": [{"match": "w", "shard": [{"axis": "dp", "dim": 0, "split_factor": 3}]}]})",
      "layout.json");
  EXPECT_EQ(to_string(layout.rules[0].placements[0]), "_S(0,3)");
}

TEST(LayoutDocument, RefusesASplitFactorThatIsNone) {
  for (const char* factor : {"0", "-1", "1.5", "\"2\""}) {
    test::expect_error(ErrorCode::kInvalidArgument, "split_factor", [&] {
      parse_layout_document(std::string(R"({"schema": "shardctl.layout/1", "mesh": {"dp": 2}, "rules": [{"match": "w",
          "shard": [{"axis": "dp", "dim": 0, "split_factor": )") +
                                factor + "}]}]}",
                            "layout.json");
    });
  }
}

TEST(LayoutDocument, ThatIsDumpedSaysTheSameOfExactlyItsNames) {
  const std::vector<MeshAxis> mesh = {{"dp", 2}, {"tp \"x\"", 3}};
  const std::vector<Placement> grid = {{Placement::kShard, 1, 1}, {Placement::kStridedShard, 0, 2}}, replicas(2);
  const std::vector<Placement> parts = {{Placement::kShard, 1, 1, CutRule::kFirstExtra},
                                        {Placement::kShard, 0, 1, CutRule::kWidths, {4, 4, 9}}};
  const std::vector<std::string> names = {"a.b", "x|y", "\\E*", "\xC3\xA9", std::string("n\0l", 3), "line\n", ""};
  std::vector<PlacedName> placed = {{"whole", replicas}};
  for (const std::string& name : names) placed.push_back({name, grid});
  placed.push_back({"parts", parts});
  const MeshLayout layout = parse_layout_document(dump_layout_document("r-{rank}.pt", mesh, placed), "layout.json");
  EXPECT_EQ(layout.mesh, mesh);
  EXPECT_EQ(layout.file_path, "r-{rank}.pt");
  ASSERT_EQ(layout.rules.size(), 2U);
  ASSERT_THAT(layout.rules_for("parts"), SizeIs(1));
  EXPECT_EQ(layout.rules[layout.rules_for("parts")[0]].placements, parts);
  const std::size_t of_grid = 1 - layout.rules_for("parts")[0];
  EXPECT_EQ(layout.rules[of_grid].placements, grid);
  for (const std::string& name : names) EXPECT_THAT(layout.rules_for(name), ElementsAre(of_grid)) << name;
  for (const char* other : {"whole", "aXb", "x", "y", "x|", "n", "b"})
    EXPECT_THAT(layout.rules_for(other), IsEmpty()) << other;
}

TEST(LayoutDocument, OfOneListOfAMillionNamesStaysFast) {
  const std::vector<Placement> rows = {{Placement::kShard, 0, 1}};
  std::vector<std::string> names;
  for (int i = 0; i < 1'000'000; ++i) names.push_back("model.layers." + std::to_string(i) + ".weight");
  std::vector<PlacedName> placed;
  for (const std::string& name : names) placed.push_back({name, rows});
  const std::vector<MeshAxis> mesh = {{"rank", 4}};
  const MeshLayout layout = parse_layout_document(dump_layout_document("f", mesh, placed), "layout.json");
  EXPECT_THAT(layout.rules_for(names[999'999]), ElementsAre(0));
  EXPECT_THAT(layout.rules_for("model.layers.1000000.weight"), IsEmpty());
}

}  // namespace
}  // namespace shard
