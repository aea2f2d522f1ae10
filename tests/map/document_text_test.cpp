// Documents as JSON and as YAML: one tree, and only the JSON subset of YAML.
#include "libshard/map/documents/document_text.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "libshard/core/error.h"
#include "libshard/map/documents/layout_document.h"
#include "tests/support/expect_error.h"

namespace shard {
namespace {

using Json = nlohmann::ordered_json;

Json parsed(std::string_view text) { return parse_document_text(text, kMaxMapValues); }

std::string refusal_of(const std::string& text) {
  const Error error = test::error_of([&] { parsed(text); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << text;
  return fmt::format("{} {}", error.what(), error.why());
}

TEST(DocumentText, YamlSaysWhatJsonSays) {
  const Json json = parsed(R"({"mesh": {"pp": 2, "dp": 4}, "rules": [{"match": "a\\.b", "shard": []},
    {"id": "no", "n": -7, "x": 2.5, "on": true, "off": false, "none": null, "text": "1", "empty": ""}]})");
  const Json yaml = parsed(R"(# A comment.
---
mesh: {pp: 2, dp: 4}
rules:
- match: a\.b
  shard: []
- id: no
  n: -7
  x: 2.5
  on: true
  off: false
  none:
  text: "1"
  empty: ''
...
)");
  EXPECT_EQ(json.dump(), yaml.dump());
}

TEST(DocumentText, AByteOrderMarkIsSkipped) {
  const Json json = Json({{"a", 1}});
  EXPECT_EQ(parsed("\xef\xbb\xbf{\"a\": 1}"), json);
  EXPECT_EQ(parsed(std::string("\xef\xbb\xbf") + "a: 1\n"), json);
}

TEST(DocumentText, APlainScalarIsANumberOnlyWhereJsonSaysSo) {
  for (const char* text : {"yes", "no", "on", "True", "~", "0x10", "1_000", "012", "+1", ".5", "1e400", ".inf", "=",
                           "2026-11-23", "NULL"}) {
    EXPECT_EQ(parsed(fmt::format("a: {}\n", text))["a"], Json(text));
  }
  EXPECT_EQ(parsed("a: 18446744073709551615\n")["a"], Json(18446744073709551615ULL));
  EXPECT_EQ(parsed("1: 2\n"), Json({{"1", 2}}));
  EXPECT_EQ(parsed("a: |\n  x\n  y\n")["a"], Json("x\ny\n"));
}

TEST(DocumentText, WhatJsonCannotSayIsRefusedByLine) {
  EXPECT_THAT(refusal_of("a: &x 1\nb: *x\n"), ::testing::HasSubstr("line 1 uses an anchor"));
  EXPECT_THAT(refusal_of("a: 1\nb: *x\n"), ::testing::HasSubstr("line 2 uses an alias"));
  EXPECT_THAT(refusal_of("a: !!str 1\n"), ::testing::HasSubstr("line 1 uses a tag"));
  EXPECT_THAT(refusal_of("? [a]\n: 1\n"), ::testing::HasSubstr("a key that is a list"));
  EXPECT_THAT(refusal_of("a: 1\n---\nb: 2\n"), ::testing::HasSubstr("line 2 uses a second document"));
  EXPECT_THAT(refusal_of("a: 1\na: 2\n"), ::testing::HasSubstr("'a' appears twice"));
  EXPECT_THAT(refusal_of("a: [1\nb: 2\n"), ::testing::HasSubstr("nor YAML"));
  EXPECT_THAT(refusal_of("a: \x01\n"), ::testing::HasSubstr("nor YAML"));
  EXPECT_THAT(refusal_of(""), ::testing::HasSubstr("it is empty"));
  test::expect_error(ErrorCode::kInvalidArgument, "it is empty", [] { parsed(std::string_view()); });
  EXPECT_THAT(refusal_of("# nothing\n"), ::testing::HasSubstr("it is empty"));
  EXPECT_THAT(refusal_of("{\"a\": 1, \"a\": 2}"), ::testing::HasSubstr("'a' appears twice"));
}

TEST(DocumentText, LaughsAreRefusedBeforeTheyGrow) {
  std::string laughs = "a0: &a0 [lol]\n";
  for (int i = 1; i < 40; ++i) laughs += fmt::format("a{}: &a{} [*a{}, *a{}]\n", i, i, i - 1, i - 1);
  EXPECT_THAT(refusal_of(laughs), ::testing::HasSubstr("an anchor"));
}

TEST(DocumentText, DepthAndKeysAreBounded) {
  const std::string deep(1 << 18, '[');
  EXPECT_THAT(refusal_of("a: " + deep), ::testing::HasSubstr("deeper than 32"));
  EXPECT_THAT(refusal_of(deep), ::testing::HasSubstr("deeper than 32"));
  std::string blocks, keys;
  for (int i = 0; i < 500; ++i) blocks += "- ";
  EXPECT_THAT(refusal_of(blocks + "1\n"), ::testing::HasSubstr("deeper than 32"));
  for (int i = 0; i < 300; ++i) keys += fmt::format("k{}: 1\n", i);
  EXPECT_THAT(refusal_of(keys), ::testing::HasSubstr("more than 256 keys"));
}

TEST(DocumentText, ManyTinyValuesAreRefusedAndHonestEntriesAreNot) {
  std::string rules;
  for (const char* tiny : {"{},", "[],", "0,", "\"a\","}) {
    std::string many;
    while (many.size() < 200'000) many += tiny;
    EXPECT_THAT(refusal_of("{\"rules\": [" + many + "0]}"), ::testing::HasSubstr("out of proportion")) << tiny;
  }
  for (int i = 0; i < 5000; ++i) rules += fmt::format(R"({{"match":"a{}","shard":[{{"axis":"tp","dim":0}}]}},)", i);
  EXPECT_EQ(parsed("[" + rules + "0]").size(), 5001U);
  EXPECT_EQ(parsed("[\"" + std::string(200'000, ',') + "\"]")[0].get<std::string>().size(), 200'000U);
  std::string lines;
  while (lines.size() < 200'000) lines += "- {}\n";
  EXPECT_THAT(refusal_of(lines), ::testing::HasSubstr("out of proportion"));
}

TEST(DocumentText, ValuesAreBounded) {
  const std::string list = "[\"a long text\", \"a long text\", \"a long text\"]";
  EXPECT_EQ(parse_document_text(list, 4).size(), 3U);
  test::expect_error(ErrorCode::kInvalidArgument, "more than 3 values", [&] { parse_document_text(list, 3); });
}

TEST(DocumentText, ALayoutMayBeYaml) {
  const MeshLayout layout = parse_layout_document(R"(schema: shardctl.layout/1
name: two by two
mesh:
  dp: 2
  tp: 2
rules:
  - match: .*\.up\.weight
    shard:
      - {axis: tp, dim: 0}
      - {axis: dp, dim: 0}
)",
                                                  "layout.yaml");
  ASSERT_EQ(layout.mesh.size(), 2U);
  EXPECT_EQ(layout.mesh[0].name, "dp");
  EXPECT_EQ(layout.rules[0].order, (std::vector<std::size_t>{1, 0}));
  EXPECT_EQ(layout.rules_for("a.up.weight"), std::vector<std::size_t>{0});
}

}  // namespace
}  // namespace shard
