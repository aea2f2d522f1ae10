#include <gtest/gtest.h>

#include <vector>

#include "libshard/core/value_walk.h"

namespace shard {
namespace {

TEST(ValueCopier, CopiesOutliveTheirArena) {
  Arena to;
  ValueCopier copier(to);
  const Value* made = nullptr;
  {
    Arena from;
    Value* const call =
        make_call(from, make_global(from, "module", "Name"), std::vector{make_string(from, "argument")});
    call->call->state = make_int(from, 7);
    extra_of(from, *call).list_items = make_list(from, ValueKind::kList, std::vector{make_bool(from, true)})->items();
    extra_of(from, *call).dict_items =
        make_list(from, ValueKind::kList, std::vector{make_string(from, "key"), make_int(from, 8)})->items();
    extra_of(from, *call).kwargs =
        make_list(from, ValueKind::kDict, std::vector{make_string(from, "k"), make_int(from, 9)});
    made = copier.copy(*make_list(from, ValueKind::kTuple, std::vector{call, make_value(from, ValueKind::kNone)}));
  }
  ASSERT_EQ(made->items().size(), 2U);
  const Value& call = *made->items()[0];
  EXPECT_TRUE(call.is_call_of("module", "Name"));
  EXPECT_EQ(call.items()[0]->text(), "argument");
  EXPECT_EQ(call.state()->number, 7);
  EXPECT_TRUE(call.extra()->list_items[0]->boolean());
  EXPECT_EQ(call.extra()->dict_items[0]->text(), "key");
  EXPECT_EQ(find_key(*call.extra()->kwargs, "k")->number, 9);
  EXPECT_EQ(made->items()[1]->kind, ValueKind::kNone);
}

TEST(ValueCopier, WhatIsSharedStaysSharedAmongAllCopies) {
  Arena from, to;
  ValueCopier copier(to);
  Value* const shared = make_list(from, ValueKind::kList, std::vector{make_int(from, 1)});
  const Value* const first = copier.copy(*make_list(from, ValueKind::kTuple, std::vector{shared, shared}));
  EXPECT_EQ(first->items()[0], first->items()[1]);
  EXPECT_EQ(copier.copy(*shared), first->items()[0]);
  EXPECT_NE(first->items()[0], shared);
}

TEST(ValueCopier, ACopiedCallSharesNoPartWithItsOriginal) {
  Arena from, to;
  Value* const call = make_call(from, make_global(from, "module", "Name"), {});
  call->call->state = make_int(from, 7);
  CallExtra& extra = extra_of(from, *call);
  extra.kwargs = make_list(from, ValueKind::kDict, std::vector{make_string(from, "k"), make_int(from, 9)});
  const Value* const made = ValueCopier(to).copy(*call);
  EXPECT_NE(made->callee(), call->callee());
  EXPECT_NE(made->state(), call->state());
  EXPECT_NE(made->extra()->kwargs, extra.kwargs);
}

TEST(ValueCopier, AListInsideItselfIsCopiedOnce) {
  Arena from, to;
  Value* const list = make_list(from, ValueKind::kList, std::vector{make_int(from, 1)});
  list->items()[0] = list;
  const Value* const made = ValueCopier(to).copy(*list);
  EXPECT_EQ(made->items()[0], made);
}

TEST(ValueCopier, OpaqueValuesKeepTheirNames) {
  Arena from, to;
  Value* const opaque = make_global(from, "module", "Name");
  opaque->kind = ValueKind::kOpaque;
  const Value* const made = ValueCopier(to).copy(*opaque);
  EXPECT_EQ(made->kind, ValueKind::kOpaque);
  EXPECT_EQ(made->module(), "module");
  EXPECT_EQ(made->text(), "Name");
}

}  // namespace
}  // namespace shard
