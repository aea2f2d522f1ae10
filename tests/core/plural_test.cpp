#include <gtest/gtest.h>

#include "libshard/core/short_text.h"

namespace shard {
namespace {

TEST(Plural, IsOneOrMany) {
  EXPECT_EQ(plural(0, "tensor"), "0 tensors");
  EXPECT_EQ(plural(1, "tensor"), "1 tensor");
  EXPECT_EQ(plural(2, "tensor"), "2 tensors");
  EXPECT_EQ(plural(1, "axis", "axes"), "1 axis");
  EXPECT_EQ(plural(2, "axis", "axes"), "2 axes");
}

}  // namespace
}  // namespace shard
