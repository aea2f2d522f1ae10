#include "libshard/core/key_text.h"

#include <gtest/gtest.h>

#include <vector>

namespace shard {
namespace {

TEST(KeyText, IsEqualForEqualSequencesOnly) {
  const std::vector<std::int64_t> one{1}, two{1, 2}, none;
  EXPECT_EQ(KeyText().list(one).list(two).str(), KeyText().list(one).list(two).str());
  EXPECT_NE(KeyText().list(one).list(two).str(), KeyText().list(two).list(one).str());
  EXPECT_NE(KeyText().list(two).list(none).str(), KeyText().list(none).list(two).str());
  EXPECT_NE(KeyText().text("ab").text("c").str(), KeyText().text("a").text("bc").str());
  EXPECT_NE(KeyText().numbers(1, 2).str(), KeyText().numbers(2, 1).str());
}

}  // namespace
}  // namespace shard
