// A source on several disks, read by ranks that each have access only to their own disk.
#include "libshard/job/group_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <thread>
#include <utility>

#include "libshard/io/local_disk.h"
#include "libshard/ranks/collective_step.h"
#include "libshard/ranks/thread_group.h"
#include "tests/support/bytes.h"
#include "tests/support/expect_error.h"
#include "tests/support/memory_disk.h"

namespace shard {
namespace {

using test::as_span;
using test::as_text;
using test::error_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class GroupStoreTest : public ::testing::Test {
 protected:
  static constexpr int kRanks = 3;
  GroupStoreTest() {
    for (int rank = 0; rank < kRanks; ++rank) {
      states_.push_back(std::make_shared<MemoryState>());
      disks_.push_back(make_memory_disk(states_.back()));
    }
  }
  void put(int rank, const std::string& path, const std::string& text) {
    states_[static_cast<std::size_t>(rank)]->put(path, as_span(text));
  }
  /// Runs `work` on every rank in one step. \returns the errors, by rank that saw it; all the same
  std::vector<Error> run(const std::function<void(GroupStore&, int rank)>& work) {
    std::vector<Error> errors;
    std::mutex mutex;
    run_as_threads(kRanks, [&](Group& group) {
      const int rank = group.rank();
      GroupStore store(*disks_[static_cast<std::size_t>(rank)], rank);
      try {
        collective_step(group, {.traffic = &store}, [&](const std::stop_token&) { work(store, rank); });
      } catch (const Error& error) {
        const std::scoped_lock lock(mutex);
        errors.push_back(error);
      }
    });
    return errors;
  }
  static std::string text_of(const RandomReader& file, std::int64_t offset, std::size_t count) {
    std::vector<std::byte> bytes(count);
    file.read_at(offset, bytes);
    return as_text(bytes);
  }

  std::vector<std::shared_ptr<MemoryState>> states_;
  std::vector<std::unique_ptr<LocalDisk>> disks_;
};

TEST_F(GroupStoreTest, ShowsAllRanksTheUnionOfWhatTheySee) {
  put(0, "/src/a", "1");
  put(1, "/src/b", "22");
  put(2, "/src/sub/c", "333");
  EXPECT_TRUE(run([&](GroupStore& store, int) {
                EXPECT_THAT(store.list("/src"), ElementsAre("a", "b", "sub"));
                EXPECT_THAT(store.list("/src/sub"), ElementsAre("c"));
                EXPECT_EQ(store.status("/src").kind, FileKind::kFolder);
                EXPECT_EQ(store.status("/src/b").bytes, 2);
                EXPECT_EQ(store.status("/src/absent").kind, FileKind::kAbsent);
                EXPECT_EQ(store.status("/nowhere/x").kind, FileKind::kAbsent);
                EXPECT_THAT(store.holders("/src/b"), ElementsAre(1));
              }).empty());
}

TEST_F(GroupStoreTest, ReadsSmallAndLargeRangesOfOtherRanksFiles) {
  std::string text;
  for (int i = 0; i < 3'000'000; ++i) text += static_cast<char>('a' + i % 26);
  put(1, "/src/large", text);
  EXPECT_TRUE(run([&](GroupStore& store, int) {
                const auto file = store.open_below("/src", "large");
                EXPECT_EQ(file->size(), 3'000'000);
                EXPECT_EQ(text_of(*file, 16'380, 10), text.substr(16'380, 10));  // Over the end of a block.
                EXPECT_EQ(text_of(*file, 2'999'999, 1), text.substr(2'999'999));
                EXPECT_EQ(text_of(*file, 5, 2'500'000), text.substr(5, 2'500'000));
                EXPECT_EQ(error_of([&] { text_of(*file, 2'999'999, 2); }).code(), ErrorCode::kCorruption);
              }).empty());
}

/// Records the largest amount that one operation transfers.
class NotingGroup final : public Group {
 public:
  explicit NotingGroup(Group& inner) : inner_(inner) {}
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  std::string_view backend() const override { return inner_.backend(); }
  void barrier() override { inner_.barrier(); }
  void broadcast(std::span<std::byte> data, int root) override { inner_.broadcast(data, root); }
  void all_gather(std::span<const std::byte> own, std::span<std::byte> all) override { inner_.all_gather(own, all); }
  void exchange(std::span<const std::span<const std::byte>> to, std::span<const std::span<std::byte>> from) override {
    std::size_t bytes = 0;
    for (const auto& piece : from) bytes += piece.size();
    most_received = std::max(most_received, bytes);
    inner_.exchange(to, from);
  }
  void set_timeout(std::chrono::milliseconds timeout) override { inner_.set_timeout(timeout); }
  void abort() noexcept override { inner_.abort(); }

  std::size_t most_received = 0;

