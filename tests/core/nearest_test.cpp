#include "libshard/core/nearest.h"

#include <gtest/gtest.h>

#include <vector>

namespace shard {
namespace {

TEST(EditDistance, CountsASwapOnce) { EXPECT_EQ(edit_distance("--rnaks", "--ranks", 3), 1); }
TEST(EditDistance, StopsAtItsLimit) {
  EXPECT_EQ(edit_distance("abc", "xyz123", 2), 3);
  EXPECT_EQ(edit_distance("abc", "xyz", 1), 2);
}

TEST(Nearest, FindsTheWordThatWasMeant) {
  const std::vector<std::string_view> words{"inspect", "split", "gather"};
  EXPECT_EQ(nearest("splt", words), "split");
}
TEST(Nearest, GuessesNothingWild) {
  const std::vector<std::string_view> words{"inspect", "split", "gather"};
  EXPECT_EQ(nearest("frobnicate", words), "");
}

}  // namespace
}  // namespace shard
