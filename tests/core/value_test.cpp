#include "libshard/core/value.h"

#include <gtest/gtest.h>

#include <array>
#include <utility>
#include <vector>

#include "libshard/core/value_walk.h"

namespace shard {
namespace {

class ValueTest : public ::testing::Test {
 protected:
  Value* text(std::string_view text) { return make_string(arena_, text); }
  Value* number(std::int64_t number) { return make_int(arena_, number); }
  Value* dict(const std::vector<Value*>& items) { return make_list(arena_, ValueKind::kDict, items); }
  Value* call(std::string_view module, std::string_view name, const std::vector<Value*>& arguments = {}) {
    return make_call(arena_, make_global(arena_, module, name), arguments);
  }
  void add_items(Value* object, const std::vector<Value*>& items) {
    extra_of(arena_, *object).dict_items = make_list(arena_, ValueKind::kDict, items)->items();
  }
  Arena arena_;
};

using ForEachChild = ValueTest;
using Makers = ValueTest;
using MappingItems = ValueTest;
using FindKey = ValueTest;
using TypeName = ValueTest;

TEST_F(ForEachChild, SeesEveryPartOfACall) {
  Value* made = call("m", "C", {number(1)});
  extra_of(arena_, *made) = {.list_items = dict({number(2)})->items(),
                             .dict_items = dict({number(3), number(4)})->items(),
                             .kwargs = number(6)};
  made->call->state = number(5);
  std::int64_t sum = 0;
  int globals = 0;
  for_each_child(std::as_const(*made),
                 [&](const Value& child) { child.kind == ValueKind::kGlobal ? ++globals : sum += child.number; });
  EXPECT_EQ(sum, 1 + 2 + 3 + 4 + 5 + 6);
  EXPECT_EQ(globals, 1);
}

TEST_F(ForEachChild, AChangeOfAChildStays) {
  Value* list = dict({number(1)});
  for_each_child(*list, [](Value& child) { child.number = 7; });
  EXPECT_EQ(list->items()[0]->number, 7);
  for_each_child(*number(1), [](Value&) { FAIL(); });
}

TEST_F(Makers, GlobalKeepsModuleAndNameApart) {
  const Value* global = make_global(arena_, "torch._utils", "_rebuild_tensor_v2");
  EXPECT_EQ(global->module(), "torch._utils");
  EXPECT_EQ(global->text(), "_rebuild_tensor_v2");
  EXPECT_TRUE(global->is_global("torch._utils", "_rebuild_tensor_v2"));
}

TEST_F(Makers, CallKnowsWhomItCalls) {
  const Value* made = call("torch", "Size", {number(3)});
  EXPECT_TRUE(made->is_call_of("torch", "Size"));
  EXPECT_FALSE(made->is_call_of("torch", "device"));
  ASSERT_EQ(made->items().size(), 1U);
  EXPECT_EQ(made->items()[0]->number, 3);
}

TEST_F(Makers, TensorCarriesItsIndex) {
  const Value* tensor = make_tensor(arena_, 42);
  EXPECT_EQ(tensor->kind, ValueKind::kTensor);
  EXPECT_EQ(tensor->number, 42);
}

TEST_F(Makers, WhatBecomesATensorIsOneForAllThatReferToIt) {
  Value* made = call("torch", "Size", {number(3)});
  const Value* list = make_list(arena_, ValueKind::kList, std::array{made});
  become_tensor(*made, 7);
  EXPECT_EQ(list->items()[0]->kind, ValueKind::kTensor);
  EXPECT_EQ(list->items()[0]->number, 7);
  EXPECT_TRUE(list->items()[0]->items().empty());
}

TEST_F(Makers, OtherValuesHaveNoModule) { EXPECT_EQ(text("a.b")->module(), ""); }

TEST_F(MappingItems, OfADictAreItsItems) { EXPECT_EQ(mapping_items(*dict({text("a"), number(1)})).size(), 2U); }

TEST_F(MappingItems, OfAnOrderedDictAreWhatWasAddedToIt) {
  Value* ordered = call("collections", "OrderedDict");
  add_items(ordered, {text("a"), number(1), text("b"), number(2)});
  EXPECT_EQ(mapping_items(*ordered).size(), 4U);
}

TEST_F(MappingItems, OfACounterAreThoseOfItsArgument) {
  EXPECT_EQ(mapping_items(*call("collections", "Counter", {dict({text("a"), number(1)})})).size(), 2U);
}

TEST_F(MappingItems, OfOtherValuesAreNone) {
  EXPECT_TRUE(mapping_items(*number(1)).empty());
  EXPECT_TRUE(mapping_items(*call("argparse", "Namespace", {dict({text("a"), number(1)})})).empty());
  EXPECT_FALSE(is_mapping(*make_list(arena_, ValueKind::kList, {})));
}

TEST_F(FindKey, GivesTheValue) {
  EXPECT_EQ(find_key(*dict({text("a"), number(1), text("b"), number(2)}), "b")->number, 2);
}

TEST_F(FindKey, GivesTheLastOfEqualKeysAsPythonDoes) {
  EXPECT_EQ(find_key(*dict({text("a"), number(1), text("a"), number(2)}), "a")->number, 2);
}

TEST_F(FindKey, GivesNullForAnAbsentKey) { EXPECT_EQ(find_key(*dict({number(1), number(2)}), "1"), nullptr); }

TEST_F(TypeName, OfPlainValuesIsPythons) {
  EXPECT_EQ(type_name(*make_value(arena_, ValueKind::kNone)), "NoneType");
  EXPECT_EQ(type_name(*number(1)), "int");
  EXPECT_EQ(type_name(*text("a")), "str");
  EXPECT_EQ(type_name(*make_value(arena_, ValueKind::kFrozenSet)), "frozenset");
  EXPECT_EQ(type_name(*make_tensor(arena_, 0)), "torch.Tensor");
}

TEST_F(TypeName, OfAnObjectIsItsClass) {
  EXPECT_EQ(type_name(*call("torch", "Size")), "torch.Size");
  EXPECT_EQ(type_name(*call("pathlib", "PosixPath")), "pathlib.PosixPath");
  EXPECT_EQ(type_name(*call("argparse", "Namespace")), "argparse.Namespace");
}

TEST_F(TypeName, OfBuiltinsAndCollectionsHasNoModule) {
  EXPECT_EQ(type_name(*call("collections", "OrderedDict")), "OrderedDict");
  EXPECT_EQ(type_name(*call("builtins", "complex")), "complex");
}

TEST_F(TypeName, OfAReconstructedObjectIsTheClassNamedFirst) {
  EXPECT_EQ(type_name(*call("copyreg", "_reconstructor", {make_global(arena_, "m", "Config")})), "m.Config");
}

TEST_F(TypeName, OfNumpyRebuildersIsNumpys) {
  EXPECT_EQ(type_name(*call("numpy._core.multiarray", "_reconstruct")), "numpy.ndarray");
  EXPECT_EQ(type_name(*call("numpy.core.multiarray", "scalar")), "numpy.generic");
}

TEST_F(TypeName, OfAGlobalIsTypeOrDtype) {
  EXPECT_EQ(type_name(*make_global(arena_, "torch", "bfloat16")), "torch.dtype");
  EXPECT_EQ(type_name(*make_global(arena_, "m", "Config")), "type");
}

TEST_F(TypeName, OfACallOfNoGlobalIsObject) { EXPECT_EQ(type_name(*make_call(arena_, text("x"), {})), "object"); }

using ValueWalks = ValueTest;

TEST_F(ValueWalks, ReturnASharedValueForEachReferenceAndDescendIntoItOnce) {
  Value* const shared = make_list(arena_, ValueKind::kList, std::vector{number(1)});
  Value* const root = make_list(arena_, ValueKind::kList, std::vector{shared, shared});
  ValueWalk walk(*root);
  int lists = 0, numbers = 0;
  while (const Value* const value = walk.next()) ++(value->kind == ValueKind::kInt ? numbers : lists);
  EXPECT_EQ(lists, 3);
  EXPECT_EQ(numbers, 1);
}

TEST_F(ValueWalks, EndInACycle) {
  Value* const root = make_list(arena_, ValueKind::kList, std::vector{number(1)});
  root->items()[0] = root;
  EXPECT_EQ(find_below(*root, [](const Value& value) { return value.kind == ValueKind::kInt; }), nullptr);
}

TEST_F(ValueWalks, SkipChildrenAndWalkOverMore) {
  Value* const skipped = make_list(arena_, ValueKind::kTuple, std::vector{number(1)});
  Value* const root = make_list(arena_, ValueKind::kList, std::vector{skipped});
  Value* const more = number(2);
  ValueWalk walk(*root);
  std::vector<const Value*> met;
  while (const Value* const value = walk.next()) {
    met.push_back(value);
    if (value != skipped) continue;
    walk.skip_children();
    walk.add(*more);
  }
  EXPECT_EQ(met, (std::vector<const Value*>{root, skipped, more}));
}

TEST_F(ValueWalks, DoNotDescendIntoWhatAnEarlierOneMet) {
  Value* const shared = make_list(arena_, ValueKind::kList, std::vector{number(1)});
  VisitedSet met;
  ValueWalk first(*shared, &met);
  while (first.next() != nullptr) {
  }
  ValueWalk second(*shared, &met);
  EXPECT_EQ(second.next(), shared);
  EXPECT_EQ(second.next(), nullptr);
}

TEST_F(MappingItems, AreChangedOrLeftOut) {
  Value *const a = make_string(arena_, "a"), *const b = make_string(arena_, "b");
  Value *const one = number(1), *const two = number(2), *const three = number(3);
  const Value& dict = *make_list(arena_, ValueKind::kDict, std::vector{a, one, b, two, three, three});
  const Value& changed = *change_items(arena_, dict, [&](const Value& key, Value* value) -> Value* {
    return &key == three ? nullptr : text_or_empty(key) == "b" ? three : value;
  });
  EXPECT_EQ(std::vector(changed.items().begin(), changed.items().end()), (std::vector{a, one, b, three}));
}

}  // namespace
}  // namespace shard
