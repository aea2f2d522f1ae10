#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "libshard/core/short_text.h"

namespace shard {
namespace {

TEST(FirstNames, AreQuotedAndTheRestIsCounted) {
  FirstNames names;
  for (const char* name : {"a", "b", "c"}) names.add(name);
  EXPECT_EQ(names.text(), "'a', 'b', 'c'");
  names.add("d");
  EXPECT_EQ(names.text(), "'a', 'b', 'c' and 1 more");
}

TEST(FirstNames, OfAListAtOnce) {
  EXPECT_EQ(first_names(std::vector<std::string>{"a", "b", "c", "d", "e"}), "'a', 'b', 'c' and 2 more");
}

TEST(FirstNames, NumbersAreCountedByTheCaller) {
  EXPECT_EQ(first_numbers(std::vector<std::int64_t>{1, 2, 3}, 3), "1, 2, 3");
  EXPECT_EQ(first_numbers(std::vector<std::int64_t>{1, 2, 3}, 10), "1, 2, 3 and 7 more");
}

TEST(Mentions, AWholeName) {
  for (const char* text : {"a.pt", "'a.pt' is there", "lost: a.pt", "see a.pt.", "dir/a.pt", "b.a.pt, a.pt"}) {
    EXPECT_TRUE(mentions(text, "a.pt")) << text;
  }
}

TEST(Mentions, NoPartOfAWordOrOfALongerName) {
  for (const char* text : {"", "ba.pt", "a.pth", "a.pt.bak", "a.pt/b", "b-a.pt", "A.pt"}) {
    EXPECT_FALSE(mentions(text, "a.pt")) << text;
  }
  EXPECT_FALSE(mentions("cannot write: the destination already exists", "r"));
}

}  // namespace
}  // namespace shard
