
#include "tests/support/memory_disk.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "libshard/io/local_disk.h"
#include "tests/support/bytes.h"
#include "tests/support/expect_error.h"

namespace shard {
namespace {

using test::as_span;
using test::as_text;
using ::testing::ElementsAre;

class MemoryTwin : public ::testing::Test {
 protected:
  std::shared_ptr<MemoryState> state = std::make_shared<MemoryState>();
  std::unique_ptr<LocalDisk> fs = make_memory_disk(state);
};

TEST_F(MemoryTwin, PutMakesParents) {
  state->put("/a/b/c", as_span("x"));
  EXPECT_THAT(state->paths(), ElementsAre("/a", "/a/b", "/a/b/c"));
}

TEST_F(MemoryTwin, ReadsWhatWasWritten) {
  const auto file = fs->create("/f");
  file->write_at(2, as_span("xy"));
  file->write_at(0, as_span("ab"));
  EXPECT_EQ(as_text(state->content("/f")), "abxy");
}

TEST_F(MemoryTwin, FailsTheWantedCallOnly) {
  state->put("/f", as_span("abc"));
  state->fail_at(1);
  EXPECT_EQ(fs->status("/f").bytes, 3);
  test::expect_error(ErrorCode::kNotFound, "injected", [&] { fs->status("/f"); });
  EXPECT_EQ(fs->status("/f").bytes, 3);
}

TEST_F(MemoryTwin, FailsAllCallsFromThereOnWhenPersistent) {
  state->fail_at(0, true);
  test::expect_error(ErrorCode::kResource, "injected", [&] { fs->create("/f"); });
  test::expect_error(ErrorCode::kResource, "injected", [&] { fs->create("/f"); });
}

TEST_F(MemoryTwin, CountsOpenHandles) {
  state->put("/f", as_span("abc"));
  auto file = fs->open("/f");
  EXPECT_EQ(state->open_files(), 1);
  file.reset();
  EXPECT_EQ(state->open_files(), 0);
}

TEST_F(MemoryTwin, LocksOnce) {
  fs->make_folder("/d");
  auto first = fs->open_folder("/d");
  ASSERT_TRUE(first->try_lock());
  EXPECT_FALSE(fs->open_folder("/d")->try_lock());
  first.reset();
  EXPECT_TRUE(fs->open_folder("/d")->try_lock());
}

TEST_F(MemoryTwin, RenameMovesAFolderWithItsContent) {
  state->put("/a/f", as_span("abc"));
  fs->rename_new("/a", "/b");
  EXPECT_THAT(state->paths(), ElementsAre("/b", "/b/f"));
}

TEST_F(MemoryTwin, RenameDoesNotReplace) {
  state->put("/a", as_span("1"));
  state->put("/b", as_span("2"));
  test::expect_error(ErrorCode::kExists, "exists", [&] { fs->rename_new("/a", "/b"); });
}

TEST_F(MemoryTwin, ExchangeSwaps) {
  state->put("/a", as_span("1"));
  state->put("/b/f", as_span("2"));
  const auto root = fs->open_folder("/");
  EXPECT_TRUE(root->exchange("a", *root, "b"));
  EXPECT_THAT(state->paths(), ElementsAre("/a", "/a/f", "/b"));
}

}  // namespace
}  // namespace shard
