// A run requests each listing and status once. Any change of a source during reading is detected.
#include "libshard/io/watched_store.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "tests/support/bytes.h"
#include "tests/support/expect_error.h"
#include "tests/support/memory_disk.h"

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

/// Counts the calls that reach a store.
class CountingStore final : public SourceStore {
 public:
  explicit CountingStore(const SourceStore& inner) : inner_(inner) {}
  FileStatus status(const std::string& path) const override { return ++statuses, inner_.status(path); }
  std::vector<std::string> list(const std::string& folder) const override { return ++lists, inner_.list(folder); }
  std::unique_ptr<RandomReader> open(const std::string& path) const override { return inner_.open(path); }
  std::unique_ptr<RandomReader> open_below(const std::string& folder, const std::string& relative) const override {
    return inner_.open_below(folder, relative);
  }

  mutable std::atomic<int> statuses = 0, lists = 0;

 private:
  const SourceStore& inner_;
};

class WatchedFolders : public WatchedFiles {
 protected:
  CountingStore counted{*disk};
  WatchedStore each{counted};
};

TEST_F(WatchedFolders, AreListedOnceEach) {
  put("/a/x", "1");
  put("/a/b/y", "1");
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(each.list("/a"), (std::vector<std::string>{"b", "x"}));
    EXPECT_EQ(each.list("/a/b"), std::vector<std::string>{"y"});
  }
  EXPECT_EQ(counted.lists, 2);
}

TEST_F(WatchedFolders, StayAsTheyWereFirstListed) {
  put("/a/x", "1");
  each.list("/a");
  put("/a/y", "1");
  EXPECT_EQ(each.list("/a"), std::vector<std::string>{"x"});
  EXPECT_EQ(disk->list("/a").size(), 2U);
}

TEST_F(WatchedFolders, ThatCouldNotBeListedAreAskedAgain) {
  test::expect_error(ErrorCode::kNotFound, "", [this] { each.list("/a"); });
  put("/a/x", "1");
  EXPECT_EQ(each.list("/a").size(), 1U);
  EXPECT_EQ(counted.lists, 2);
}

TEST_F(WatchedFolders, StatusesAreTakenOnceOfWhatIsAbsentToo) {
  put("/a/x", "123");
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(each.status("/a/x").bytes, 3);
    EXPECT_EQ(each.status("/a/y").kind, FileKind::kAbsent);
  }
  EXPECT_EQ(counted.statuses, 2);
  put("/a/y", "1");
  EXPECT_EQ(each.status("/a/y").kind, FileKind::kAbsent);
}

TEST_F(WatchedFolders, ACheckedFileIsLookedAtAnew) {
  put("/a/x", "123");
  each.status("/a/x");
  each.open("/a/x");
  put("/a/x", "1234");
  test::expect_error(ErrorCode::kCorruption, "the file changed while it was being read",
                     [this] { each.expect_unchanged(); });
}

TEST_F(WatchedFolders, MayBeListedByManyThreads) {
  for (int i = 0; i < 100; ++i) put("/a/" + std::to_string(i), "1");
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 100; ++k) {
        if (each.list("/a").size() != 100 || each.status("/a/" + std::to_string(k)).bytes != 1) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_LE(counted.lists, 4);
}

}  // namespace
}  // namespace shard
