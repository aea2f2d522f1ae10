/// Flat buffers against the obvious way: local tensors that are joined, padded and cut element by element, in all four
/// kinds over tensor and data parallel ranks, and all ordered pairs of such layouts.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "libshard/catalog/layouts/flat_buffer.h"
#include "libshard/core/error.h"
#include "libshard/map/documents/model_map.h"
#include "libshard/map/passes/apply.h"
#include "libshard/map/passes/undo.h"
#include "tests/map/matrices.h"
#include "tests/support/expect_error.h"

namespace shard::test {
namespace {

using ::testing::HasSubstr;
using Numbers = std::vector<std::int64_t>;

// ---- The obvious way.

void pad_to_multiple(Numbers& numbers, std::int64_t step) {
  while (std::ssize(numbers) % step != 0) numbers.push_back(0);
}
void append(Numbers& numbers, const Numbers& more) { numbers.insert(numbers.end(), more.begin(), more.end()); }
Numbers slice_of(const Numbers& numbers, std::int64_t part, std::int64_t parts) {
  const auto size = std::ssize(numbers) / parts;
  return {numbers.begin() + part * size, numbers.begin() + (part + 1) * size};
}

struct GivenRule {
  FlatKind kind;
  std::int64_t parts, align;
  std::optional<std::int64_t> bucket_size;
};

FlatRule rule_of(const GivenRule& given) {
  switch (given.kind) {
    case FlatKind::kZero12:
      return FlatRule::zero12(given.parts);
    case FlatKind::kZero3:
      return FlatRule::zero3(given.parts);
    case FlatKind::kFsdp1:
      return FlatRule::fsdp1(given.parts, given.align);
    case FlatKind::kMcoreBucket:
      break;
  }
  return FlatRule::mcore(given.parts, given.bucket_size);
}

/// The tensors that part `part` stores: a list of buckets.
std::vector<Numbers> obvious(const std::vector<Numbers>& tensors, std::int64_t part, const GivenRule& rule,
                             const std::vector<bool>& ends = {}) {
  Numbers all;
  std::vector<Numbers> buckets;
  switch (rule.kind) {
    case FlatKind::kZero12: {
      for (const Numbers& tensor : tensors) append(all, tensor);
      const auto real = std::ssize(all);
      pad_to_multiple(all, 2 * rule.parts);
      const auto slice = std::ssize(all) / rule.parts;
      Numbers mine = slice_of(all, part, rule.parts);
      if (part == rule.parts - 1) mine.resize(static_cast<std::size_t>(std::max<std::int64_t>(0, real - part * slice)));
      return {mine};
    }
    case FlatKind::kZero3:
      for (Numbers tensor : tensors) {
        pad_to_multiple(tensor, rule.parts);
        append(all, slice_of(tensor, part, rule.parts));
      }
      return {all};
    case FlatKind::kFsdp1:
      for (const Numbers& tensor : tensors) {
        pad_to_multiple(all, rule.align);
        append(all, tensor);
      }
      pad_to_multiple(all, rule.parts);
      return {slice_of(all, part, rule.parts)};
    case FlatKind::kMcoreBucket:
      for (std::size_t i = tensors.size(); i-- > 0;) {
        pad_to_multiple(all, 64);
        append(all, tensors[i]);
        const bool ends_here = (rule.bucket_size && std::ssize(all) >= *rule.bucket_size) || (!ends.empty() && ends[i]);
        if (!ends_here && i > 0) continue;
        pad_to_multiple(all, std::lcm(rule.parts, 128));
        buckets.push_back(slice_of(all, part, rule.parts));
        all.clear();
      }
      return buckets;
  }
  return {};
}

Numbers joined(const std::vector<Numbers>& buckets) {
  Numbers all;
  for (const Numbers& bucket : buckets) append(all, bucket);
  return all;
}

TEST(FlatLayout, EveryElementLiesWhereTheObviousWayPutsIt) {
  std::mt19937 random(7);
  for (int round = 0; round < 400; ++round) {
    GivenRule rule{static_cast<FlatKind>(round % 4), 1 + static_cast<std::int64_t>(random() % 9), 1, {}};
    if (rule.kind == FlatKind::kFsdp1) rule.align = 1 + static_cast<std::int64_t>(random() % 5);
    if (rule.kind == FlatKind::kMcoreBucket && random() % 2 == 0)
      rule.bucket_size = 1 + static_cast<std::int64_t>(random() % 300);
    std::vector<Numbers> tensors;
    Numbers sizes;
    std::vector<bool> ends;
    for (std::size_t i = 0; i < 1 + random() % 6; ++i) {
      sizes.push_back(static_cast<std::int64_t>(random() % 90));
      tensors.emplace_back(static_cast<std::size_t>(sizes.back()));
      std::iota(tensors.back().begin(), tensors.back().end(), 1000 * std::ssize(tensors));
      if (rule.kind == FlatKind::kMcoreBucket && !rule.bucket_size) ends.push_back(random() % 3 == 0);
    }
    const FlatLayout layout = lay_flat(sizes, ends, rule_of(rule));
    for (std::int64_t part = 0; part < rule.parts; ++part) {
      std::vector<Numbers> made;
      for (const std::int64_t slice : layout.slices) made.emplace_back(static_cast<std::size_t>(slice), -1);
      const auto put = [&](const FlatPiece& piece, const Numbers* tensor) {
        if (piece.part != part) return;
        for (std::int64_t i = 0; i < piece.count; ++i) {
          std::int64_t& at =
              made.at(static_cast<std::size_t>(piece.bucket)).at(static_cast<std::size_t>(piece.first + i));
          EXPECT_EQ(at, -1) << "twice";
          at = tensor == nullptr ? 0 : tensor->at(static_cast<std::size_t>(piece.begin + i));
        }
      };
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        for (const FlatPiece& piece : layout.tensors[i]) put(piece, &tensors[i]);
      }
      for (const FlatPiece& piece : layout.padding) put(piece, nullptr);
      Numbers all = joined(made);
      if (part == rule.parts - 1) all.resize(all.size() - static_cast<std::size_t>(layout.tail));
      EXPECT_EQ(all, joined(obvious(tensors, part, rule, ends))) << "round " << round << " part " << part;
    }
  }
}

// ---- Layouts of a model: queries, keys and values fused by groups, an embedding that is padded, norms on all ranks.

constexpr std::int64_t kLayers = 2, kWords = 5, kHidden = 4, kHeads = 4, kGroups = 4;

std::string layer(std::int64_t l, const std::string& rest) { return fmt::format("model.layers.{}.{}", l, rest); }

Model make_model() {
  Model model;
  std::int64_t next = 1;
  const auto add = [&](const std::string& name, std::int64_t rows, std::int64_t columns) {
    model[name] = counted(rows, columns, next);
    next += rows * columns;
  };
  add("model.embed", kWords, kHidden);
  for (std::int64_t l = 0; l < kLayers; ++l) {
    for (const char* name : {"q", "k", "v"}) add(layer(l, name), name[0] == 'q' ? 2 * kHeads : kGroups, kHidden);
    add(layer(l, "o"), kHidden, 2 * kHeads);
    add(layer(l, "norm"), kHidden - 1, 1);
  }
  return model;
}

struct Layout {
  std::string flatten;  ///< Without axis, order and shapes.
  GivenRule rule;
  std::int64_t tp;
  bool has_groups, has_buckets;
  std::vector<std::string> bucket_ends{};
};

constexpr const char* kDocument = R"J({"schema": "shardctl.layout/1", "name": "flat", "vars": {"H": 4},
  "mesh": {"dp": DP, "tp": TP}, "index": {"l": {"count": 2}},
  "rules": [
    {"logical": "model.embed", "stored": "embed", "pad": {"to": "ceil_to(n, 2*tp)", "true": 5}, "shard": [{"axis": "tp"}]},
    {"logical": ["model.layers.{l}.q", "model.layers.{l}.k", "model.layers.{l}.v"], "stored": "block.{l}.qkv",
     "concat": {"interleave": 4, "sizes": [8, 4, 4]}, "shard": [{"axis": "tp"}]},
    {"logical": "model.layers.{l}.o", "stored": "block.{l}.proj", "shard": [{"axis": "tp", "dim": 1}]},
    {"logical": "model.layers.{l}.norm", "stored": "block.{l}.norm"}],
  "flatten": {"axis": "dp", FLATTEN,
    "order": ["embed", ["block.{l}.norm", "block.{l}.qkv", "block.{l}.proj"]],
    "shapes": {"model.embed": [5, "H"], "model.layers.{l}.q": ["2*H", "H"], "model.layers.{l}.k": ["H", "H"],
               "model.layers.{l}.v": ["H", "H"], "model.layers.{l}.o": ["H", 8], "model.layers.{l}.norm": [3]}}})J";

