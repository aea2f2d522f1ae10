/// Single operations of rules, both ways, against the obvious way with matrices.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>
#include <string>
#include <vector>

#include "libshard/core/error.h"
#include "libshard/map/documents/model_map.h"
#include "libshard/map/passes/apply.h"
#include "libshard/map/passes/mapped_reader.h"
#include "libshard/map/passes/undo.h"
#include "tests/map/matrices.h"
#include "tests/support/cpu_time.h"
#include "tests/support/expect_error.h"
#include "tests/support/memory_checkpoint.h"

namespace shard::test {
namespace {

ModelMap map_with(const std::string& keys) {
  MapDocument document = parse_map_document(R"({"schema": "shardctl.layout/1", )" + keys + "}", "map.json");
  MapVariables variables(document, {});
  return ModelMap(std::move(document), std::move(variables));
}

Flat undone_with(const std::string& keys, const std::vector<Model>& ranks) {
  const Stored stored(ranks);
  return read_all(UndoneMap(stored.catalog(), map_with(keys)).make_catalog(stored.catalog()), stored.elements());
}

Flat made_with(const std::string& keys, const Model& model) {
  const Stored logical({model});
  const AppliedMap applied(logical.catalog(), everything(logical.catalog()), map_with(keys));
  return copied(logical.catalog(), logical.elements(), applied);
}

void expect_both(const std::string& keys, const Model& model, const std::vector<Model>& ranks) {
  EXPECT_EQ(undone_with(keys, ranks), flat(model)) << keys;
  EXPECT_EQ(made_with(keys, model), flat(ranks)) << keys;
}

Matrix rows_of(const Matrix& matrix, std::int64_t begin, std::int64_t count) {
  return {matrix.begin() + begin, matrix.begin() + begin + count};
}

Matrix joined_rows(std::initializer_list<Matrix> parts) {
  Matrix all;
  for (const Matrix& part : parts) append_rows(all, part);
  return all;
}

TEST(MapOperations, WidthsCutEachSegmentAsListed) {
  const Matrix q = counted(7, 3, 1), k = counted(4, 3, 100), v = counted(4, 3, 200);
  const std::vector<std::int64_t> of_q{0, 4, 5, 7}, of_k{0, 1, 1, 4};
  std::vector<Model> ranks;
  for (std::size_t r = 0; r < 3; ++r) {
    ranks.push_back(
        {{"qkv", joined_rows({rows_of(q, of_q[r], of_q[r + 1] - of_q[r]), rows_of(k, of_k[r], of_k[r + 1] - of_k[r]),
                              rows_of(v, std::vector<std::int64_t>{0, 2, 3, 4}[r], r == 0 ? 2 : 1)})}});
  }
  expect_both(R"("vars": {"a": 4}, "mesh": {"tp": 3}, "rules": [{"logical": ["q", "k", "v"], "stored": "qkv",
      "concat": {"per_segment": true, "widths": [["a", 1, "a-2"], [1, 0, 3], null], "sizes": [7, 4, 4]},
      "shard": [{"axis": "tp", "split": "first_extra"}]}])",
              {{"q", q}, {"k", k}, {"v", v}}, ranks);
}

TEST(MapOperations, WidthsSayHowLargeSegmentsAre) {
  const Matrix a = counted(3, 2, 1), b = counted(5, 2, 50);
  expect_both(R"("mesh": {"tp": 4}, "rules": [{"logical": ["a", "b"], "stored": "ab", "shard": [{"axis": "tp"}],
      "concat": {"per_segment": true, "replicas": [2, 2], "widths": [[1, 2], [4, 1]]}}])",
              {{"a", a}, {"b", b}},
              {{{"ab", joined_rows({rows_of(a, 0, 1), rows_of(b, 0, 4)})}},
               {{"ab", joined_rows({rows_of(a, 0, 1), rows_of(b, 0, 4)})}},
               {{"ab", joined_rows({rows_of(a, 1, 2), rows_of(b, 4, 1)})}},
               {{"ab", joined_rows({rows_of(a, 1, 2), rows_of(b, 4, 1)})}}});
}

