#include "libshard/map/documents/document.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "libshard/core/error.h"
#include "libshard/map/documents/builtin_maps.h"
#include "tests/support/expect_error.h"

namespace shard {
namespace {

using ::testing::HasSubstr;

MapDocument parse(const std::string& keys) {
  return parse_map_document(R"({"schema": "shardctl.layout/1", )" + keys + "}", "map.json");
}
Error error_of_rule(const std::string& keys) {
  return test::error_of(
      [&] { parse(R"("vars": {"kv": 2}, "mesh": {"tp": 4}, "rules": [{"id": "r", )" + keys + "}]"); });
}

TEST(MapDocument, ReadsEveryKeyOfARule) {
  const MapDocument document =
      parse(R"J("name": "m", "vars": {"kv": 2, "hd": {"from": ["args.hd", "config.json#/head_dim"], "value": "kv*4"}},
    "mesh": {"pp": 2, "tp": "ranks//2"}, "types": {"p": "weight|bias"}, "index": {"l": {"count": 8, "axis": "pp", "chunks": 1}},
    "strict": {"unmatched": "copy", "unused_rule": "warn"},
    "rules": [{"id": "qkv", "logical": ["a.{l}.q.{p}", "a.{l}.k.{p}"], "stored": "b.{l_local}.qk.{p}", "on": {"pp": "last"},
               "concat": {"dim": 0, "sizes": ["kv*hd", "kv*hd"], "per_segment": true, "replicas": [1, "max(1, tp//kv)"]},
               "shard": [{"axis": "tp", "dim": 0, "split": "chunk"}], "permute": ["rope_half_to_pairs(kv)", null],
               "unflatten": {"dim": 1, "size": "hd"},
               "reduce": "first", "optional": true}])J");
  EXPECT_EQ(document.name, "m");
  ASSERT_EQ(document.mesh.size(), 2u);
  EXPECT_EQ(document.mesh[1].size.text(), "ranks//2");
  EXPECT_TRUE(document.copies_unmatched);
  EXPECT_FALSE(document.must_use_rules);
  const MapRule& rule = document.rules.at(0);
  EXPECT_EQ(rule.logical.at(1).text(), "a.{l}.k.{p}");
  EXPECT_TRUE(rule.concat->per_segment);
  EXPECT_EQ(rule.concat->replicas.at(1).text(), "max(1, tp//kv)");
  EXPECT_EQ(rule.shard.at(0).axis, 1u);
  EXPECT_EQ(rule.shard.at(0).split, CutRule::kChunk);
  EXPECT_EQ(rule.on.at(0).coordinates, std::vector<std::int64_t>{-1});
  EXPECT_EQ(rule.permute.at(0).rotary, MapPermute::Rotary::kHalfToPairs);
  EXPECT_FALSE(rule.permute.at(0).transposes);
  EXPECT_EQ(rule.permute.at(1).rotary, MapPermute::Rotary::kNone);
  EXPECT_EQ(rule.unflatten->dim, 1);
  EXPECT_EQ(rule.unflatten->size.text(), "hd");
  EXPECT_EQ(rule.reduce, ReduceRule::kFirst);
  EXPECT_TRUE(rule.optional);
}

TEST(MapDocument, NamesAnUnknownKeyAndWhereItStands) {
  const Error error = error_of_rule(R"("logical": "a", "stored": "b", "concat": {"dmi": 0})");
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(error.what(), HasSubstr("rules[0].concat has an unknown key 'dmi'"));
  EXPECT_EQ(error.file(), "map.json");
}

TEST(MapDocument, RefusesContradictions) {
  for (const char* keys : {R"("logical": ["a", "b"], "stored": "c")",
                           R"("logical": "a.{l}", "stored": "b")",
                           R"("logical": "a", "stored": "b.{l}")",
                           R"("match": "a", "stored": "b")",
                           R"("match": "(")",
                           R"("match": "a", "alias": "b")",
                           R"("logical": "a", "alias": "b", "stored": "c")",
                           R"("logical": "a", "stored": "b{")",
                           R"("logical": "a", "stored": "b", "permute": "turn")",
                           R"("logical": "a", "stored": "b", "permute": "transpose then transpose")",
                           R"("logical": "a", "stored": "b", "unflatten": {"dim": 1})",
                           R"("logical": "a", "stored": "b", "unscale": 2)",
                           R"("logical": "a", "stored": "b", "scale": 0.5, "unscale": 2, "add": 1)",
                           R"("logical": "a", "stored": "b", "unflatten": {"size": 2}, "pad": {"to": 4})",
                           R"("logical": "a", "stored": "b", "shard": [{"axis": "pp"}])",
                           R"("logical": "a", "stored": "b", "when": {"x": 1})",
                           R"("logical": "a", "stored": "b", "pad": {"to": "1 +"})",
                           R"("logical": "a", "stored": "b", "reduce": "mean")",
                           R"("logical": ["a", "b"], "stored": "c", "concat": {"sizes": [1]})",
                           R"("logical": ["a", "b"], "stored": "c", "concat": {"replicas": [1, 1]})",
                           R"("logical": "a", "stored": "b", "concat": {"widths": [[1]]})",
                           R"("logical": "a", "stored": "b", "concat": {"per_segment": true, "widths": [[1]]})",
                           R"("logical": "a", "stored": "b", "concat": {"per_segment": true, "widths": [[]]})",
                           R"("logical": "a", "stored": "b", "block": {"of": "w"})",
                           R"("logical": "a", "stored": "b", "block": {"of": ["v", "w"], "shape": [2]})",
                           R"("logical": "a", "stored": "b", "block": {"of": "w.{l}", "shape": [2]})",
                           R"("match": "a", "block": {"of": "w", "shape": [2]})",
                           R"("logical": "a", "stored": [])",
                           R"("logical": "a.{l}", "stored": ["b.{l}", "c"])",
                           R"("logical": "a", "stored": "b", "drop": true)",
                           R"("match": "a", "beside": "b")",
                           R"("logical": "a", "stored": "b", "beside": "c.{l}")",
                           R"("logical": "a", "stored": "b", "scale": "1 /")",
                           R"("logical": "a", "stored": "b", "add": [1])",
                           R"("alias": "a", "stored": "b", "add": 1)",
                           R"("match": "a", "drop": true, "scale": 2)",
                           R"("logical": "a.{l}", "stored": "b.{l}", "stack": [{"index": "l"}])"}) {
    EXPECT_EQ(error_of_rule(keys).code(), ErrorCode::kInvalidArgument) << keys;
  }
}

TEST(MapDocument, ReadsWhereVariablesComeFrom) {
  const MapDocument document =
      parse(R"J("vars": {"a": {"from": ["stored#x\\.(.*)", "logical#y"], "value": ["b", 3], "word": "w"}},
    "rules": [])J");
  EXPECT_EQ(document.vars.at(0).from, (std::vector<std::string>{"stored#x\\.(.*)", "logical#y"}));
  EXPECT_EQ(document.vars.at(0).values.size(), 2u);
  EXPECT_EQ(document.vars.at(0).word, "w");
  for (const char* from : {"stored#(", "stored#(a)(b)", "files#a"}) {
    const Error error =
        test::error_of([&] { parse(std::string(R"("vars": {"a": {"from": ")") + from + R"("}}, "rules": [])"); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << from;
  }
}

TEST(MapDocument, RefusesTypesThatAreNoPatternsEvenIfNoRuleUsesThem) {
  for (const char* type : {"(", "a)(?:b", "(a|b)"}) {
    const Error error =
        test::error_of([&] { parse(std::string(R"("types": {"p": ")") + type + R"("}, "rules": [])"); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << type;
    EXPECT_THAT(error.what(), HasSubstr("the document.types.p")) << type;
  }
}

TEST(MapDocument, RefusesStatesWithoutTheirKey) {
  for (const char* state :
       {R"({"name": "m", "key": "m"})", R"({"name": "m", "key": "m.{name}"})", R"({"name": "m"})"}) {
    const Error error = test::error_of([&] { parse(std::string(R"("rules": [], "states": [)") + state + "]"); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << state;
  }
}

TEST(MapDocument, ReadsTheArithmeticOfARule) {
  const MapDocument document = parse(R"J("rules": [{"logical": "a", "stored": "b", "scale": "1 / sqrt(hd)",
     "unscale": "sqrt(hd)"}, {"match": "c", "add": -1.5}, {"match": "d"}], "states": [{"name": "m", "key": "m.{key}", "as": "gradients"}])J");
  EXPECT_EQ(document.rules[0].arithmetic->scale.text(), "1 / sqrt(hd)");
  EXPECT_EQ(document.rules[0].arithmetic->add.text(), "0");
  EXPECT_EQ(document.rules[0].arithmetic->unscale->text(), "sqrt(hd)");
  EXPECT_EQ(document.rules[1].arithmetic->add.evaluate_real({}), -1.5);
  EXPECT_FALSE(document.rules[2].arithmetic);
  EXPECT_EQ(document.states[0].values, MapValues::kGradients);
}

TEST(MapDocument, RefusesArithmeticForStatesAndBuffersThatItDoesNotFit) {
  const std::string rules = R"("mesh": {"dp": 1}, "rules": [{"id": "n", "logical": "a", "stored": "b", "add": 1}], )";
  const Error state = test::error_of([&] { parse(rules + R"("states": [{"name": "m", "key": "m.{key}"}])"); });
  EXPECT_THAT(state.what(), HasSubstr("the state 'm' needs the key 'as'"));
  const Error flat =
      test::error_of([&] { parse(rules + R"("flatten": {"axis": "dp", "kind": "zero12", "stored": "f.{group}"})"); });
  EXPECT_THAT(flat.what(), HasSubstr("rule 'n': scale and add cannot be combined with flatten"));
}

TEST(MapDocument, RefusesAVariableWhoseNameHasADifferentMeaning) {
  for (const auto& [name, meaning] :
       {std::pair{"tp", "an axis of mesh"}, std::pair{"l", "an index"}, std::pair{"ranks", "the number of ranks"}}) {
    const std::string vars = fmt::format(R"("vars": {{"{}": 1}}, )", name);
    const Error error =
        test::error_of([&] { parse(vars + R"("mesh": {"tp": 2}, "index": {"l": {"count": 2}}, "rules": [])"); });
    EXPECT_THAT(error.what(), HasSubstr(fmt::format("vars.{} has the name of {}", name, meaning)));
  }
}

TEST(MapDocument, RefusesAKeyThatAppearsTwice) {
  const Error error = test::error_of([] { parse(R"("name": "a", "name": "b", "rules": [])"); });
  EXPECT_THAT(error.what(), HasSubstr("appears twice"));
}

TEST(MapDocument, EveryBuiltInMapIsOne) {
  for (const BuiltinMap& map : builtin_maps()) {
    EXPECT_EQ(parse_map_document(map.text, std::string(map.name)).name, map.name);
  }
  EXPECT_NE(find_builtin_map("hf-v5"), nullptr);
  EXPECT_EQ(find_builtin_map("hf-v6"), nullptr);
}

}  // namespace
}  // namespace shard
