#include "libshard/io/open_files.h"

#include <gtest/gtest.h>

#include "libshard/io/local_disk.h"
#include "tests/support/bytes.h"
#include "tests/support/memory_disk.h"

namespace shard {
namespace {

class OpenFilesTest : public ::testing::Test {
 protected:
  OpenFilesTest() {
    for (const char* name : {"/0", "/1", "/2"}) state->put(name, test::as_span("x"));
  }
  std::shared_ptr<MemoryState> state = std::make_shared<MemoryState>();
  std::unique_ptr<LocalDisk> fs = make_memory_disk(state);
  OpenFiles files{[this](std::uint32_t index) { return fs->open("/" + std::to_string(index)); }, 2};
};

TEST_F(OpenFilesTest, OpensAFileOnce) {
  EXPECT_EQ(files.get(0), files.get(0));
  EXPECT_EQ(state->calls(), 1);
}

TEST_F(OpenFilesTest, KeepsNoMoreThanTheLimitOpen) {
  for (const std::uint32_t i : {0U, 1U, 2U}) files.get(i);
  EXPECT_EQ(state->open_files(), 2);
}

TEST_F(OpenFilesTest, OpensAgainWhatWasLetGo) {
  for (const std::uint32_t i : {0U, 1U, 2U}) files.get(i);
  EXPECT_EQ(files.get(0)->size(), 1);
  EXPECT_EQ(state->calls(), 4);
}

}  // namespace
}  // namespace shard