std::string replaced(std::string text, const std::string& word, const std::string& by) {
  return text.replace(text.find(word), word.size(), by);
}

std::string document_of(const Layout& layout) {
  std::string text = replaced(kDocument, "DP", std::to_string(layout.rule.parts));
  text = replaced(text, "TP", std::to_string(layout.tp));
  return replaced(text, "FLATTEN", layout.flatten);
}

/// The tensors of a tensor-parallel rank, in order.
std::vector<std::pair<std::string, Numbers>> locals_of(std::int64_t t, std::int64_t tp) {
  const Model model = make_model();
  std::vector<std::pair<std::string, Numbers>> locals;
  const std::int64_t step = 2 * tp, rows = (kWords + step - 1) / step * step;
  locals.emplace_back("embed", elements_of(row_part(padded_to(model.at("model.embed"), rows), t, tp)));
  for (std::int64_t l = 0; l < kLayers; ++l) {
    Matrix qkv;
    for (std::int64_t g = 0; g < kGroups; ++g) {
      for (const char* name : {"q", "k", "v"}) append_rows(qkv, row_part(model.at(layer(l, name)), g, kGroups));
    }
    locals.emplace_back(fmt::format("block.{}.norm", l), elements_of(model.at(layer(l, "norm"))));
    locals.emplace_back(fmt::format("block.{}.qkv", l), elements_of(row_part(qkv, t, tp)));
    locals.emplace_back(fmt::format("block.{}.proj", l), elements_of(column_part(model.at(layer(l, "o")), t, tp)));
  }
  return locals;
}

