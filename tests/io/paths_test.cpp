#include "libshard/io/paths.h"

#include <gtest/gtest.h>

namespace shard {
namespace {

TEST(JoinPath, PutsOneSlashBetween) {
  EXPECT_EQ(join_path("a", "b"), "a/b");
  EXPECT_EQ(join_path("a/", "b"), "a/b");
  EXPECT_EQ(join_path("a//", "b"), "a/b");
  EXPECT_EQ(join_path("/", "b"), "/b");
  EXPECT_EQ(join_path("s3://bucket//", "b"), "s3://bucket/b");
}

TEST(JoinPath, AnEmptyFolderAddsNothing) { EXPECT_EQ(join_path("", "b"), "b"); }

TEST(JoinPath, AnAbsoluteNameStandsAlone) { EXPECT_EQ(join_path("a", "/b"), "/b"); }

TEST(BaseName, IsTheLastPartWithOrWithoutSlashesAfterIt) {
  EXPECT_EQ(base_name("/a/b"), "b");
  EXPECT_EQ(base_name("/a/b//"), "b");
  EXPECT_EQ(base_name("b"), "b");
  EXPECT_EQ(base_name("/"), "/");
}

TEST(ParentPath, IsAllBeforeTheLastPart) {
  EXPECT_EQ(parent_path("/a/b"), "/a");
  EXPECT_EQ(parent_path("/a/b/"), "/a");
  EXPECT_EQ(parent_path("/a"), "/");
  EXPECT_EQ(parent_path("a//b"), "a");
  EXPECT_EQ(parent_path("a"), ".");
}

}  // namespace
}  // namespace shard