 private:
  Group& inner_;
};

TEST_F(GroupStoreTest, ReceivesNoMoreAtOnceThanItsShareOfTheMemory) {
  constexpr int kMany = 6;
  constexpr std::size_t kLarge = 1 << 20;
  std::size_t most = 0;
  run_as_threads(kMany, [&](Group& group) {
    const auto state = std::make_shared<MemoryState>();
    const std::string name = "/src/" + std::to_string(group.rank());
    state->put(name, as_span(std::string(kLarge, static_cast<char>('a' + group.rank()))));
    const auto disk = make_memory_disk(state);
    GroupStore store(*disk, group.rank());
    NotingGroup noting(group);
    collective_step(noting, {.traffic = &store}, [&](const std::stop_token&) {
      if (group.rank() != 0) return;
      std::vector<std::jthread> threads;  // All request at once, each from a different rank.
      for (int rank = 1; rank < kMany; ++rank) {
        threads.emplace_back([&, rank] {
          const auto file = store.open("/src/" + std::to_string(rank));
          EXPECT_EQ(text_of(*file, 0, kLarge), std::string(kLarge, static_cast<char>('a' + rank)));
        });
      }
    });
    if (group.rank() == 0) most = noting.most_received;
  });
  EXPECT_GE(most, kLarge);
  EXPECT_LE(most, std::size_t{GroupStore::kMemoryBytes} / 3 + kMany);
}

TEST_F(GroupStoreTest, ServesARankThatAsksWhileOthersDoNot) {
  put(0, "/src/a", "hello");
  EXPECT_TRUE(run([&](GroupStore& store, int rank) {
                if (rank != 2) return;
                EXPECT_EQ(text_of(*store.open("/src/a"), 1, 3), "ell");
              }).empty());
}

TEST_F(GroupStoreTest, OpensARanksOwnFileOnItsDisk) {
  put(0, "/src/a", "hello");
  EXPECT_TRUE(run([&](GroupStore& store, int rank) {
                EXPECT_EQ(text_of(*store.open("/src/a"), 0, 5), "hello");
                const std::vector<std::string> log = states_[static_cast<std::size_t>(rank)]->log();
                EXPECT_EQ(std::ranges::count(log, "open /src/a") > 0, rank == 0) << rank;
              }).empty());
}

TEST_F(GroupStoreTest, RefusesFilesOfOneNameThatDifferInSize) {
  put(0, "/src/a", "1");
  put(2, "/src/a", "22");
  for (const Error& error : run([](GroupStore&store, int) { store.open("/src/a"); })) {
    EXPECT_EQ(error.code(), ErrorCode::kCorruption);
    EXPECT_THAT(error.what(), HasSubstr("ranks 0 and 2 have different files"));
    EXPECT_EQ(error.expected(), "1 bytes on rank 0");
    EXPECT_EQ(error.found(), "2 bytes on rank 2");
  }
}

TEST_F(GroupStoreTest, RefusesNamesThatLeadOutOfTheFolder) {
  put(0, "/secret", "1");
  for (const char* name : {"../secret", "/secret", "a/../../secret", "", "."}) {
    const std::vector<Error> errors = run([&](GroupStore& store, int) { store.open_below("/src", name); });
    ASSERT_EQ(errors.size(), 3U) << name;
    EXPECT_EQ(errors[0].code(), ErrorCode::kCorruption) << name;
  }
}

TEST_F(GroupStoreTest, AFileThatItsHolderCannotReadFailsTheStepThere) {
  put(1, "/src/a", "hello");
  bool is_first = true;
  std::mutex mutex;
  const std::vector<Error> errors = run([&](GroupStore& store, int rank) {
    const auto file = rank == 1 ? nullptr : store.open("/src/a");
    {
      const std::scoped_lock lock(mutex);
      if (std::exchange(is_first, false)) states_[1]->fail_at(states_[1]->calls(), true);
    }
    if (file != nullptr) text_of(*file, 0, 5);
  });
  ASSERT_EQ(errors.size(), 3U);
  for (const Error& error : errors) {
    EXPECT_EQ(error.code(), ErrorCode::kNotFound);
    EXPECT_EQ(error.rank(), 1);
  }
}

TEST_F(GroupStoreTest, WhatIsWrongWithAFileIsSaidByTheRankThatHoldsIt) {
  put(2, "/src/bad", "x");
  const std::vector<Error> errors = run([](GroupStore& store, int) {
    store.open("/src/bad");
    throw Error(ErrorCode::kCorruption, "bad header").in_file("bad");
  });
  ASSERT_EQ(errors.size(), 3U);
  for (const Error& error : errors) EXPECT_EQ(error.rank(), 2);
}

TEST_F(GroupStoreTest, AWaitEndsWhenAnotherRankFails) {
  const std::vector<Error> errors = run([](GroupStore& store, int rank) {
    if (rank == 0) throw Error(ErrorCode::kResource, "disk full");
    for (int i = 0;; ++i) store.status("/src/" + std::to_string(i));
  });
  ASSERT_EQ(errors.size(), 3U);
  for (const Error& error : errors) EXPECT_EQ(error.code(), ErrorCode::kResource);
}

TEST_F(GroupStoreTest, NothingIsAskedOutsideAStep) {
  GroupStore store(*disks_[0], 0);
  EXPECT_EQ(error_of([&] { store.status("/src"); }).code(), ErrorCode::kInterrupted);
}

}  // namespace
}  // namespace shard
