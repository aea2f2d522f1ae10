// Any change of a source during reading is detected.
#include "libshard/io/watched_store.h"

#include <gtest/gtest.h>

#include <array>

#include "libshard/io/memory_disk.h"
#include "tests/support/bytes.h"
#include "tests/support/expect_error.h"

namespace shard {
namespace {

class WatchedFiles : public ::testing::Test {
 protected:
  std::shared_ptr<MemoryState> state = std::make_shared<MemoryState>();
  std::unique_ptr<LocalDisk> disk = make_memory_disk(state);
  WatchedStore store{*disk};

  void put(const std::string& path, const std::string& content) { state->put(path, test::as_span(content)); }
  void expect_changed(const std::string& words) {
    test::expect_error(ErrorCode::kCorruption, words, [this] { store.expect_unchanged(); });
  }
};

TEST_F(WatchedFiles, MayBeOpenedAndReadAnyNumberOfTimes) {
  put("/a/x", "12345");
  store.open("/a/x");
  store.open("/a/x");
  store.open_below("/a", "x");
  EXPECT_NO_THROW(store.expect_unchanged());
}

TEST_F(WatchedFiles, ThatWereNotOpenedMayChange) {
  put("/a/x", "12345");
  put("/a/y", "12345");
  store.open("/a/x");
  put("/a/y", "123456");
  EXPECT_NO_THROW(store.expect_unchanged());
}

TEST_F(WatchedFiles, ThatAreWrittenToAreErrors) {
  put("/a/x", "12345");
  const auto file = store.open("/a/x");
  put("/a/x", "12346");
  expect_changed("the file changed while it was being read");
}

TEST_F(WatchedFiles, ThatGrowOrShrinkAreErrors) {
  for (const std::string& now : {std::string("1234"), std::string("123456")}) {
    put("/a/x", "12345");
    WatchedStore each(*disk);
    each.open_below("/a", "x");
    put("/a/x", now);
    test::expect_error(ErrorCode::kCorruption, "the file changed while it was being read",
                       [&] { each.expect_unchanged(); });
  }
}

TEST_F(WatchedFiles, WhoseNameAnotherTookAreErrors) {
  put("/a/x", "12345");
  store.open("/a/x");
  disk->remove_all("/a/x");
  put("/a/x", "12345");
  expect_changed("the file changed while it was being read");
}

TEST_F(WatchedFiles, ThatAreRemovedAreErrors) {
  put("/a/x", "12345");
  store.open("/a/x");
  disk->remove_all("/a/x");
  expect_changed("the file changed while it was being read");
}

TEST_F(WatchedFiles, ThatChangedBetweenTwoOpensAreErrorsOfTheSecond) {
  put("/a/x", "12345");
  store.open("/a/x");
  put("/a/x", "1234");
  test::expect_error(ErrorCode::kCorruption, "the file changed while it was being read",
                     [this] { store.open("/a/x"); });
}

}  // namespace
}  // namespace shard
