/// What of a document depends on its variables: names, what is stacked, which rule makes a tensor, what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "libshard/core/error.h"
#include "libshard/map/model_map.h"
#include "libshard/map/undo.h"
#include "tests/map/matrices.h"
#include "tests/support/expect_error.h"

namespace shard::test {
namespace {

using ::testing::HasSubstr;

ModelMap map_of(const std::string& keys, const MapInputs& inputs = {}) {
  MapDocument document = parse_map_document(R"({"schema": "shardctl.layout/1", )" + keys + "}", "map.json");
  MapVariables variables(document, inputs);
  return {std::move(document), std::move(variables)};
}
MapInputs stating(const std::string& name, const std::string& value) {
  MapInputs inputs;
  inputs.given.emplace_back(name, value);
  return inputs;
}
/// The rule that makes a logical name, or -1.
int maker(const ModelMap& map, const std::string& name, const std::vector<std::string>& there = {}) {
  const auto found =
      map.match_logical(name, [&](const std::string& each) { return std::ranges::find(there, each) != there.end(); });
  return found.empty() ? -1 : static_cast<int>(found.front().rule);
}

TEST(SettledMap, VariablesAreTakenFromNames) {
  const Stored stored(
      {{{"b.layers.10.w", counted(1, 2, 1)}, {"b.layers.9.w", counted(1, 2, 3)}, {"a.x", counted(1, 2, 5)}}});
  MapInputs inputs;
  inputs.stored = &stored.catalog();
  const MapDocument document = parse_map_document(R"J({"schema": "shardctl.layout/1", "vars": {
    "least": {"from": "stored#.*layers\\.([0-9]+)\\..*"}, "first": {"from": "stored#(.)\\..*"}, "is_there": {"from": "stored#a\\.x"},
    "absent": {"from": "stored#c", "value": 7}, "made": {"from": "logical#a\\.x", "word": "no"}}, "rules": []})J",
                                                  "map.json");
  const MapVariables variables(document, inputs);
  EXPECT_EQ(variables.number("least"), 9);
  EXPECT_EQ(text_of(*variables.find("first")), "a");
  EXPECT_EQ(variables.number("is_there"), 1);
  EXPECT_EQ(variables.number("absent"), 7);
  EXPECT_EQ(text_of(*variables.find("made")), "no");
}

constexpr const char* kStackable =
    R"("vars": {"by_name": 0, "prefix": {"word": ""}}, "index": {"l": {"stacked": {"by_name": 0}}},
  "rules": [{"logical": "m.{l}.{e}", "stored": ["{prefix}c.{l}.e", "{prefix}d.{l}.e"], "stack": [{"index": "e", "dim": 0}]}])";

TEST(SettledMap, AnIndexIsADimensionOrAPartOfTheName) {
  const ModelMap stacked = map_of(kStackable);
  EXPECT_EQ(stacked.rule(0).stored.text(), "c.e");
  ASSERT_EQ(stacked.rule(0).stack.size(), 2u);
  EXPECT_EQ(stacked.rule(0).stack[0].index, "l");
  EXPECT_EQ(stacked.rule(0).stack[1].dim, 1);
  EXPECT_TRUE(stacked.match_stored("d.e"));
  const ModelMap named = map_of(kStackable, stating("by_name", "1"));
  EXPECT_EQ(named.rule(0).stored.text(), "c.{l}.e");
  ASSERT_EQ(named.rule(0).stack.size(), 1u);
  EXPECT_EQ(named.rule(0).stack[0].dim, 0);
  EXPECT_TRUE(named.match_stored("d.3.e"));
  EXPECT_FALSE(named.match_stored("d.e"));
}

TEST(SettledMap, AVariableStandsInNamesAsPlainText) {
  const ModelMap map = map_of(kStackable, stating("prefix", "a{.+"));
  EXPECT_TRUE(map.match_stored("a{.+c.e"));
  EXPECT_FALSE(map.match_stored("a{xxc.e"));
}

TEST(SettledMap, NumbersOutsideAnIndexAreOfAnotherRule) {
  const ModelMap map = map_of(R"("index": {"l": {"begin": 0, "count": 2}, "m": {"begin": 2, "count": 1}},
    "rules": [{"logical": "m.{l}", "stored": "c.{l}"}, {"logical": "m.{m}", "stored": "x.{m_local}"}])");
  EXPECT_EQ(maker(map, "m.1"), 0);
  EXPECT_EQ(maker(map, "m.2"), 1);
  EXPECT_EQ(maker(map, "m.3"), -1);
  EXPECT_EQ(maker(map, "m.99999999999999999999"), -1);
  EXPECT_FALSE(map.match_stored("c.2"));
  const Stored stored({{{"c.0", counted(1, 2, 1)}, {"c.1", counted(1, 2, 3)}, {"x.0", counted(1, 2, 5)}}});
  const UndoneMap undone(stored.catalog(), map);
  EXPECT_EQ(read_all(undone.make_catalog(stored.catalog()), stored.elements()).at({"m.2", -1}),
            (std::vector<std::int64_t>{5, 6}));
}

TEST(SettledMap, ACompanionDecidesWhichRuleMakesATensor) {
  const ModelMap map = map_of(R"("rules": [{"logical": "{l}.norm", "beside": "{l}.gate", "stored": "{l}.a"},
    {"logical": "{l}.norm", "beside": "{l}.router", "stored": "{l}.b"}])");
  EXPECT_EQ(maker(map, "0.norm", {"0.gate", "1.router"}), 0);
  EXPECT_EQ(maker(map, "1.norm", {"0.gate", "1.router"}), 1);
  EXPECT_EQ(maker(map, "2.norm", {"0.gate", "1.router"}), -1);
  EXPECT_TRUE(map.match_stored("0.a") && map.match_stored("0.b"));
}

TEST(SettledMap, StatesFollowTheirTensors) {
  const ModelMap map =
      map_of(R"("rules": [{"logical": "m.{l}", "stored": "c.{l}"}], "states": [{"name": "v", "key": "opt.v.{key}"}])");
  const auto match = map.match_stored("opt.v.c.3");
  ASSERT_TRUE(match);
  EXPECT_EQ(map.rule(match->rule).logical[0].text(), "optimizer.state.m.{l}.v");
  EXPECT_TRUE(map.rule(match->rule).optional);
}

TEST(SettledMap, IsRefusedWhereADocumentSaysSo) {
  constexpr const char* kRefusing =
      R"("name": "m", "vars": {"gate": {}, "kind": {}}, "rules": [], "refuse": [{"when": {"gate": 1, "kind": ["a", "b"]}, "because": "why"}])";
  const auto refused = [&](const std::string& gate, const std::string& kind) {
    MapInputs inputs = stating("gate", gate);
    if (!kind.empty()) inputs.given.emplace_back("kind", kind);
    return error_of([&] { map_of(kRefusing, inputs); });
  };
  const Error error = refused("1", "b");
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(error.what(), HasSubstr("gate is 1, kind is b"));
  EXPECT_EQ(error.why(), "why");
  EXPECT_NO_THROW(map_of(kRefusing, stating("gate", "1")));
  EXPECT_NO_THROW(map_of(kRefusing, stating("gate", "0")));
}

}  // namespace
}  // namespace shard::test