TEST(MapOperations, WidthsThatDoNotFitAreRefused) {
  const Stored logical({{{"a", counted(3, 2, 1)}}});
  for (const char* widths : {"[[1, 1]]", "[[1, 1, 1]]", "[[4, -1]]"}) {
    const std::string keys = std::string(R"("mesh": {"tp": 2}, "rules": [{"logical": "a", "stored": "b",
        "shard": [{"axis": "tp"}], "concat": {"per_segment": true, "widths": )") +
                             widths + "}}]";
    EXPECT_EQ(error_of([&] {
                made_with(keys, {{"a", counted(3, 2, 1)}});
              }).code(),
              ErrorCode::kInvalidArgument)
        << widths;
  }
}

TEST(MapOperations, WidthsWhoseSumIsOutOfBoundsAreRefused) {
  const std::vector<Model> ranks{{{"b", counted(1, 2, 1)}}, {{"b", counted(1, 2, 9)}}};
  const Error error = error_of([&] {
    undone_with(R"("mesh": {"tp": 2}, "rules": [{"logical": "a", "stored": "b", "shard": [{"axis": "tp"}],
           "concat": {"per_segment": true, "widths": [[9223372036854775807, 1]]}}])",
                ranks);
  });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_NE(std::string(error.what()).find("the sum of its widths does not fit 63 bits"), std::string::npos);
}

constexpr const char* kTable =
    R"("mesh": {"pp": 2}, "rules": [{"logical": "x.{l}", "stored": "m{l_chunk}.{l_local}"}], )";

TEST(MapOperations, ATableSaysWhereEachNumberLies) {
  Model model;
  for (int l = 3; l < 9; ++l) model["x." + std::to_string(l)] = counted(2, 2, 10 * l);
  const auto of = [&](int l) { return model.at("x." + std::to_string(l)); };
  expect_both(
      std::string(kTable) + R"("index": {"l": {"begin": 3, "count": 6, "axis": "pp", "chunks": 2,
                  "table": [[8], [3, 5, 4], [], ["3+3", 7]]}})",
      model,
      {{{"m0.0", of(8)}}, {{"m0.0", of(3)}, {"m0.1", of(5)}, {"m0.2", of(4)}, {"m1.0", of(6)}, {"m1.1", of(7)}}});
}

