#include <gtest/gtest.h>

#include "libshard/core/value_equality.h"
#include "tests/formats/pickle_text.h"

namespace shard {
namespace {

using namespace shard::testing;

bool are_equal(const std::string& a, const std::string& b) {
  Arena arena;
  const std::string first = "\x80\x04" + a + ".", second = "\x80\x04" + b + ".";
  return ValueEquality().is_equal(*load_text(arena, first), *load_text(arena, second));
}

TEST(Equality, SeesEveryPartOfACall) {
  const std::string name = "cargparse\nNamespace\n";
  EXPECT_TRUE(are_equal(name + ")}\x8c\1xK\1s\x92", name + ")}\x8c\1xK\1s\x92"));
  EXPECT_FALSE(are_equal(name + ")}\x8c\1xK\1s\x92", name + ")}\x8c\1xK\2s\x92"));  // Keyword arguments.
  EXPECT_FALSE(are_equal(name + ")R}\x8c\1xK\1sb", name + ")R}\x8c\1xK\2sb"));      // State.
  EXPECT_FALSE(are_equal(name + "K\1\x85R", name + "K\2\x85R"));
  EXPECT_FALSE(are_equal(name + ")R", name + ")\x81"));
  EXPECT_FALSE(are_equal(name + ")R", "ctypes\nSimpleNamespace\n)R"));
  EXPECT_FALSE(are_equal(name + ")RK\1a", name + ")RK\2a"));
}

TEST(Equality, ComparesFloatsByTheirBits) {
  const std::string nan = "G\x7f\xf8\0\0\0\0\0\0"s, zero = "G\0\0\0\0\0\0\0\0"s, minus = "G\x80\0\0\0\0\0\0\0"s;
  EXPECT_TRUE(are_equal(nan, nan));
  EXPECT_FALSE(are_equal(zero, minus));
  EXPECT_FALSE(are_equal(zero, "K\0"s));
}

TEST(Equality, DoesNotCareWhatIsShared) {
  EXPECT_TRUE(are_equal("]\x94h\0\x86"s.replace(2, 2, "h\0"s), "]]\x86"));
  EXPECT_TRUE(are_equal("K\1K\2\x86", "(K\1K\2t"));
}

TEST(Equality, SetsHaveNoOrder) {
  EXPECT_TRUE(are_equal("\x8f(\x8c\1xK\1N\x90", "\x8f(NK\1\x8c\1x\x90"));
  EXPECT_FALSE(are_equal("\x8f(\x8c\1xK\1\x90", "\x8f(K\2\x8c\1x\x90"));
  EXPECT_FALSE(are_equal("\x8f(K\1\x90", "\x8f(K\1K\2\x90"));
  const std::string x1 = "\x8c\1xK\1\x86", y2 = "\x8c\1yK\2\x86", x2 = "\x8c\1xK\2\x86", y1 = "\x8c\1yK\1\x86";
  EXPECT_TRUE(are_equal("(" + x1 + y2 + "\x91", "(" + y2 + x1 + "\x91"));  // Tuples in a frozenset.
  EXPECT_FALSE(are_equal("(" + x1 + y2 + "\x91", "(" + y1 + x2 + "\x91"));
  EXPECT_TRUE(are_equal("\x8f((K\1K\2\x91N\x90", "\x8f(N(K\2K\1\x91\x90"));  // A frozenset in a set.
  EXPECT_FALSE(are_equal("](K\1K\2e", "](K\2K\1e"));
}

TEST(Equality, ValuesThatHoldThemselvesEnd) {
  const std::string one = "]\x94h\0a"s, two = "]\x94]h\0aa"s;
  EXPECT_TRUE(are_equal(one, one));
  EXPECT_TRUE(are_equal(one, two));  // Both are lists of lists without end.
  EXPECT_FALSE(are_equal("]\x94h\0aK\1a"s, "]\x94h\0aK\2a"s));
}

TEST(Equality, OpaqueValuesAreEqualByClassOrNever) {
  Arena arena;
  Value a, b;
  a.kind = b.kind = ValueKind::kOpaque;
  EXPECT_TRUE(ValueEquality().is_equal(a, b));
  EXPECT_FALSE(ValueEquality({.opaque_by_class = false}).is_equal(a, b));
  EXPECT_FALSE(ValueEquality({.opaque_by_class = false}).is_equal(a, a));
}

TEST(Equality, PersistentIdsAreEqualByTheirContentOrNever) {
  Arena arena;
  const std::string text =
      "\x80\4]((\x8c\7storageN\x8c\1"
      "0\x8c\3cpuK\3tQe."s;
  Value *const a = load_text(arena, text), *const b = load_text(arena, text);
  EXPECT_TRUE(ValueEquality().is_equal(*a, *b));
  EXPECT_FALSE(ValueEquality({.persistent_by_id = false}).is_equal(*a, *b));
  EXPECT_FALSE(ValueEquality({.persistent_by_id = false}).is_equal(*a, *a));
}

TEST(Equality, TensorsAreAskedFor) {
  Value a, b;
  become_tensor(a, 1);
  become_tensor(b, 2);
  EXPECT_FALSE(ValueEquality().is_equal(a, b));
  EXPECT_TRUE(ValueEquality({.same_tensor = [](const Value&, const Value&) { return true; }}).is_equal(a, b));
  EXPECT_FALSE(ValueEquality({.same_tensor = [](const Value&, const Value&) { return false; }}).is_equal(a, a));
}

/// Lists of lists of one text, each level of `width` times the one below: width^depth texts, but depth nodes.
Value* repeated(Arena& arena, const char* text, int depth, std::size_t width) {
  Value* value = make_string(arena, text);
  for (int i = 0; i < depth; ++i) value = make_list(arena, ValueKind::kList, std::vector<Value*>(width, value));
  return value;
}

TEST(Equality, LooksOnceAtWhatIsSharedOverAndOver) {
  Arena arena;
  const Value* a = repeated(arena, "x", 50, 100);
  EXPECT_TRUE(ValueEquality().is_equal(*a, *repeated(arena, "x", 50, 100)));
  EXPECT_FALSE(ValueEquality().is_equal(*a, *repeated(arena, "y", 50, 100)));
}

TEST(Equality, CyclesOfOtherLengthsCostTheirSumAndNotTheirProduct) {
  Arena arena;
  const auto cycle = [&](std::size_t length) {
    std::vector<Value*> nodes;
    for (std::size_t i = 0; i < length; ++i) {
      nodes.push_back(make_list(arena, ValueKind::kList, std::vector<Value*>(1)));
    }
    for (std::size_t i = 0; i < length; ++i) nodes[i]->items()[0] = nodes[(i + 1) % length];
    return nodes[0];
  };
  EXPECT_TRUE(ValueEquality().is_equal(*cycle(10'007), *cycle(10'009)));  // 100 million pairs would be refused.
}

TEST(Equality, AFailedComparisonLeavesNothingBehind) {
  Arena arena;
  const Value *inner_a = load_text(arena, "\x80\x04]K\1a."), *inner_b = load_text(arena, "\x80\x04]K\2a.");
  Value* in_a[] = {const_cast<Value*>(inner_a)};
  Value* in_b[] = {const_cast<Value*>(inner_b)};
  ValueEquality equality;
  EXPECT_FALSE(equality.is_equal(*make_list(arena, ValueKind::kList, in_a), *make_list(arena, ValueKind::kList, in_b)));
  EXPECT_FALSE(equality.is_equal(*inner_a, *inner_b));
}

}  // namespace
}  // namespace shard
