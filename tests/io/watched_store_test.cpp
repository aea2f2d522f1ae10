// A run requests each listing, status and file once, and those of a slow disk several at one time. Any change of a
// source during reading is detected.
#include "libshard/io/watched_store.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <span>
#include <thread>
#include <vector>

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

TEST_F(WatchedFiles, ThatChangedSinceTheyWereClosedAreErrorsOfTheNextOpening) {
  put("/a/x", "12345");
  store.open("/a/x");
  for (std::size_t i = 0; i < WatchedStore::kMostKept; ++i) {
    const std::string other = "/a/other" + std::to_string(i);
    put(other, "1");
    store.open(other);
  }
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
  std::unique_ptr<RandomReader> open(const std::string& path) const override {
    ++opens;
    if (--opens_left < 0) throw Error(ErrorCode::kResource, "too many open files");
    return slowed(inner_.open(path));
  }
  std::unique_ptr<RandomReader> open_below(const std::string& folder, const std::string& relative) const override {
    ++opens;
    return slowed(inner_.open_below(folder, relative));
  }

  mutable std::atomic<int> statuses = 0, lists = 0, opens = 0, reads = 0, opens_left = 1 << 30;
  bool is_slow = false;

 private:
  /// A file whose reads are counted, on a disk with long round trips.
  class SlowFile final : public RandomReader {
   public:
    SlowFile(std::unique_ptr<RandomReader> file, std::atomic<int>& reads) : file_(std::move(file)), reads_(reads) {}
    void read_at(std::int64_t offset_bytes, std::span<std::byte> out) const override {
      ++reads_;
      file_->read_at(offset_bytes, out);
    }
    std::int64_t size() const override { return file_->size(); }
    FileIdentity identity() const override { return file_->identity(); }
    std::int64_t modified_ns() const override { return file_->modified_ns(); }
    int requests_at_once() const override { return 4; }

   private:
    const std::unique_ptr<RandomReader> file_;
    std::atomic<int>& reads_;
  };

  std::unique_ptr<RandomReader> slowed(std::unique_ptr<RandomReader> file) const {
    if (!is_slow) return file;
    return std::make_unique<SlowFile>(std::move(file), reads);
  }

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

TEST_F(WatchedFolders, AnswerForNamesThatTheyLack) {
  put("/a/x", "123");
  put("/a/b/y", "1");
  each.list("/a");
  EXPECT_EQ(each.status("/a/none").kind, FileKind::kAbsent);
  EXPECT_EQ(counted.statuses, 0);
  EXPECT_EQ(each.status("/a/x").bytes, 3);
  EXPECT_EQ(each.status("/a/").kind, FileKind::kFolder);
  EXPECT_EQ(each.status("/a/b").kind, FileKind::kFolder);
  EXPECT_EQ(each.status("/a/b/y").kind, FileKind::kFile);
  EXPECT_EQ(counted.statuses, 4);
}

TEST_F(WatchedFolders, ACheckedFileIsLookedAtAnew) {
  put("/a/x", "123");
  each.status("/a/x");
  each.open("/a/x");
  put("/a/x", "1234");
  test::expect_error(ErrorCode::kCorruption, "the file changed while it was being read",
                     [this] { each.expect_unchanged(); });
}

TEST_F(WatchedFolders, FilesAreOpenedOnceWhileTheyAreKept) {
  put("/a/b/x", "123");
  const auto first = each.open("/a/b/x");
  each.open("/a/b/x");
  each.open_below("/a/b", "x");
  EXPECT_EQ(counted.opens, 1);
  EXPECT_EQ(each.status("/a/b/x").bytes, 3);
  EXPECT_EQ(counted.statuses, 0) << "an open file's status is known";
  // A folder in the name may lead elsewhere, so such a file is not taken from the others.
  each.open_below("/a", "b/x");
  each.open_below("/a", "b/x");
  EXPECT_EQ(counted.opens, 2);
}

TEST_F(WatchedFolders, KeptFilesAreReleasedIfTooManyAreOpen) {
  for (const char* name : {"x", "y", "z"}) put(std::string("/a/") + name, "123");
  each.open("/a/x");
  const auto used = each.open("/a/y");
  counted.opens_left = 0;
  test::expect_error(ErrorCode::kResource, "too many open files", [this] { each.open("/a/z"); });
  EXPECT_EQ(counted.opens, 4) << "it was not tried again";
  counted.opens_left = 1 << 30;
  each.open("/a/y");
  EXPECT_EQ(counted.opens, 4) << "a file in use was closed";
  each.open("/a/x");
  EXPECT_EQ(counted.opens, 5) << "a kept file was not closed";
}

/// On a disk with long round trips.
class SlowFolders : public WatchedFolders {
 protected:
  SlowFolders() {
    counted.is_slow = true;
    for (int i = 0; i < kFiles; ++i) put(path(i), std::string(100 << 10, static_cast<char>('a' + i % 26)));
    put("/a/notes.txt", "1");
  }
  static std::string path(int i) { return "/a/__" + std::to_string(i) + "_0.distcp"; }

  static constexpr int kFiles = 80;
};

TEST_F(SlowFolders, AreOpenedAheadFromTheSecondFileOn) {
  const WatchedStore slow(counted, 4);
  slow.list("/a/");
  slow.open(path(0));
  EXPECT_EQ(counted.opens, 1);
  slow.open_below("/a", "__1_0.distcp");
  EXPECT_EQ(counted.opens, 1 + 64);
  for (int i = 0; i < kFiles; ++i) slow.open(path(i));
  EXPECT_EQ(counted.opens, kFiles) << "a file was opened twice, or one of another kind was opened";
}

TEST_F(SlowFolders, AreRecognisedByTheirFirstFile) {
  each.list("/a");
  for (int i = 0; i < 2; ++i) each.open(path(i));
  EXPECT_EQ(counted.opens, 2);
  each.open(path(2));
  EXPECT_EQ(counted.opens, 2 + 64);
}

TEST_F(SlowFolders, AreAskedForStatusesAhead) {
  each.list("/a");
  each.open("/a/notes.txt");
  for (int i = 0; i < 2; ++i) each.status(path(i));
  EXPECT_EQ(counted.statuses, 1 + 64);
  for (int i = 0; i < kFiles; ++i) EXPECT_EQ(each.status(path(i)).bytes, 100 << 10);
  EXPECT_EQ(counted.statuses, kFiles);
  each.open(path(0));
  EXPECT_NO_THROW(each.expect_unchanged());
  put(path(0), "1");
  test::expect_error(ErrorCode::kCorruption, "the file changed while it was being read",
                     [this] { each.expect_unchanged(); });
}

TEST_F(SlowFolders, AskAheadOfNothingThatCannotBeOpened) {
  each.list("/a");
  disk->remove_all(path(5));
  each.open(path(0));
  each.open(path(1));
  test::expect_error(ErrorCode::kNotFound, "", [this] { each.open(path(5)); });
}

TEST_F(SlowFolders, HaveTheEndsOfOpenFilesInMemory) {
  const auto file = each.open(path(3));
  EXPECT_EQ(counted.reads, 2);
  std::vector<std::byte> bytes(64 << 10), middle(1 << 10);
  file->read_at(0, bytes);
  file->read_at((100 << 10) - 10, std::span(bytes).first(10));
  EXPECT_EQ(counted.reads, 2);
  EXPECT_EQ(bytes[10], std::byte{'d'});
  file->read_many(
      std::array{RangedRead{5, bytes}, RangedRead{70 << 10, middle}, RangedRead{0, std::span(bytes).first(1)}});
  EXPECT_EQ(counted.reads, 4) << "a read that begins in the front goes to the file, as does one in the middle";
  EXPECT_EQ(middle[0], std::byte{'d'});
  const auto small = each.open("/a/notes.txt");
  EXPECT_EQ(counted.reads, 5);
  small->read_at(0, std::span(bytes).first(1));
  EXPECT_EQ(bytes[0], std::byte{'1'});
  EXPECT_EQ(counted.reads, 5);
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