TEST(MapOperations, TablesThatDoNotHaveEachNumberOnceAreRefused) {
  for (const char* table : {"[[0, 1]]", "[[0], [1], []]", "[[0], [0]]", "[[0], []]", "[[0], [2]]", "[[0, -1], [1]]"}) {
    const std::string keys =
        std::string(kTable) + R"("index": {"l": {"count": 2, "axis": "pp", "table": )" + table + "}}";
    const Error error = error_of([&] { made_with(keys, {{"x.0", counted(2, 2, 1)}, {"x.1", counted(2, 2, 9)}}); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << table;
  }
}

TEST(MapOperations, ATableOfAStackedIndexListsNeighbours) {
  const Model model{{"x.0", counted(2, 2, 1)}, {"x.1", counted(2, 2, 11)}, {"x.2", counted(2, 2, 21)}};
  const auto keys = [](const std::string& table) {
    return R"("mesh": {"pp": 2}, "rules": [{"logical": "x.{l}", "stored": "x", "stack": [{"index": "l"}]}],
              "index": {"l": {"count": 3, "axis": "pp", "table": )" +
           table + "}}";
  };
  EXPECT_EQ(made_with(keys("[[1, 2], [0]]"), model),
            (Flat{{{"x", 0}, {11, 12, 13, 14, 21, 22, 23, 24}}, {{"x", 1}, {1, 2, 3, 4}}}));
  for (const char* table : {"[[0, 2], [1]]", "[[1, 0], [2]]"}) {
    EXPECT_EQ(error_of([&] { made_with(keys(table), model); }).code(), ErrorCode::kInvalidArgument) << table;
  }
}

TEST(MapOperations, AStackedIndexMayStateOneChunkByAVariable) {
  const auto keys = [](int chunks) {
    return fmt::format(R"("vars": {{"vp": {}}}, "mesh": {{"pp": 2}}, "rules": [
        {{"logical": "x.{{l}}", "stored": "x", "stack": [{{"index": "l"}}]}}],
        "index": {{"l": {{"count": 2, "axis": "pp", "chunks": "vp"}}}})",
                       chunks);
  };
  const Model model{{"x.0", counted(2, 2, 1)}, {"x.1", counted(2, 2, 11)}};
  EXPECT_EQ(made_with(keys(1), model), (Flat{{{"x", 0}, {1, 2, 3, 4}}, {{"x", 1}, {11, 12, 13, 14}}}));
  EXPECT_EQ(error_of([&] { made_with(keys(2), model); }).code(), ErrorCode::kInvalidArgument);
}

TEST(MapOperations, ATensorOfOneRankHasARemedy) {
  const Stored ranks({{{"x.0", counted(2, 2, 1)}}, {{"x.0", counted(2, 2, 9)}}});
  const Error error = error_of(
      [&] { AppliedMap(ranks.catalog(), everything(ranks.catalog()), map_with(R"("rules": [{"match": ".*"}])")); });
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  ASSERT_EQ(error.suggestions().size(), 1U);
  EXPECT_EQ(error.suggestions()[0].remedy, Remedy::kExclude);
}

TEST(MapOperations, AnyNumberInAStoredNameIsComparedWithTheIndex) {
  const std::string keys = std::string(kTable) + R"("index": {"l": {"count": 2, "axis": "pp", "offset": -1}})";
  const std::string largest = "m0.9223372036854775807";
  expect_error(ErrorCode::kInvalidArgument, "no rule of the map matches", [&] {
    undone_with(keys, {{{largest, counted(2, 2, 1)}}, {{largest, counted(2, 2, 1)}}});
  });
}

std::string last_row(std::int64_t tp) {
  return R"J("vars": {"vocab": 5}, "mesh": {"tp": )J" + std::to_string(tp) +
         R"J(}, "rules": [{"logical": "e", "stored": "w",
      "pad": {"dim": 0, "to": "ceil_to(n, 8)", "fill": "last_row", "true": "vocab"}, "shard": [{"axis": "tp"}]}])J";
}

TEST(MapOperations, PaddingOfTheLastRowRepeatsIt) {
  const Matrix e = counted(5, 3, 1);
  Matrix padded = e;
  for (int i = 0; i < 3; ++i) append_rows(padded, rows_of(e, 4, 1));
  for (const std::int64_t tp : {1, 2, 4, 8}) {
    std::vector<Model> ranks;
    for (std::int64_t t = 0; t < tp; ++t) ranks.push_back({{"w", row_part(padded, t, tp)}});
    expect_both(last_row(tp), {{"e", e}}, ranks);
  }
}

TEST(MapOperations, PaddingOfTheLastRowKnowsGroupsAndPermutations) {
  const Matrix a = counted(4, 2, 1), b = counted(2, 2, 50);
  // Groups of two rows of a and one of b; the last of five padded rows is b's second.
  const Matrix groups = joined_rows(
      {rows_of(a, 0, 2), rows_of(b, 0, 1), rows_of(a, 2, 2), rows_of(b, 1, 1), rows_of(b, 1, 1), rows_of(b, 1, 1)});
  expect_both(R"("mesh": {"tp": 2}, "rules": [{"logical": ["a", "b"], "stored": "w", "shard": [{"axis": "tp"}],
      "concat": {"interleave": 2, "sizes": [4, 2]}, "pad": {"to": 8, "fill": "last_row", "true": 6}}])",
              {{"a", a}, {"b", b}}, {{{"w", row_part(groups, 0, 2)}}, {{"w", row_part(groups, 1, 2)}}});
  const Matrix pairs =
      joined_rows({rows_of(a, 0, 1), rows_of(a, 2, 1), rows_of(a, 1, 1), rows_of(a, 3, 1), rows_of(a, 3, 1)});
  expect_both(R"J("rules": [{"logical": "a", "stored": "w", "permute": "rope_half_to_pairs(1)",
      "pad": {"to": 5, "fill": "last_row", "true": 4}}])J",
              {{"a", a}}, {{{"w", pairs}}});
}