Matrix column_of(const Numbers& numbers) {
  Matrix column;
  for (const std::int64_t number : numbers) column.push_back({number});
  return column;
}

std::vector<Model> ranks_of(const Layout& layout) {
  std::vector<Model> ranks;
  for (std::int64_t part = 0; part < layout.rule.parts; ++part) {
    for (std::int64_t t = 0; t < layout.tp; ++t) {
      std::map<std::string, std::pair<std::vector<Numbers>, std::vector<bool>>> groups;
      for (const auto& [name, numbers] : locals_of(t, layout.tp)) {
        auto& [tensors, ends] = groups[layout.has_groups ? name.substr(0, name.rfind('.')) : "0"];
        tensors.push_back(numbers);
        if (!layout.bucket_ends.empty()) ends.push_back(std::ranges::count(layout.bucket_ends, name) > 0);
      }
      Model stored;
      for (const auto& [group, lists] : groups) {
        const std::vector<Numbers> buckets = obvious(lists.first, part, layout.rule, lists.second);
        if (!layout.has_buckets) stored["flat." + group] = column_of(joined(buckets));
        for (std::size_t b = 0; layout.has_buckets && b < buckets.size(); ++b) {
          stored[fmt::format("flat.{}.{}", group, b)] = column_of(buckets[b]);
        }
      }
      ranks.push_back(std::move(stored));
    }
  }
  return ranks;
}

std::vector<Layout> all_layouts() {
  const std::string plain = R"("stored": "flat.{group}")";
  const std::string groups = R"J("stored": "flat.{group}", "groups": ["(block\\.[0-9]+)\\..*", "(embed)"])J";
  std::vector<Layout> layouts;
  for (const auto& [parts, tp] : {std::pair<std::int64_t, std::int64_t>{1, 1}, {3, 1}, {8, 2}, {2, 4}}) {
    layouts.push_back({R"("kind": "zero12", )" + plain, {FlatKind::kZero12, parts, 1, {}}, tp, false, false});
    layouts.push_back({R"("kind": "zero3", )" + plain, {FlatKind::kZero3, parts, 1, {}}, tp, false, false});
    layouts.push_back(
        {R"("kind": "fsdp1", "align": "2+2", )" + groups, {FlatKind::kFsdp1, parts, 4, {}}, tp, true, false});
  }
  layouts.push_back({R"("kind": "zero12", )" + groups, {FlatKind::kZero12, 8, 1, {}}, 1, true, false});
  layouts.push_back(
      {R"("kind": "mcore_bucket", "buckets": 130, )" + plain, {FlatKind::kMcoreBucket, 2, 1, 130}, 2, false, false});
  layouts.push_back({R"("kind": "mcore_bucket", "buckets": 50, "stored": "flat.{group}.{bucket}")",
                     {FlatKind::kMcoreBucket, 3, 1, 50},
                     1,
                     false,
                     true});
  layouts.push_back(
      {R"("kind": "mcore_bucket", "buckets": ["block.1.norm", "block.0.proj"], "stored": "flat.{group}.{bucket}")",
       {FlatKind::kMcoreBucket, 2, 1, {}},
       1,
       false,
       true,
       {"block.1.norm", "block.0.proj"}});
  return layouts;
}

