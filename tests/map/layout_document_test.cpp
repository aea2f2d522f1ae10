#include "libshard/map/documents/layout_document.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace shard {
namespace {

using test::expect_error;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

MeshLayout parsed_layout(const std::string& keys) {
  return parse_layout_document(R"({"schema": "shardctl.layout/1", )" + keys + "}", "layout.json");
}

TEST(LayoutDocument, ReadsMeshInTheDocumentsOrder) {
  const MeshLayout layout = parsed_layout(R"("name": "x", "mesh": {"tp": 4, "dp": 2}, "files": {"path": "r{tp}"})");
  ASSERT_EQ(layout.mesh.size(), 2U);
  EXPECT_EQ(layout.mesh[0].name, "tp");
  EXPECT_EQ(layout.mesh[0].size, 4);
  EXPECT_EQ(layout.mesh[1].name, "dp");
  EXPECT_EQ(layout.file_path, "r{tp}");
}

TEST(LayoutDocument, ReadsRulesThatMatchWholeNames) {
  const MeshLayout layout = parsed_layout(
      R"("mesh": {"tp": 2}, "rules": [{"id": "q", "match": ".*\\.weight", "shard": [{"axis": "tp", "dim": 1}]}])");
  ASSERT_EQ(layout.rules.size(), 1U);
  EXPECT_THAT(layout.rules_for("a.weight"), ElementsAre(0));
  EXPECT_THAT(layout.rules_for("a.weight.x"), IsEmpty());
  EXPECT_EQ(to_string(layout.rules[0].placements[0]), "S(1)");
}

TEST(LayoutDocument, NamesAllRulesThatMatchInTheirOrder) {
  const MeshLayout layout = parsed_layout(
      R"("mesh": {"tp": 2}, "rules": [{"match": "b\\..*"}, {"match": "a|c"}, {"match": "[ab].*"}, {"match": "a"}])");
  EXPECT_THAT(layout.rules_for("a"), ElementsAre(1, 2, 3));
  EXPECT_THAT(layout.rules_for("b.x"), ElementsAre(0, 2));
  EXPECT_THAT(layout.rules_for("c"), ElementsAre(1));
  EXPECT_THAT(layout.rules_for("d"), IsEmpty());
  EXPECT_THAT(parsed_layout(R"("mesh": {"tp": 2})").rules_for("a"), IsEmpty());
}

TEST(LayoutDocument, KeepsTheOrderOfCutting) {
  const MeshLayout layout = parsed_layout(
      R"("mesh": {"dp": 2, "tp": 2, "x": 1}, "rules": [
         {"match": ".*", "shard": [{"axis": "tp", "dim": 0}, {"axis": "dp", "dim": 0}]}])");
  EXPECT_EQ(layout.rules[0].order, (std::vector<std::size_t>{1, 0, 2}));
  EXPECT_EQ(to_string(layout.rules[0].placements[2]), "R");
}

TEST(LayoutDocument, RefusesWhatItCannotReadYetByName) {
  expect_error(ErrorCode::kUnsupported, "'flatten'", [] { parsed_layout(R"("mesh": {"a": 1}, "flatten": {})"); });
  expect_error(ErrorCode::kUnsupported, "'root'", [] { parsed_layout(R"("mesh": {"a": 1}, "files": {"root": "m"})"); });
  expect_error(ErrorCode::kUnsupported, "'pad'",
               [] { parsed_layout(R"("mesh": {"a": 1}, "rules": [{"match": "x", "pad": 1}])"); });
  expect_error(ErrorCode::kUnsupported, "'fill'", [] {
    parsed_layout(R"("mesh": {"a": 1}, "rules": [{"match": "x", "shard": [{"axis": "a", "dim": 0, "fill": "zero"}]}])");
  });
}

TEST(LayoutDocument, ReadsSplits) {
  const MeshLayout layout = parsed_layout(R"("mesh": {"a": 2, "b": 3}, "rules": [{"match": "x", "shard": [
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
    expect_error(ErrorCode::kInvalidArgument, words, [&, k = keys] { parsed_layout(k); });
}

TEST(LayoutDocument, NamesTheFileAndThePlaceOfARule) {
  EXPECT_EQ(parsed_layout(R"("mesh": {"tp": 2}, "rules": [{"match": "a"}, {"match": "b.*"}])").rules[1].source,
            "layout.json: rules[1].match b.*");
}

TEST(LayoutDocument, RefusesAnotherSchema) {
  expect_error(ErrorCode::kInvalidArgument, "wrong schema",
               [] { parse_layout_document(R"({"schema": "shardctl.layout/2"})", "f"); });
}

TEST(LayoutDocument, RefusesTextThatIsNoJsonNamingTheFile) {
  const std::string document = R"({"schema": "shardctl.layout/1", "mesh": {"dp": 2}, "rules": []})";
  parse_layout_document(document, "layout.json");
  for (const std::string& text : {std::string("{"), document + std::string(1, '\0') + "more"}) {
    const Error error = test::error_of([&] { parse_layout_document(text, "layout.json"); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(error.file(), "layout.json");
  }
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