TEST(MapOperations, PaddingOfTheLastRowIsReadAsReplicas) {
  Matrix padded = joined_rows({counted(5, 3, 1), counted(3, 3, 90)});
  // read_all gives -2 if replicas differ.
  const std::vector<std::int64_t> read = undone_with(last_row(1), {{{"w", padded}}}).begin()->second;
  EXPECT_EQ(std::vector<std::int64_t>(read.end() - 3, read.end()), (std::vector<std::int64_t>{-2, -2, -2}));
  EXPECT_EQ(read.front(), 1);
}

/// One tensor on both ranks of a mesh, in groups of two rows of a and two of b.
std::string groups_on_two_ranks(std::int64_t groups, const std::string& pad = "") {
  return fmt::format(R"("mesh": {{"dp": 2}}, "rules": [{{"logical": ["a", "b"], "stored": "w",
      "concat": {{"interleave": {}, "sizes": "equal"}}{}}}])",
                     groups, pad);
}

TEST(MapOperations, WhatAllRanksHoldAlikeIsTakenOnce) {
  const Stored stored({{{"w", padded_to(counted(8, 3, 1), 10)}}});
  const UndoneMap undone(stored.catalog(), map_with(groups_on_two_ranks(2, R"(, "pad": {"to": 10, "true": 8})")));
  EXPECT_EQ(undone.make_catalog(stored.catalog()).chunks.size(), 4U);
  EXPECT_EQ(undone.paddings().size(), 1U);
}

TEST(MapOperations, ManyBoxesThatAllRanksHoldAlikeCostNoSquare) {
  constexpr std::int64_t kGroupCount = 1 << 16;  // In pairs their boxes take much longer.
  const Stored stored({{{"w", counted(4 * kGroupCount, 1, 1)}}});
  const std::clock_t begin = std::clock();
  const UndoneMap undone(stored.catalog(), map_with(groups_on_two_ranks(kGroupCount)));
  EXPECT_LT(std::clock() - begin, 5 * CLOCKS_PER_SEC);
  EXPECT_EQ(undone.make_catalog(stored.catalog()).chunks.size(), 2U * kGroupCount);
}

TEST(MapOperations, ManySegmentsInManyGroupsCostNoSquare) {
  constexpr std::int64_t kNames = 4096, kGroups = 64;
  std::string names;
  for (int i = 0; i < kNames; ++i) names += fmt::format("{}\"a{}\"", i == 0 ? "" : ", ", i);
  const Stored stored({{{"w", counted(kNames * kGroups * 2, 1, 1)}}});
  const ModelMap map = map_with(
      fmt::format(R"("rules": [{{"logical": [{}], "stored": "w", "concat": {{"sizes": "equal", "interleave": {}}}}}])",
                  names, kGroups));
  std::size_t chunks = 0;
  const double seconds =
      cpu_seconds([&] { chunks = UndoneMap(stored.catalog(), map).make_catalog(stored.catalog()).chunks.size(); });
  EXPECT_EQ(chunks, kNames * kGroups);
  EXPECT_LT(seconds, cpu_limit(5));  // If each segment takes its runs from those of all, it takes 15 seconds.
}

/// A gate and an up projection in blocks of [2, 2], fused and cut; their scales have one element a block.
std::string blocked(const std::string& of_weight, const std::string& of_scale,
                    const std::string& shape = "[\"b\", 2]") {
  return R"("vars": {"b": 2}, "mesh": {"tp": 2}, "rules": [
      {"logical": ["x.{l}.gate", "x.{l}.up"], "stored": "y.{l}.w", )" +
         of_weight + R"(}, {"logical": ["x.{l}.gate_scale", "x.{l}.up_scale"], "stored": "y.{l}.s",
       "block": {"of": ["x.{l}.gate", "x.{l}.up"], "shape": )" +
         shape + "}, " + of_scale + "}]";
}

constexpr const char* kCutEvenly = R"("concat": {"per_segment": true, "sizes": "equal"}, "shard": [{"axis": "tp"}])";

Model blocked_model() {
  return {{"x.0.gate", counted(8, 3, 1)},
          {"x.0.up", counted(8, 3, 101)},
          {"x.0.gate_scale", counted(4, 2, 201)},
          {"x.0.up_scale", counted(4, 2, 301)}};
}