ModelMap map_of(const std::string& text) {
  MapDocument document = parse_map_document(text, "map.json");
  MapVariables variables(document, {});
  return ModelMap(std::move(document), std::move(variables));
}

Flat undone(const std::string& document, const std::vector<Model>& ranks) {
  const Stored stored(ranks);
  return read_all(UndoneMap(stored.catalog(), map_of(document)).make_catalog(stored.catalog()), stored.elements());
}

Flat made(const std::string& document, const Model& model) {
  const Stored logical({model});
  const AppliedMap applied(logical.catalog(), everything(logical.catalog()), map_of(document));
  return copied(logical.catalog(), logical.elements(), applied);
}

TEST(MapFlatten, RefusesNumbersThatAreNone) {
  const auto code_of = [](const std::string& flatten) {
    return error_of([&] {
             made(document_of({flatten, {FlatKind::kFsdp1, 2, 1, {}}, 1, false, false}), make_model());
           })
        .code();
  };
  EXPECT_EQ(code_of(R"("kind": "fsdp1", "align": "1-1", "stored": "flat")"), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of(R"("kind": "mcore_bucket", "buckets": "1-1", "stored": "flat")"), ErrorCode::kInvalidArgument);
}

TEST(MapFlatten, UndoesEachKind) {
  for (const Layout& layout : all_layouts()) {
    EXPECT_EQ(undone(document_of(layout), ranks_of(layout)), flat(make_model())) << document_of(layout);
  }
}

TEST(MapFlatten, ConvertsAllOrderedPairs) {
  const std::vector<Layout> layouts = all_layouts();
  for (const Layout& from : layouts) {
    const Stored stored(ranks_of(from));
    const Catalog logical = UndoneMap(stored.catalog(), map_of(document_of(from))).make_catalog(stored.catalog());
    for (const Layout& to : layouts) {
      const AppliedMap applied(logical, everything(logical), map_of(document_of(to)));
      EXPECT_EQ(copied(logical, stored.elements(), applied), flat(ranks_of(to)))
          << from.flatten << " to " << to.flatten;
    }
  }
}

TEST(MapFlatten, TheLastPartMayStoreItsPadding) {
  const Layout layout{R"("kind": "zero12", "stored": "flat.0")", {FlatKind::kZero12, 4, 1, {}}, 1, false, false};
  const std::string document = document_of(layout);
  std::vector<Model> ranks = ranks_of(layout);
  Matrix& last = ranks[3].at("flat.0");
  const std::size_t slice = ranks[0].at("flat.0").size();
  ASSERT_EQ(last.size(), slice - 2);
  const Stored lean(ranks);
  EXPECT_EQ(UndoneMap(lean.catalog(), map_of(document)).paddings().size(), 1u);  // The embedding's.
  last.resize(slice - 1, {0});
  EXPECT_EQ(error_of([&] { undone(document, ranks); }).code(), ErrorCode::kInvalidArgument);
  last.resize(slice, {0});
  EXPECT_EQ(undone(document, ranks), flat(make_model()));
  const Stored full(ranks);
  EXPECT_EQ(UndoneMap(full.catalog(), map_of(document)).paddings().size(), 2u);
}

/// A norm that is in buffers of two tensor parallel ranks, which are cut at other elements of it.
TEST(MapFlatten, ReplicasInBuffersThatAreCutElsewhere) {
  const std::string document = R"J({"schema": "shardctl.layout/1", "mesh": {"dp": 2, "tp": 2}, "rules": [
      {"match": "norm"}, {"logical": "a", "stored": "a", "shard": [{"axis": "tp", "split": "widths", "widths": [1, 5]}]}],
      "flatten": {"axis": "dp", "kind": "fsdp1", "stored": "flat", "shapes": {"a": [6], "norm": [7]}}})J";
  const Model model{{"a", counted(6, 1, 1)}, {"norm", counted(7, 1, 20)}};
  const std::vector<Numbers> whole{{1, 20, 21, 22, 23, 24, 25, 26}, {2, 3, 4, 5, 6, 20, 21, 22, 23, 24, 25, 26}};
  std::vector<Model> ranks;
  for (std::int64_t dp = 0; dp < 2; ++dp) {
    for (const Numbers& each : whole) ranks.push_back({{"flat", column_of(slice_of(each, dp, 2))}});
  }
  EXPECT_EQ(undone(document, ranks), flat(model));
  EXPECT_EQ(made(document, model), flat(ranks));
  ranks[3].at("flat")[5] = {99};  // The norm's last element on the second rank.
  EXPECT_EQ(undone(document, ranks).at({"norm", -1}).back(), -2);
}

