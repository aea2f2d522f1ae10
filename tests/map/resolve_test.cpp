/// The parts of a document that depend on its variables: names, stacked tensors, the rule of each tensor, refusals.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <ctime>
#include <numeric>

#include "libshard/catalog/catalog_builder.h"
#include "libshard/core/error.h"
#include "libshard/map/documents/model_map.h"
#include "libshard/map/passes/undo.h"
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

TEST(ResolvedMap, VariablesAreTakenFromNames) {
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

TEST(ResolvedMap, ADefaultReplacesNoValueOfTheConfig) {
  const MapDocument document = parse_map_document(
      R"J({"schema": "shardctl.layout/1", "vars": {"kv": {"from": ["config.json#/kv", "config.json#/heads"], "value": 7}}, "rules": []})J",
      "map.json");
  MapInputs inputs;
  for (const char* config : {"", "{}", R"({"kv": null})"}) {
    inputs.config = config;
    EXPECT_EQ(MapVariables(document, inputs).number("kv"), 7) << config;
  }
  for (const char* config :
       {R"({"kv": 2.0, "heads": 4})", R"({"kv": [2]})", R"({"kv": {}})", R"({"kv": 99999999999999999999})"}) {
    inputs.config = config;
    const Error error = error_of([&] { MapVariables(document, inputs).number("kv"); });
    EXPECT_THAT(error.why(), HasSubstr("neither a whole number nor a word")) << config;
  }
  inputs.given = {{"kv", "2"}};
  EXPECT_EQ(MapVariables(document, inputs).number("kv"), 2);
}

TEST(ResolvedMap, AStoredNameMayBeListedTwice) {
  for (const char* stored : {R"(["b", "b", "c"])", R"(["{s}b", "b{s}", "{s}c"])"}) {
    const ModelMap map =
        map_of(fmt::format(R"("vars": {{"s": {{"word": ""}}}}, "rules": [{{"logical": "a", "stored": {}}}])", stored));
    EXPECT_TRUE(map.match_stored("b")) << stored;
    EXPECT_TRUE(map.match_stored("c")) << stored;
  }
}

TEST(ResolvedMap, AWordOfANameMayNotBeLong) {
  const std::string name = std::string(1025, 'x') + ".w";
  const Stored stored({{{name, counted(1, 2, 1)}}});
  MapInputs inputs;
  inputs.stored = &stored.catalog();
  const Error error = error_of([&] { map_of(R"("vars": {"prefix": {"from": "stored#(.*)w"}}, "rules": [])", inputs); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
}

TEST(ResolvedMap, RulesTimesStatesAreBounded) {
  const auto keys = [](int rules, int states, std::size_t length) {
    std::string text = R"("rules": [)";
    for (int i = 0; i < rules; ++i) {
      text += fmt::format(R"({}{{"logical": "a{}{}", "stored": "b{}"}})", i == 0 ? "" : ",", i,
                          std::string(length, 'x'), i);
    }
    text += R"(], "states": [)";
    for (int i = 0; i < states; ++i) {
      text += fmt::format(R"({}{{"name": "s{}", "key": "s{}.{{key}}"}})", i == 0 ? "" : ",", i, i);
    }
    return text + "]";
  };
  EXPECT_EQ(map_of(keys(100, 10, 1)).document().rules.size(), 1100U);
  expect_error(ErrorCode::kInvalidArgument, "too many for its states", [&] { map_of(keys(400, 400, 1)); });
  expect_error(ErrorCode::kInvalidArgument, "too long for its states", [&] { map_of(keys(20, 500, 4000)); });
  expect_error(ErrorCode::kInvalidArgument, "too long", [&] { map_of(keys(1, 1, 9000)); });
}

TEST(ResolvedMap, NumbersOfAllIndexesAreBounded) {
  const Stored stored({{{"a", counted(1, 2, 1)}}});
  const auto undo = [&](int indexes) {
    std::string index;
    for (int i = 0; i < indexes; ++i) {
      index += fmt::format(R"({}"i{}": {{"count": 1000000}})", i == 0 ? "" : ",", i);
    }
    const ModelMap map = map_of(fmt::format(R"("index": {{{}}}, "rules": [{{"match": ".*"}}])", index));
    return UndoneMap(stored.catalog(), map).make_catalog(stored.catalog()).tensors.size();
  };
  EXPECT_EQ(undo(2), 1U);
  expect_error(ErrorCode::kInvalidArgument, "too many numbers", [&] { undo(3); });
}

TEST(ResolvedMap, SlowPatternsEnd) {
  std::string vars, name;
  for (int i = 0; i < 250; ++i) {
    vars +=
        fmt::format(R"J({}"v{}": {{"from": "stored#(?:a|b)*a(?:a|b){{{}}}c{}"}})J", i == 0 ? "" : ",", i, 8 + i % 8, i);
  }
  Model model;
  for (std::uint32_t i = 0, state = 1; i < 300; ++i) {
    name.clear();
    while (name.size() < 4000) name += ((state = state * 1664525 + 1013904223) >> 20) % 2 == 0 ? 'a' : 'b';
    model[name] = counted(1, 1, 1);
  }
  const Stored stored({model});
  MapInputs inputs;
  inputs.stored = &stored.catalog();
  const std::clock_t begin = std::clock();
  try {
    map_of(fmt::format(R"("vars": {{{}}}, "rules": [{{"match": ".*"}}])", vars), inputs);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_THAT(error.what(), HasSubstr("too slow"));
  }
  EXPECT_LT(std::clock() - begin, 3 * CLOCKS_PER_SEC);
}

TEST(ResolvedMap, PatternsAreTooLargeBeforeAllAreCompiled) {
  std::string rules;
  for (int i = 0; i < 1000; ++i) rules += fmt::format(R"({}{{"match": "x{{0,1000}}{}"}})", i == 0 ? "" : ",", i);
  expect_error(ErrorCode::kInvalidArgument, "too large", [&] { map_of("\"rules\": [" + rules + "]"); });
  const ModelMap map = map_of(R"("rules": [{"match": ".*"}])");
  EXPECT_TRUE(map.match_stored(std::string(4000, 'x')));
  EXPECT_FALSE(map.match_stored(std::string(5000, 'x')));
}

constexpr const char* kStackable =
    R"("vars": {"by_name": 0, "prefix": {"word": ""}}, "index": {"l": {"stacked": {"by_name": 0}}},
  "rules": [{"logical": "m.{l}.{e}", "stored": ["{prefix}c.{l}.e", "{prefix}d.{l}.e"], "stack": [{"index": "e", "dim": 0}]}])";

TEST(ResolvedMap, AnIndexIsADimensionOrAPartOfTheName) {
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

TEST(ResolvedMap, AVariableStandsInNamesAsPlainText) {
  const ModelMap map = map_of(kStackable, stating("prefix", "a{.+"));
  EXPECT_TRUE(map.match_stored("a{.+c.e"));
  EXPECT_FALSE(map.match_stored("a{xxc.e"));
}

TEST(ResolvedMap, NumbersOutsideAnIndexAreOfAnotherRule) {
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

TEST(ResolvedMap, ACompanionDecidesWhichRuleMakesATensor) {
  const ModelMap map = map_of(R"("rules": [{"logical": "{l}.norm", "beside": "{l}.gate", "stored": "{l}.a"},
    {"logical": "{l}.norm", "beside": "{l}.router", "stored": "{l}.b"}])");
  EXPECT_EQ(maker(map, "0.norm", {"0.gate", "1.router"}), 0);
  EXPECT_EQ(maker(map, "1.norm", {"0.gate", "1.router"}), 1);
  EXPECT_EQ(maker(map, "2.norm", {"0.gate", "1.router"}), -1);
  EXPECT_TRUE(map.match_stored("0.a") && map.match_stored("0.b"));
}

TEST(ResolvedMap, StatesFollowTheirTensors) {
  const ModelMap map =
      map_of(R"("rules": [{"logical": "m.{l}", "stored": "c.{l}"}], "states": [{"name": "v", "key": "opt.v.{key}"}])");
  const auto match = map.match_stored("opt.v.c.3");
  ASSERT_TRUE(match);
  EXPECT_EQ(map.rule(match->rule).logical[0].text(), "optimizer.state.m.{l}.v");
  EXPECT_TRUE(map.rule(match->rule).optional);
}

/// Experts of layers as Megatron stores them, a chunk an expert: 32768 of them, which must not be compared in pairs.
TEST(ResolvedMap, StackedExpertsTakeTimeByTheirNumber) {
  constexpr std::int64_t kLayers = 64, kExperts = 512;
  std::vector<std::int64_t> values(kLayers * kExperts * 2);
  std::iota(values.begin(), values.end(), 0);
  Catalog stored;
  stored.files.push_back({"f", 1 << 30, -1});
  stored.storages.push_back({.offset = 0, .bytes = 8 * std::ssize(values)});
  const std::array<std::int64_t, 4> shape{kLayers, kExperts, 2, 1}, sizes{1, 1, 2, 1};
  StoredTensor whole;
  whole.shape = stored.arena->dims(shape);
  whole.strides = row_major_strides(*stored.arena, shape);
  whole.dtype = DType::kInt64;
  CatalogBuilder(stored).add_tensor("layers.w", {}, whole);
  const Chunk all = stored.chunks.front();
  stored.chunks.clear();
  for (std::int64_t i = 0; i < kLayers * kExperts; ++i) {
    Chunk chunk = all;
    chunk.offsets = stored.arena->dims(std::array<std::int64_t, 4>{i / kExperts, i % kExperts, 0, 0});
    chunk.sizes = stored.arena->dims(sizes);
    chunk.first = 2 * i;
    stored.chunks.push_back(chunk);
  }
  stored.tensors.front().chunk_count = kLayers * kExperts;
  validate_catalog(stored);
  const ModelMap map = map_of(R"("vars": {"named": 0}, "index": {"l": {"stacked": {"named": 0}}}, "rules": [
    {"logical": ["{l}.{e}.gate", "{l}.{e}.up"], "stored": "layers.{l}.w", "concat": {"sizes": "equal"}, "stack": [{"index": "e"}]}])");
  const std::clock_t begin = std::clock();
  const UndoneMap undone(stored, map);
  const Catalog logical = undone.make_catalog(stored);
  EXPECT_LT(std::clock() - begin, 3 * CLOCKS_PER_SEC);  // In pairs it takes 10 seconds.
  ASSERT_EQ(logical.tensors.size(), 2 * kLayers * kExperts);
  const Flat read = read_all(logical, {values});
  EXPECT_EQ(read.at({"63.511.up", -1}), std::vector<std::int64_t>{std::ssize(values) - 1});
  EXPECT_EQ(read.at({"1.2.gate", -1}), std::vector<std::int64_t>{2 * (kExperts + 2)});
}

TEST(ResolvedMap, IsRefusedWhereADocumentSaysSo) {
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

/// The numbers for a logical name, as {scale, add}.
MapFactors factors_of(const ModelMap& map, const std::string& name) {
  const auto matches = map.match_logical(name, [](const std::string&) { return true; });
  return map.factors_of(map.rule(matches.at(0).rule), name, DType::kBfloat16);
}

TEST(ResolvedMap, ArithmeticFollowsVariablesAndStates) {
  const std::string keys = R"J("vars": {"hd": 16, "centred": 1}, "rules": [
    {"logical": "q", "stored": "wq", "scale": "1 / sqrt(hd)", "add": "-centred"}, {"alias": "q", "stored": "again"},
    {"match": "norm", "add": "-centred"}, {"match": "plain"}], "states": [
    {"name": "m", "key": "m.{key}", "as": "gradients"}, {"name": "v", "key": "v.{key}", "as": "squared_gradients"},
    {"name": "w", "key": "w.{key}", "as": "weights"}])J";
  const ModelMap map = map_of(keys);
  const MapFactors query{0.25F, -1};
  EXPECT_EQ(factors_of(map, "q"), query);
  EXPECT_EQ(factors_of(map, "norm"), (MapFactors{1, -1}));
  EXPECT_EQ(factors_of(map, "plain"), MapFactors());
  EXPECT_EQ(factors_of(map, "optimizer.state.q.m"), (MapFactors{4, 0}));
  EXPECT_EQ(factors_of(map, "optimizer.state.q.v"), (MapFactors{16, 0}));
  EXPECT_EQ(factors_of(map, "optimizer.state.q.w"), query);
}

TEST(ResolvedMap, ArithmeticThatIsImpossibleIsRefused) {
  const std::string keys =
      R"J("vars": {"x": {"value": 0}}, "rules": [{"id": "n", "match": "n", "scale": "x"}, {"match": "m", "add": "1e39 + y"},
      {"match": "w", "scale": 2}, {"match": "one", "add": "x"}])J";
  const ModelMap map = map_of(keys);
  expect_error(ErrorCode::kInvalidArgument, "cannot map 'n': rule 'n' cannot be used in float32",
               [&] { factors_of(map, "n"); });
  expect_error(ErrorCode::kInvalidArgument, "needs a value for 'y'", [&] { factors_of(map, "m"); });
  const auto of_dtype = [&](std::size_t rule, DType dtype) { return map.factors_of(map.rule(rule), "t", dtype); };
  for (const DType dtype : {DType::kFloat64, DType::kInt32, DType::kFloat8E4m3fn}) {
    expect_error(ErrorCode::kUnsupported, "rules[2] computes its values", [&] { of_dtype(2, dtype); });
    EXPECT_FALSE(of_dtype(3, dtype).changes());  // Adding 0 moves bytes.
  }
}

}  // namespace
}  // namespace shard::test
