#include "libshard/catalog/tree.h"

#include <gtest/gtest.h>

#include "formats/hdf5/root_notes.h"
#include "formats/hdf5/values.h"
#include "libshard/core/value_equality.h"
#include "tests/support/expect_error.h"

namespace shard::hdf5 {
namespace {

/// A catalog of leaves of a tree: tensors for kTensor values, objects for all other values.
Catalog catalog_of(Value* root) {
  Catalog catalog;
  catalog.root = root;
  visit_leaves(
      *catalog.arena, *root, [](const Value&) { return false; },
      [&](const TreeLeaf& leaf) {
        const Path path = compact_path(leaf.path, leaf.name);
        if (leaf.value->kind != ValueKind::kTensor) return catalog.objects.push_back({leaf.name, path, leaf.value, -1});
        leaf.value->number = std::ssize(catalog.tensors);
        Tensor tensor;
        tensor.name = leaf.name;
        tensor.path = path;
        catalog.tensors.push_back(tensor);
      });
  return catalog;
}

/// The same catalog from a reader: without tree, and with paths of only string keys.
Catalog bare(const Catalog& from) {
  Catalog catalog;
  for (const Tensor& each : from.tensors) {
    Tensor tensor;
    tensor.name = each.name;
    catalog.tensors.push_back(tensor);
  }
  for (const Object& each : from.objects) catalog.objects.push_back({each.name, {}, each.value, -1});
  return catalog;
}

class Tree : public ::testing::Test {
 protected:
  Value* tensor() { return make_tensor(arena, 0); }
  Value* text(std::string_view content) { return make_string(arena, content); }
  Value* list(ValueKind kind, std::vector<Value*> items) { return make_list(arena, kind, items); }
  Value* dict(std::vector<Value*> items) { return list(ValueKind::kDict, std::move(items)); }
  Value* ordered(std::vector<Value*> items) {
    Value* const call = make_call(arena, make_global(arena, "collections", "OrderedDict"), {});
    extra_of(arena, *call).dict_items = dict(std::move(items))->items();
    return call;
  }
  static std::span<const std::byte> bytes(const std::string& pickle) { return std::as_bytes(std::span(pickle)); }

  void expect_comes_back(Value* root) {
    const Catalog catalog = catalog_of(root);
    const std::string pickle = dump_tree(catalog);
    ASSERT_NE(pickle, "");
    Catalog read = bare(catalog);
    ASSERT_TRUE(load_tree(read, bytes(pickle)));
    EXPECT_TRUE(ValueEquality().is_equal(*read.root, *root));
    for (std::size_t i = 0; i < read.tensors.size(); ++i) {
      EXPECT_TRUE(std::ranges::equal(read.tensors[i].path, catalog.tensors[i].path, [](const auto& a, const auto& b) {
        return a == b && a.is_int_key == b.is_int_key;
      }));
    }
  }

  Arena arena;
};

TEST_F(Tree, OfDictsInOrderNeedsNoPickle) {
  EXPECT_EQ(dump_tree(catalog_of(dict({text("a"), dict({text("x"), tensor()}), text("b"), text("o")}))), "");
  EXPECT_EQ(dump_tree(catalog_of(dict({text("a.b"), tensor(), text("e"), dict({})}))), "");
  EXPECT_EQ(dump_tree(Catalog()), "");
}

TEST_F(Tree, ComesBackWithListsOrderAndKeys) {
  expect_comes_back(dict({text("b"), tensor(), text("a"), tensor()}));
  expect_comes_back(dict({text("a"), list(ValueKind::kList, {tensor(), make_int(arena, 3)})}));
  expect_comes_back(dict({text("a"), list(ValueKind::kTuple, {tensor(), tensor()}), text("e"), dict({})}));
  expect_comes_back(dict({make_int(arena, 0), tensor(), make_int(arena, -5), text("o")}));
  expect_comes_back(ordered({text("w"), tensor(), text("v"), ordered({text("u"), tensor()})}));
}

TEST_F(Tree, OfOneLeafComesBack) {
  expect_comes_back(tensor());
  expect_comes_back(text("all there is"));
  expect_comes_back(dict({}));
}

TEST_F(Tree, HoldsWhatAnAliasSharesUnderEachName) {
  Value* const shared = tensor();
  const Catalog catalog = catalog_of(dict({text("b"), shared, text("a"), shared}));
  Catalog read = bare(catalog);
  ASSERT_TRUE(load_tree(read, bytes(dump_tree(catalog))));
  EXPECT_NE(read.root->items()[1], read.root->items()[3]);
  EXPECT_EQ(read.root->items()[3]->number, 1);
}

TEST_F(Tree, ThatDoesNotFitIsNotTaken) {
  const Catalog catalog = catalog_of(dict({text("b"), tensor(), text("a"), text("o")}));
  const std::string pickle = dump_tree(catalog);
  const auto expect_unfit = [&](Catalog read) {
    EXPECT_FALSE(load_tree(read, bytes(pickle)));
    EXPECT_EQ(read.root, nullptr);
  };
  Catalog fewer = bare(catalog);
  fewer.objects.clear();
  expect_unfit(std::move(fewer));
  Catalog more = bare(catalog);
  more.tensors.emplace_back().name = "c";
  expect_unfit(std::move(more));
  Catalog twice = bare(catalog);
  twice.tensors.push_back(twice.tensors[0]);
  expect_unfit(std::move(twice));
}

TEST_F(Tree, MayStandBehindTheMarkOfPickles) {
  const Catalog catalog = catalog_of(dict({text("b"), tensor(), text("a"), tensor()}));
  Catalog read = bare(catalog);
  EXPECT_TRUE(load_tree(read, bytes(pickle_content(dump_tree(catalog)).bytes)));
}

TEST_F(Tree, ThatIsNotAPickleIsCorrupt) {
  Catalog read;
  test::expect_error(ErrorCode::kCorruption, "", [&] { load_tree(read, bytes("nonsense")); });
}

}  // namespace
}  // namespace shard::hdf5
