// The steps of a commit and of its reversal: prepared, committed, rolled back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "libshard/core/error.h"
#include "libshard/io/local_disk.h"
#include "libshard/io/local_output.h"
#include "tests/support/bytes.h"
#include "tests/support/expect_error.h"
#include "tests/support/memory_disk.h"

namespace shard {
namespace {

using test::as_span;
using test::as_text;
using ::testing::ElementsAre;

/// A staged output of one file "a" with the content "new", in a folder or as DST itself.
class OutputSteps : public ::testing::TestWithParam<std::pair<bool, bool>> {
 protected:
  OutputSteps() {
    state_->without_exchange(!GetParam().second);
    disk_ = make_memory_disk(state_);
  }
  static bool is_folder() { return GetParam().first; }
  static std::string file() { return is_folder() ? "/out/a" : "/out"; }

  void stage(bool force) {
    store_ = local_output(*disk_, "/out", {}, {.force = force});
    const OutputFile file{"a", 3};
    output_ = store_->begin(std::span(&file, 1), is_folder());
    const auto part = store_->part(output_->token());
    part->create(file).write_at(0, as_span("new"));
    part->finish();
  }
  std::string content() const { return as_text(state_->content(file())); }

  std::shared_ptr<MemoryState> state_ = std::make_shared<MemoryState>();
  std::unique_ptr<LocalDisk> disk_;
  std::unique_ptr<OutputStore> store_;
  std::unique_ptr<Output> output_;
};

TEST_P(OutputSteps, PreparingShowsNothing) {
  stage(false);
  output_->prepare();
  EXPECT_EQ(disk_->status("/out").kind, FileKind::kAbsent);
  output_->commit();
  EXPECT_EQ(content(), "new");
}

TEST_P(OutputSteps, TakingBackBringsTheOldContent) {
  state_->put(file(), as_span("old"));
  stage(true);
  output_->commit();
  EXPECT_EQ(content(), "new");
  output_->take_back();
  EXPECT_EQ(content(), "old");
  EXPECT_EQ(state_->paths().size(), is_folder() ? 2U : 1U);
}

TEST_P(OutputSteps, TakingBackLeavesNothingWhereNothingWas) {
  stage(false);
  output_->commit();
  output_->take_back();
  EXPECT_THAT(state_->paths(), ElementsAre());
}

TEST_P(OutputSteps, ACommitIsFinalOnceTheOutputIsGone) {
  state_->put(file(), as_span("old"));
  stage(true);
  output_->commit();
  output_.reset();
  EXPECT_EQ(content(), "new");
  EXPECT_EQ(state_->paths().size(), is_folder() ? 2U : 1U);
}

TEST_P(OutputSteps, WhatAppearsAfterThePreparationIsNotReplaced) {
  stage(false);
  output_->prepare();
  state_->put(file(), as_span("other"));
  test::expect_error(ErrorCode::kExists, "exists", [&] { output_->commit(); });
  EXPECT_EQ(content(), "other");
}

INSTANTIATE_TEST_SUITE_P(FoldersAndFiles, OutputSteps,
                         ::testing::Values(std::pair{true, true}, std::pair{true, false}, std::pair{false, true},
                                           std::pair{false, false}));

/// An old destination on a rank that gets no file.
class OutputRemoval : public ::testing::TestWithParam<std::string> {
 protected:
  OutputRemoval() { state_->put(GetParam(), as_span("old")); }
  std::unique_ptr<Output> begin() const { return local_output(*disk_, "/out", {}, {.force = true})->begin_removal(); }
  bool is_there() const { return disk_->status("/out").kind != FileKind::kAbsent; }

  std::shared_ptr<MemoryState> state_ = std::make_shared<MemoryState>();
  std::unique_ptr<LocalDisk> disk_ = make_memory_disk(state_);
};

TEST_P(OutputRemoval, HappensWithTheCommitAndIsFinalOnceTheOutputIsGone) {
  const auto output = begin();
  output->prepare();
  EXPECT_TRUE(is_there());
  output->commit();
  EXPECT_FALSE(is_there());
  output->abort();
  EXPECT_THAT(state_->paths(), ElementsAre());
}

TEST_P(OutputRemoval, IsTakenBack) {
  auto output = begin();
  output->commit();
  output->take_back();
  output.reset();
  EXPECT_EQ(as_text(state_->content(GetParam())), "old");
  EXPECT_TRUE(is_there());
}

TEST_P(OutputRemoval, OfAnOutputThatIsNotCommittedDoesNotHappen) {
  begin()->prepare();
  EXPECT_EQ(as_text(state_->content(GetParam())), "old");
}

TEST_P(OutputRemoval, EndsInAnErrorAndTheOldDestinationWhereACallFails) {
  int failures = 0;
  for (std::int64_t call = 0;; ++call) {
    const auto output = begin();
    const std::int64_t first = state_->calls();
    state_->fail_at(first + call);
    try {
      output->commit();
    } catch (const Error&) {
      ++failures;
      EXPECT_TRUE(is_there()) << "call " << call;
    }
    const bool was_reached = state_->calls() > first + call;
    state_->fail_at(-1);
    if (!was_reached) break;
  }
  EXPECT_EQ(failures, 3);  // Failures of stat, rename and sync.
}

TEST_P(OutputRemoval, KeepsTheOldDestinationUnderItsOtherNameIfItCannotBePutBack) {
  auto output = begin();
  const std::int64_t first = state_->calls();
  state_->fail_at(first + 2);  // The sync after the rename, and the rename back.
  state_->fail_also_at(first + 3);
  test::expect_error(ErrorCode::kResource, "injected failure of call", [&] { output->commit(); });
  output.reset();
  EXPECT_FALSE(is_there());
  EXPECT_THAT(state_->paths(), ::testing::Contains(::testing::StartsWith("/.out.shardctl-old-")));
}

INSTANTIATE_TEST_SUITE_P(FoldersAndFiles, OutputRemoval, ::testing::Values("/out", "/out/a"));

TEST(OutputRemovals, AreNothingWhereNothingStandsAndRefusedWithoutForce) {
  const auto state = std::make_shared<MemoryState>();
  const auto disk = make_memory_disk(state);
  const auto store = local_output(*disk, "/out", {}, {});
  EXPECT_EQ(store->begin_removal(), nullptr);
  state->put("/out", as_span("other"));
  test::expect_error(ErrorCode::kExists, "exists", [&] { store->begin_removal(); });
}

TEST(OutputPlace, IsTheSameForOneDestinationAndDiffersBetweenDisks) {
  const auto one = make_memory_disk(std::make_shared<MemoryState>());
  const auto two = make_memory_disk(std::make_shared<MemoryState>());
  const auto place = [](LocalDisk& disk, const char* path) { return local_output(disk, path, {}, {})->place(); };
  EXPECT_EQ(place(*one, "/out"), place(*one, "/out"));
  EXPECT_NE(place(*one, "/out"), place(*one, "/out2"));
  EXPECT_NE(place(*one, "/out"), place(*two, "/out"));
}

}  // namespace
}  // namespace shard