TEST(MapOperations, ScalesAreCutAsTheirBlocks) {
  const Model model = blocked_model();
  std::vector<Model> ranks;
  for (std::int64_t t = 0; t < 2; ++t) {
    const auto part = [&](const char* name) { return row_part(model.at(name), t, 2); };
    ranks.push_back({{"y.0.w", joined_rows({part("x.0.gate"), part("x.0.up")})},
                     {"y.0.s", joined_rows({part("x.0.gate_scale"), part("x.0.up_scale")})}});
  }
  expect_both(blocked(kCutEvenly, kCutEvenly), model, ranks);
  // The last block of five rows has one.
  const Matrix w = counted(5, 4, 1), s = counted(3, 2, 100);
  const std::string uneven = R"("mesh": {"tp": 2}, "rules": [
      {"logical": "w", "stored": "w", "shard": [{"axis": "tp", "split": "widths", "widths": [4, 1]}]},
      {"logical": "s", "stored": "s", "shard": [{"axis": "tp", "split": "chunk"}], "block": {"of": "w", "shape": [2, 2]}}])";
  expect_both(uneven, {{"w", w}, {"s", s}},
              {{{"w", rows_of(w, 0, 4)}, {"s", rows_of(s, 0, 2)}}, {{"w", rows_of(w, 4, 1)}, {"s", rows_of(s, 2, 1)}}});
}

TEST(MapOperations, WordsOfNamesMayHoldAnyCharacter) {
  const std::string first("x\0y-z", 5), second("x-y\0z", 5);  // Words that are the same once they are joined.
  const Model model{{first, counted(4, 2, 1)}, {second, counted(4, 2, 100)}};
  std::vector<Model> ranks;
  for (std::int64_t r = 0; r < 2; ++r) {
    ranks.push_back({{"s" + first, row_part(model.at(first), r, 2)}, {"s" + second, row_part(model.at(second), r, 2)}});
  }
  expect_both(R"("mesh": {"tp": 2}, "types": {"a": ".+", "b": ".+"}, "rules": [{"logical": "{a}-{b}",
      "stored": "s{a}-{b}", "shard": [{"axis": "tp", "dim": 0}]}])",
              model, ranks);
}

TEST(MapOperations, WhatNoRankWouldStoreIsRefused) {
  const Model model{{"w", counted(4, 2, 1)}};
  for (const char* on : {"2", "-3", "[]", "[2, 5]"}) {
    const std::string keys =
        fmt::format(R"("mesh": {{"pp": 2}}, "rules": [{{"logical": "w", "stored": "w", "on": {{"pp": {}}}}}])", on);
    test::expect_error(ErrorCode::kInvalidArgument, "names no coordinate that the axis 'pp' has",
                       [&] { map_with(keys); });
  }
  const Model layers{{"l.0", counted(4, 2, 1)}, {"l.1", counted(4, 2, 100)}};
  test::expect_error(ErrorCode::kInvalidArgument, "does not store it on any rank", [&] {
    made_with(R"("mesh": {"pp": 2}, "index": {"l": {"count": 2, "axis": "pp"}}, "rules": [{"logical": "l.{l}",
         "stored": "l.{l}", "on": {"pp": "first"}}])",
              layers);
  });
}

void expect_refused(const std::string& keys, const Model& model, const std::string& words) {
  test::expect_error(ErrorCode::kInvalidArgument, words, [&] { made_with(keys, model); });
}

