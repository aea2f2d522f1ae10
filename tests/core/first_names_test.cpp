#include "libshard/core/first_names.h"

#include <gtest/gtest.h>

namespace shard {
namespace {

TEST(FirstNames, AreQuotedAndTheRestIsCounted) {
  FirstNames names;
  for (const char* name : {"a", "b", "c"}) names.add(name);
  EXPECT_EQ(names.text(), "'a', 'b', 'c'");
  names.add("d");
  EXPECT_EQ(names.text(), "'a', 'b', 'c' and 1 more");
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
