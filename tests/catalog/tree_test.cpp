#include "libshard/catalog/tree.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "libshard/core/value_walk.h"
#include "tests/support/expect_error.h"

namespace shard {
namespace {

using test::expect_error;

/// A tree written out; also prints trees.
class TreeTest : public ::testing::Test {
 protected:
  Value* text(std::string_view t) { return make_string(arena_, t); }
  Value* number(std::int64_t n) { return make_int(arena_, n); }
  Value* tensor(std::int64_t n) { return make_tensor(arena_, n); }
  Value* dict(std::initializer_list<Value*> items) { return make_list(arena_, ValueKind::kDict, items_of(items)); }
  Value* list(std::initializer_list<Value*> items) { return make_list(arena_, ValueKind::kList, items_of(items)); }
  Value* tuple(std::initializer_list<Value*> items) { return make_list(arena_, ValueKind::kTuple, items_of(items)); }
  Value* ordered_dict(std::initializer_list<Value*> items) {
    Value* call = make_call(arena_, make_global(arena_, "collections", "OrderedDict"), {});
    extra_of(arena_, *call).dict_items = dict(items)->items();
    call->call->state = text("metadata");
    return call;
  }
  static std::span<Value* const> items_of(std::initializer_list<Value*> items) { return {items.begin(), items.size()}; }

  std::vector<std::string> leaves(Value& root) {
    std::vector<std::string> all;
    visit_leaves(
        arena_, root, [](const Value& value) { return value.kind == ValueKind::kTensor; },
        [&](const TreeLeaf& leaf) { all.push_back(fmt::format("{}:{}", leaf.name, leaf.path.size())); });
    return all;
  }

  /// Entries of the leaves whose names are given, with tensor numbers from 0 in that order.
  std::vector<TreeEntry> entries(Value& root, const std::vector<std::string>& names) {
    std::vector<TreeEntry> all;
    visit_leaves(
        arena_, root, [](const Value&) { return false; },
        [&](const TreeLeaf& leaf) {
          const auto at = std::ranges::find(names, leaf.name);
          if (at == names.end()) return;
          const auto index = static_cast<std::uint32_t>(at - names.begin());
          const bool is_tensor = leaf.value->kind == ValueKind::kTensor;
          all.push_back({leaf.name, compact_path(leaf.path, leaf.name), is_tensor ? index : kNoIndex, leaf.value});
        });
    return all;
  }

  static std::string print(const Value& value) {
    std::string out;
    const std::span<Value*> items = is_mapping(value) ? mapping_items(value) : value.items();
    for (std::size_t i = 0; i < items.size(); ++i) {
      const bool after_key = is_mapping(value) && i % 2 == 1;
      out += (i == 0 ? "" : after_key ? ": " : ", ") + print(*items[i]);
    }
    switch (value.kind) {
      case ValueKind::kInt:
        return std::to_string(value.number);
      case ValueKind::kTensor:
        return "t" + std::to_string(value.number);
      case ValueKind::kString:
        return std::string(value.text());
      case ValueKind::kList:
        return "[" + out + "]";
      case ValueKind::kTuple:
        return "(" + out + ")";
      case ValueKind::kDict:
        return "{" + out + "}";
      case ValueKind::kCall:
        return std::string(value.callee()->text()) + "{" + out + "}";
      default:
        return std::string(type_name(value));
    }
  }