TEST(MapOperations, WhatCouldNotBeUndoneIsNotMade) {
  const Model model{{"w", counted(4, 2, 1)}, {"v", counted(2, 2, 100)}};
  expect_refused(R"("mesh": {"pp": 2}, "rules": [{"match": "v"}, {"logical": "w", "stored": "w", "on": {"pp": "first"},
      "shard": [{"axis": "pp"}]}])",
                 model, "cannot map 'w': the map stores 4 of its 8 elements");
  expect_refused(R"("rules": [{"logical": ["w", "v"], "stored": "u", "concat": {"sizes": "equal"}}])", model,
                 "segment 1 does not have the size in the map");
  expect_refused(R"("rules": [{"match": "v"}, {"logical": "w", "stored": "w", "pad": {"to": 8, "true": 3}}])", model,
                 "the padded tensor does not have the size in the map");
  const Model experts{{"e.0", counted(4, 2, 1)}, {"e.1", counted(4, 2, 100)}};
  const std::string stacked = R"("rules": [{"logical": "e.{e}", "stored": "e", "stack": [{"index": "e"}]}])";
  expect_refused(R"("index": {"e": {"count": 1}}, )" + stacked, experts, "the map gives index 'e' 1 values");
  expect_refused(R"("mesh": {"pp": 1}, "index": {"e": {"axis": "pp"}}, )" + stacked, experts, "without a count");
  expect_refused(R"("index": {"e": {"offset": 9223372036854775807}}, )" + stacked, experts, "its offset is");
  expect_refused(R"("index": {"e": {"begin": -1, "count": 2}}, )" + stacked, experts, "2 numbers from -1 on");
}

TEST(MapOperations, PaddingOfElementsThatShareBytesIsComparedWithZeros) {
  for (const int last_byte : {0, 1}) {
    Catalog catalog;
    const std::uint32_t storage = testing::add_storage(catalog, 0, 12);
    testing::add_tensor(catalog, "w", DType::kFloat6E2m3fn, {4, 4}, {{{0, 0}, {4, 4}, {4, 1}, 0, storage}});
    std::vector<std::byte> bytes(12, std::byte{7});
    std::fill(bytes.begin() + 9, bytes.end(), std::byte{0});
    bytes.back() = static_cast<std::byte>(last_byte);
    MappedReader reader(std::make_unique<testing::MemoryReader>(catalog, std::vector<std::vector<std::byte>>{bytes}),
                        map_with(R"("rules": [{"logical": "w", "stored": "w", "pad": {"to": 4, "true": 3}}])"));
    const std::uint32_t tensor = 0;
    if (last_byte == 0) {
      reader.locate({&tensor, 1});
    } else {
      EXPECT_EQ(error_of([&] { reader.locate({&tensor, 1}); }).kind(), FindingKind::kShapeMismatch);
    }
  }
}

TEST(MapOperations, CutsInsideBlocksAreRefused) {
  const auto error = [](const std::string& keys, const Model& model) {
    return error_of([&] { made_with(keys, model); });
  };
  const std::string fused = R"("concat": {"sizes": "equal"}, "shard": [{"axis": "tp"}])";
  const std::string widths =
      R"("concat": {"per_segment": true, "widths": [[4, 4], [3, 5]]}, "shard": [{"axis": "tp"}])";
  const std::string rotary = kCutEvenly + std::string(R"J(, "permute": "rope_half_to_pairs(2)")J");
  for (const std::string& wrong : {widths, rotary}) {
    const Error inside = error(blocked(wrong, kCutEvenly), blocked_model());
    EXPECT_EQ(inside.code(), ErrorCode::kInvalidArgument) << wrong;
    EXPECT_THAT(inside.what(), ::testing::HasSubstr("inside a block of its scale")) << wrong;
  }
  const Error other = error(blocked(fused, kCutEvenly), blocked_model());
  EXPECT_EQ(other.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(other.what(), ::testing::HasSubstr("differently from its scale"));
  EXPECT_THAT(error(blocked(kCutEvenly, kCutEvenly, "[2, 3]"), blocked_model()).what(),
              ::testing::HasSubstr("one element for each block"));
  EXPECT_EQ(error(blocked(kCutEvenly, kCutEvenly, "[2]"), blocked_model()).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(error(blocked(kCutEvenly, kCutEvenly, "[0, 2]"), blocked_model()).code(), ErrorCode::kInvalidArgument);
  const std::string alone = R"("rules": [{"logical": "s", "stored": "s", "block": {"of": "w", "shape": [2, 2]}}])";
  EXPECT_EQ(error(alone, {{"s", counted(2, 2, 1)}}).code(), ErrorCode::kNotFound);
  EXPECT_EQ(error_of([&] { undone_with(alone, {{{"s", counted(2, 2, 1)}}}); }).code(), ErrorCode::kNotFound);
}

}  // namespace
}  // namespace shard::test