constexpr const char* kStates = R"J({"schema": "shardctl.layout/1", "mesh": {"dp": 2}, "rules": [
    {"logical": ["x.{l}.a", "x.{l}.b"], "stored": "y.{l}", "concat": {"sizes": [2, 1]}}, {"logical": "frozen", "stored": "f"}],
    "flatten": {"axis": "dp", "kind": "zero12", "states": {"exp_avg": "m.{group}", "exp_avg_sq": "v.{group}"}, "groups": ["y.*"]}})J";

TEST(MapFlatten, StatesFollowTensorsThatAreStoredPlainly) {
  Model model{{"frozen", counted(2, 1, 1)}};
  Numbers m, v;
  for (std::int64_t l = 0; l < 3; ++l) {
    const std::int64_t first = 100 * (l + 1);
    const auto add = [&](const std::string& name, std::int64_t rows, std::int64_t from) {
      model[name] = counted(rows, 3, from);
    };
    add(fmt::format("x.{}.a", l), 2, first);
    add(fmt::format("x.{}.b", l), 1, first + 6);
    for (const char* name : {"a", "b"}) {
      add(fmt::format("optimizer.state.x.{}.{}.exp_avg", l, name), name[0] == 'a' ? 2 : 1,
          first + (name[0] == 'a' ? 10 : 16));
      add(fmt::format("optimizer.state.x.{}.{}.exp_avg_sq", l, name), name[0] == 'a' ? 2 : 1,
          first + (name[0] == 'a' ? 20 : 26));
    }
    for (std::int64_t i = 0; i < 9; ++i) {
      m.push_back(first + 10 + i);
      v.push_back(first + 20 + i);
    }
  }
  std::vector<Model> ranks;
  for (std::int64_t r = 0; r < 2; ++r) {
    Model stored{{"f", model.at("frozen")}};
    for (std::int64_t l = 0; l < 3; ++l) {
      Matrix y = model.at(fmt::format("x.{}.a", l));
      append_rows(y, model.at(fmt::format("x.{}.b", l)));
      stored[fmt::format("y.{}", l)] = y;
    }
    const auto part = [&](const Numbers& all) {
      return column_of({all.begin() + 14 * r, r == 0 ? all.begin() + 14 : all.end()});
    };
    stored["m.0"] = part(m);
    stored["v.0"] = part(v);
    ranks.push_back(std::move(stored));
  }
  EXPECT_EQ(undone(kStates, ranks), flat(model));
  EXPECT_EQ(made(kStates, model), flat(ranks));
  for (Model& rank : ranks) rank.erase("v.0");
  std::erase_if(model, [](const auto& each) { return each.first.ends_with("exp_avg_sq"); });
  EXPECT_EQ(undone(kStates, ranks), flat(model));
  ranks[1].erase("m.0");
  EXPECT_EQ(error_of([&] { undone(kStates, ranks); }).code(), ErrorCode::kNotFound);
}