  Arena arena_;
};

using Lines = std::vector<std::string>;

TEST_F(TreeTest, VisitsMappingsListsAndTuples) {
  Value* root = dict(
      {text("a"), list({tensor(0), tuple({tensor(1), number(5)})}), text("b"), ordered_dict({text("c"), tensor(2)})});
  EXPECT_EQ(leaves(*root), (Lines{"a.0:2", "a.1.0:3", "a.1.1:3", "b.c:2"}));
}

TEST_F(TreeTest, VisitsEmptyContainersAndSetsAsLeaves) {
  Value* const members[] = {number(1)};
  Value* root =
      dict({text("a"), list({}), text("b"), dict({}), text("c"), make_list(arena_, ValueKind::kSet, members)});
  EXPECT_EQ(leaves(*root), (Lines{"a:1", "b:1", "c:1"}));
}

TEST_F(TreeTest, NamesOtherKeysByTheirText) {
  Value* half = make_value(arena_, ValueKind::kFloat);
  half->real = 1.0;
  Value* yes = make_value(arena_, ValueKind::kBool);
  yes->number = 1;
  Value* root = dict({number(7), tensor(0), half, tensor(1), yes, tensor(2), tuple({number(1), text("x")}), tensor(3),
                      make_value(arena_, ValueKind::kNone), tensor(4)});
  EXPECT_EQ(leaves(*root), (Lines{"7:1", "1.0:1", "True:1", "(1, 'x'):1", "None:1"}));
}

TEST_F(TreeTest, NamesDtypesAndDevicesAsPythonPrintsThem) {
  Value* const dtype = make_global(arena_, "torch", "bfloat16");
  Value* const parts[] = {text("cuda"), number(1)};
  Value* const device = make_call(arena_, make_global(arena_, "torch", "device"), parts);
  EXPECT_EQ(text_of_key(*dtype), "torch.bfloat16");
  EXPECT_EQ(text_of_key(*tuple({dtype, number(3)})), "(torch.bfloat16, 3)");
  EXPECT_EQ(text_of_key(*device), "cuda:1");
}

TEST_F(TreeTest, TellsLongAndBytesKeysApart) {
  Value* keys[] = {make_value(arena_, ValueKind::kLong), make_value(arena_, ValueKind::kBytes),
                   make_value(arena_, ValueKind::kBytes)};
  keys[0]->set_text(std::string_view("\0\0\0\0\0\0\0\0\1", 9));
  keys[1]->set_text("x");
  keys[2]->set_text("y");
  Value* root = dict({keys[0], tensor(0), keys[1], tensor(1), keys[2], tensor(2)});
  EXPECT_EQ(leaves(*root), (Lines{"18446744073709551616:1", "b'x':1", "b'y':1"}));
}

TEST_F(TreeTest, TellsIntegerKeysFromListIndices) {
  Value* root = dict({number(7), list({tensor(0)})});
  Path path;
  visit_leaves(
      arena_, *root, [](const Value&) { return false; }, [&](const TreeLeaf& leaf) { path = leaf.path; });
  ASSERT_EQ(path.size(), 2U);
  EXPECT_TRUE(path[0].is_index && path[0].is_int_key);
  EXPECT_TRUE(path[1].is_index && !path[1].is_int_key);
}

TEST_F(TreeTest, GivesABareRootTheEmptyName) { EXPECT_EQ(leaves(*tensor(0)), Lines{":0"}); }

TEST_F(TreeTest, VisitsASharedNodeUnderEachName) {
  Value* shared = dict({text("w"), tensor(0)});
  EXPECT_EQ(leaves(*dict({text("a"), shared, text("b"), shared})), (Lines{"a.w:2", "b.w:2"}));
}

TEST_F(TreeTest, RefusesATreeThatHoldsItself) {
  Value* root = list({number(0)});
  root->items()[0] = root;
  expect_error(ErrorCode::kCorruption, "deeper than 256", [&] { leaves(*root); });
}

TEST_F(TreeTest, ChargesTheBudgetForASharedNodeUnderEachName) {
  Value* shared = dict({text("w"), tensor(0)});
  for (int i = 0; i < 40; ++i) shared = dict({text("a"), shared, text("b"), shared});
  Arena charged{std::make_shared<Budget>()};
  const auto none = [](const Value&) { return false; };
  expect_error(ErrorCode::kCorruption, "are far too many for",
               [&] { visit_leaves(charged, *shared, none, [](const TreeLeaf&) {}); });
}

TEST_F(TreeTest, ChargesALongTextUnderEachFurtherName) {
  const auto bytes_of_names = [this](std::size_t bytes, bool has_two_names) {
    Value* const value = text(arena_.copy(std::string(bytes, 'x')));
    const auto budget = std::make_shared<Budget>();
    Arena charged{budget};
    visit_leaves(
        charged, has_two_names ? *dict({text("a"), value, text("b"), value}) : *dict({text("a"), value}),
        [](const Value&) { return false; }, [](const TreeLeaf&) {});
    return budget->count(Charge::kBytes);
  };
  EXPECT_EQ(bytes_of_names(100'000, false), 0);
  EXPECT_EQ(bytes_of_names(100'000, true), 100'000);
  EXPECT_EQ(bytes_of_names(10, true), 0);
}

TEST_F(TreeTest, RefusesNamesOfMoreThan16MiB) {
  const std::string most(16 << 20, 'n');
  EXPECT_EQ(leaves(*dict({text(most), tensor(0)})), Lines{most + ":1"});
  Value* const longer = dict({text(most + "n"), tensor(0)});
  expect_error(ErrorCode::kCorruption, "a name is longer than 16777216 bytes", [&] { leaves(*longer); });
}

TEST_F(TreeTest, CompactsAPathThatSaysNoMoreThanTheName) {
  const PathPart parts[] = {PathPart::of_key("a.b"), PathPart::of_key("c")};
  EXPECT_TRUE(compact_path(Path(std::span(parts).first(1)), "a.b").empty());
  EXPECT_EQ(compact_path(Path(parts), "a.b.c").size(), 2U);
  const PathPart index[] = {PathPart::of_index(3)};
  EXPECT_EQ(compact_path(Path(index), "3").size(), 1U);
  const PathPart empty[] = {PathPart::of_key("")};
  EXPECT_EQ(compact_path(Path(empty), "").size(), 1U);
}

TEST_F(TreeTest, PrunesToSelectedLeavesAndRenumbers) {
  Value* root = dict({text("a"), tensor(0), text("m"), dict({text("x"), tensor(1), text("y"), tensor(2)})});
  EXPECT_EQ(print(*prune_tree(arena_, *root, entries(*root, {"m.y"}))), "{m: {y: t0}}");
}

TEST_F(TreeTest, KeepsUntouchedContainersAsTheyAre) {
  Value* kept = dict({text("x"), tensor(0)});
  Value* root = dict({text("m"), kept, text("z"), tensor(1)});
  Value* pruned = prune_tree(arena_, *root, entries(*root, {"m.x"}));
  EXPECT_EQ(find_key(*pruned, "m"), kept);
}

TEST_F(TreeTest, KeepsTheTreeWhenNothingChanges) {
  Value* root = dict({text("a"), tensor(0), text("b"), list({})});
  EXPECT_EQ(prune_tree(arena_, *root, entries(*root, {"a", "b"})), root);
}

TEST_F(TreeTest, KeepsTheClassAndStateOfAChangedMapping) {
  Value* root = ordered_dict({text("a"), tensor(0), text("b"), tensor(1)});
  Value* pruned = prune_tree(arena_, *root, entries(*root, {"b"}));
  EXPECT_TRUE(pruned->is_call_of("collections", "OrderedDict"));
  EXPECT_EQ(print(*pruned), "OrderedDict{b: t0}");
  EXPECT_EQ(pruned->state()->text(), "metadata");
  EXPECT_EQ(print(*root), "OrderedDict{a: t0, b: t1}");
}

TEST_F(TreeTest, KeepsTheCallAroundARenumberedTensorUnlessTold) {
  Value* const function = make_global(arena_, "torch._utils", "_rebuild_parameter");
  Value* const parameter = make_call(arena_, function, items_of({tensor(1), make_bool(arena_, true)}));
  Value* root = dict({text("a"), tensor(0), text("b"), parameter});
  TreeEntry entry{"b", {}, 0, nullptr};
  EXPECT_EQ(print(*prune_tree(arena_, *root, std::span(&entry, 1))), "{b: _rebuild_parameter{t0, bool}}");
  entry.keeps_call = false;
  EXPECT_EQ(print(*prune_tree(arena_, *root, std::span(&entry, 1))), "{b: t0}");
  EXPECT_EQ(print(*root), "{a: t0, b: _rebuild_parameter{t1, bool}}");
}

TEST_F(TreeTest, DropsContainersThatLostEverything) {
  Value* root = dict({text("a"), tensor(0), text("m"), dict({text("x"), tensor(1)})});
  EXPECT_EQ(print(*prune_tree(arena_, *root, entries(*root, {"a"}))), "{a: t0}");
}

TEST_F(TreeTest, LeavesAnEmptyDictOfARootThatLostEverything) {
  Value* root = list({tensor(0)});
  EXPECT_EQ(print(*prune_tree(arena_, *root, {})), "{}");
}

TEST_F(TreeTest, ShortensAListThatLostItsLast) {
  Value* root = tuple({tensor(0), tensor(1), tensor(2)});
  EXPECT_EQ(print(*prune_tree(arena_, *root, entries(*root, {"0", "1"}))), "(t0, t1)");
}

TEST_F(TreeTest, KeepsNamesOfAListThatLostItsFirst) {
  Value* root = list({tensor(0), tensor(1), tensor(2)});
  EXPECT_EQ(print(*prune_tree(arena_, *root, entries(*root, {"1", "2"}))), "{1: t0, 2: t1}");
}

TEST_F(TreeTest, PrunesASharedContainerByItsNames) {
  Value* shared = dict({text("w"), tensor(0)});
  Value* root = dict({text("a"), shared, text("b"), shared});
  EXPECT_EQ(print(*prune_tree(arena_, *root, entries(*root, {"b.w"}))), "{b: {w: t0}}");
}

TEST_F(TreeTest, TellsTwoPathsOfOneNameApart) {
  Value* root = dict({text("a.b"), tensor(0), text("a"), dict({text("b"), tensor(1)})});
  const PathPart parts[] = {PathPart::of_key("a"), PathPart::of_key("b")};
  const TreeEntry nested[] = {{"a.b", Path(parts), 0, nullptr}};
  EXPECT_EQ(print(*prune_tree(arena_, *root, nested)), "{a: {b: t0}}");
  const TreeEntry flat[] = {{"a.b", {}, 0, nullptr}};
  EXPECT_EQ(print(*prune_tree(arena_, *root, flat)), "{a.b: t0}");
}

TEST_F(TreeTest, RebuildsDictsAndLists) {
  Value* root =
      dict({text("a"), list({tensor(0), dict({text("x"), number(5)})}), text("s"), dict({number(0), tensor(1)})});
  EXPECT_EQ(print(*tree_of_paths(arena_, entries(*root, {"a.0", "a.1.x", "s.0"}))), "{a: [t0, {x: 5}], s: {0: t2}}");
}

TEST_F(TreeTest, RebuildsAListWithAHoleAsADict) {
  const PathPart one[] = {PathPart::of_index(1)};
  const TreeEntry list_entries[] = {{"1", Path(one), 0, nullptr}};
  EXPECT_EQ(print(*tree_of_paths(arena_, list_entries)), "{1: t0}");
}

TEST_F(TreeTest, RebuildsAFlatDictWithoutPaths) {
  const TreeEntry flat[] = {{"a.b", {}, 0, nullptr}, {"c", {}, 1, nullptr}};
  EXPECT_EQ(print(*tree_of_paths(arena_, flat)), "{a.b: t0, c: t1}");
}

TEST_F(TreeTest, RebuildsABareRoot) {
  const TreeEntry bare[] = {{"", {}, 0, nullptr}};
  EXPECT_EQ(print(*tree_of_paths(arena_, bare)), "t0");
}

TEST_F(TreeTest, RefusesALeafInsideALeaf) {
  const PathPart parts[] = {PathPart::of_key("a"), PathPart::of_key("b")};
  const TreeEntry both[] = {{"a", {}, 0, nullptr}, {"a.b", Path(parts), 1, nullptr}};
  expect_error(ErrorCode::kInvalidArgument, "'a' and 'a.b' cannot both be in one tree",
               [&] { tree_of_paths(arena_, both); });
}

}  // namespace
}  // namespace shard