TEST(MapFlatten, RefusesWhatDoesNotFit) {
  const auto document = [](const std::string& flatten, const std::string& rule = "") {
    return R"({"schema": "shardctl.layout/1", "mesh": {"dp": 2}, "rules": [{"logical": "a", "stored": "a")" + rule +
           R"(}], "flatten": {"axis": "dp", )" + flatten + "}}";
  };
  const auto code_of = [](const auto& act) { return error_of(act).code(); };
  const std::string zero = R"("kind": "zero12", "stored": "f")";
  for (const char* flatten :
       {R"("kind": "zero12")", R"("kind": "zero1", "stored": "f")", R"("kind": "zero12", "stored": "f.{bucket}")",
        R"("kind": "zero12", "stored": "f.{x}")", R"("kind": "zero12", "stored": "f", "align": 2)",
        R"("kind": "zero3", "stored": "f", "buckets": 2)", R"("kind": "zero3", "stored": "f", "groups": ["("])",
        R"J("kind": "zero3", "stored": "f", "groups": ["(a)(b)"])J", R"("kind": "zero3", "stored": "f", "order": [])",
        R"("kind": "zero3", "stored": "f", "order": [["a.{l}", "b"]])",
        R"("kind": "zero3", "stored": "f", "sizes": 1)"}) {
    EXPECT_EQ(code_of([&] { map_of(document(flatten)); }), ErrorCode::kInvalidArgument) << flatten;
  }
  EXPECT_EQ(code_of([&] { map_of(document(zero, R"(, "shard": [{"axis": "dp"}])")); }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of([&] { map_of(document(zero, R"(, "on": {"dp": "first"})")); }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of([&] { map_of(document(zero + R"(, "order": "param_shapes", "groups": ["a"])")); }),
            ErrorCode::kInvalidArgument);
  const Model model{{"a", counted(3, 1, 1)}};
  for (const char* more :
       {R"(, "groups": ["b"])", R"(, "order": ["b"])", R"(, "order": ["a", "b"])", R"(, "order": ["a", "a"])"}) {
    EXPECT_EQ(code_of([&] { made(document(zero + more), model); }), ErrorCode::kInvalidArgument) << more;
  }
  const std::vector<Model> ranks{{{"f", counted(2, 1, 1)}}, {{"f", counted(1, 1, 3)}}};
  EXPECT_THAT(error_of([&] { undone(document(zero), ranks); }).what(), HasSubstr("shapes"));
  const std::string stated = zero + R"(, "shapes": {"a": [3]})";
  EXPECT_EQ(undone(document(stated), ranks), flat(model));
  EXPECT_EQ(code_of([&] {
              undone(document(stated), {{{"f", counted(2, 1, 1)}}, {{"f", counted(3, 1, 3)}}});
            }),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of([&] { undone(document(stated), {{{"f", counted(2, 1, 1)}}, {}}); }), ErrorCode::kNotFound);
  const std::string copied = document(zero + R"(, "shapes": {"a": [3], "b": [2]})");
  expect_error(ErrorCode::kInvalidArgument, "no rule stores 'b' in flat buffers",
               [&] { undone(copied.substr(0, copied.size() - 1) + R"(, "strict": {"unmatched": "copy"}})", ranks); });
  EXPECT_EQ(code_of([&] { undone(document(zero + R"(, "shapes": {"a.{l}": [3]})"), ranks); }),
            ErrorCode::kInvalidArgument);
}

/// The number of small tensors in a large model, and their slices. No step compares pairs.
TEST(MapFlatten, ManySmallTensorsTakeTimeByTheirNumber) {
  constexpr std::int64_t kTensors = 10000, kRows = 3, kExperts = 2048, kParts = 32;
  const ModelMap map = map_of(fmt::format(R"J({{"schema": "shardctl.layout/1", "mesh": {{"dp": {}}},
      "index": {{"l": {{"count": {}}}, "e": {{"count": {}}}}}, "rules": [{{"logical": "a.{{l}}", "stored": "b.{{l}}"}},
      {{"logical": "e.{{e}}", "stored": "experts", "stack": [{{"index": "e"}}]}}],
      "flatten": {{"axis": "dp", "kind": "zero3", "stored": "f", "shapes": {{"a.{{l}}": [{}], "e.{{e}}": [5]}}}}}})J",
                                          kParts, kTensors, kExperts, kRows));
  Model logical;
  for (std::int64_t i = 0; i < kTensors; ++i) logical[fmt::format("a.{}", i)] = counted(kRows, 1, 3 * i);
  for (std::int64_t i = 0; i < kExperts; ++i) logical[fmt::format("e.{}", i)] = counted(5, 1, 5 * i);
  const Stored source({logical});
  const std::int64_t size = kTensors + kExperts * 5 / kParts;  // A slice of each tensor is one element.
  const Stored buffers(std::vector<Model>(kParts, {{"f", counted(size, 1, 0)}}));
  const std::clock_t begin = std::clock();
  const AppliedMap applied(source.catalog(), everything(source.catalog()), map);
  const Catalog placed = applied.ranked_target("test", INT64_MAX);
  ASSERT_EQ(placed.tensors.size(), static_cast<std::size_t>(kParts));
  EXPECT_EQ(placed.tensors.front().shape[0], size);
  applied.plan_target(placed, 0);
  const Catalog undone = UndoneMap(buffers.catalog(), map).make_catalog(buffers.catalog());
  EXPECT_EQ(undone.tensors.size(), static_cast<std::size_t>(kTensors + kExperts));
  EXPECT_LT(std::clock() - begin, 8 * CLOCKS_PER_SEC);
}

}  // namespace
}  // namespace shard::test
