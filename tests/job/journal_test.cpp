#include "libshard/job/journal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "libshard/core/error.h"
#include "libshard/io/local_disk.h"
#include "tests/support/memory_disk.h"

namespace shard {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kBatch = kLeastJournaledBytes;

class JournalTest : public ::testing::Test {
 protected:
  JournalTest() : state_(std::make_shared<MemoryState>()), disk_(make_memory_disk(state_)) {
    Storage storage;
    storage.bytes = 100;
    storage.crc32 = 7;
    sources_.push_back(storage);
  }

  JournalHead head() const {
    return {{3, 1 << 20}, {"1.0", {{"a", 5, 9, "ee"}, {"b", 6, 9, "ff"}}, "one file", "12ab"}};
  }

  std::unique_ptr<Journal> journal(const std::string& note = "/note") {
    return std::make_unique<Journal>(head(), [this, note] { return disk_->create(note); });
  }

  static TileRecord record(std::int64_t tile, std::int64_t bytes) {
    TileRecord made;
    made.tile = tile;
    made.bytes = bytes;
    made.crc = static_cast<std::uint32_t>(tile + 1000);
    made.cast_overflows = 2;
    made.sources = {{10, 20, 0, 99}};
    return made;
  }

  std::shared_ptr<MemoryState> state_;
  std::unique_ptr<LocalDisk> disk_;
  std::vector<Storage> sources_;
};

TEST_F(JournalTest, GivesBackWhatWasRecorded) {
  {
    const auto written = journal();
    written->add(record(4, kBatch));
    written->add(record(5, 1));
    written->end();
  }
  const auto head_read = read_journal_head(state_->content("/note"));
  ASSERT_TRUE(head_read);
  EXPECT_EQ(head_read->grid.threads, 3);
  EXPECT_EQ(head_read->grid.max_memory_bytes, 1 << 20);
  EXPECT_NO_THROW(expect_same_job(head_read->job, head().job));
  const auto resumed = journal("/other");
  resumed->read(state_->content("/note"), {0, 10}, sources_);
  for (const std::int64_t tile : {4, 5}) {
    const TileRecord* const before = resumed->written_before(tile);
    ASSERT_NE(before, nullptr);
    EXPECT_EQ(before->crc, tile + 1000);
    EXPECT_EQ(before->cast_overflows, 2);
    ASSERT_EQ(before->sources.size(), 1U);
    EXPECT_EQ(before->sources[0].offset_bytes, 10);
  }
  EXPECT_EQ(resumed->written_before(6), nullptr);
}

TEST_F(JournalTest, WritesNothingBeforeItIsWorthIt) {
  const auto written = journal();
  written->add(record(0, kBatch - 1));
  EXPECT_TRUE(state_->paths().empty());
  written->add(record(1, 1));
  EXPECT_EQ(state_->paths(), std::vector<std::string>{"/note"});
}

TEST_F(JournalTest, EveryCutEndsItAtABatch) {
  {
    const auto written = journal();
    for (int i = 0; i < 4; ++i) written->add(record(i, kBatch));
  }
  const std::vector<std::byte> whole = state_->content("/note");
  int known = 0;
  for (std::size_t bytes = 0; bytes <= whole.size(); ++bytes) {
    const auto resumed = journal("/other");
    resumed->read(std::span(whole).first(bytes), {0, 10}, sources_);
    int now = 0;
    while (resumed->written_before(now) != nullptr) ++now;
    EXPECT_GE(now, known);
    known = now;
  }
  EXPECT_EQ(known, 4);
}

TEST_F(JournalTest, NoFlippedBitIsBelieved) {
  {
    const auto written = journal();
    for (int i = 0; i < 2; ++i) written->add(record(i, kBatch));
  }
  const std::vector<std::byte> whole = state_->content("/note");
  for (std::size_t bit = 0; bit < whole.size() * 8; ++bit) {
    std::vector<std::byte> flipped = whole;
    flipped[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    const auto resumed = journal("/other");
    resumed->read(flipped, {0, 10}, sources_);
    for (int tile = 0; tile < 10; ++tile) {
      const TileRecord* const before = resumed->written_before(tile);
      if (before != nullptr) {
        EXPECT_EQ(before->crc, static_cast<std::uint32_t>(tile + 1000));
      }
    }
    EXPECT_EQ(resumed->written_before(1), nullptr) << bit;  // Behind the damage, wherever it is.
  }
}

TEST_F(JournalTest, TakesOverOnlyWhatFits) {
  {
    const auto written = journal();
    TileRecord strange = record(1, kBatch);
    strange.sources = {{90, 20, 0, 99}};  // Past the storage's end.
    written->add(strange);
    strange = record(2, kBatch);
    strange.sources = {{0, 20, 5, 99}};  // No such storage.
    written->add(strange);
    written->add(record(3, kBatch));
    written->add(record(9, kBatch));
  }
  const auto resumed = journal("/other");
  resumed->read(state_->content("/note"), {0, 9}, sources_);
  EXPECT_EQ(resumed->written_before(1), nullptr);
  EXPECT_EQ(resumed->written_before(2), nullptr);
  EXPECT_NE(resumed->written_before(3), nullptr);
  EXPECT_EQ(resumed->written_before(9), nullptr);
}

TEST_F(JournalTest, SaysInWhatJobsDiffer) {
  const auto text = [&](const std::function<void(JobIdentity&)>& change) {
    JobIdentity now = head().job;
    change(now);
    try {
      expect_same_job(head().job, now);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(text([](JobIdentity&) {}), "");
  EXPECT_THAT(text([](JobIdentity& job) { job.version = "2.0"; }), HasSubstr("a different version"));
  EXPECT_THAT(text([](JobIdentity& job) { job.source[1].bytes = 7; }), HasSubstr("source"));
  EXPECT_THAT(text([](JobIdentity& job) { job.source[0].modified_ns = 8; }), HasSubstr("source"));
  EXPECT_THAT(text([](JobIdentity& job) { job.source[0].ends = "fe"; }), HasSubstr("source"));
  EXPECT_THAT(text([](JobIdentity& job) { job.source.pop_back(); }), HasSubstr("source"));
  EXPECT_THAT(text([](JobIdentity& job) { job.target = "two files"; }), HasSubstr("a different output"));
  EXPECT_THAT(text([](JobIdentity& job) { job.plan = "34cd"; }), HasSubstr("differently"));
}

TEST_F(JournalTest, HeadsTravelByRank) {
  {
    const auto written = journal("/0"), other = journal("/1");
    written->add(record(0, kBatch));
    other->add(record(0, kBatch));
  }
  const std::vector<OutputNote> notes = {{journal_name(0, 7), state_->content("/0")},
                                         {journal_name(1, 7), state_->content("/1")},
                                         {journal_name(0, 2), state_->content("/1")},
                                         {"something.else", state_->content("/0")},
                                         {journal_name(0, 3), std::vector<std::byte>(40)}};
  const std::vector<Bytes> all = {heads_of(notes), Bytes()};
  const JournalHeads heads = read_heads(all);
  ASSERT_EQ(heads.size(), 2U);
  EXPECT_EQ(heads.begin()->first, 2);
  EXPECT_EQ(heads.at(7).job.target, "one file");
}

}  // namespace
}  // namespace shard
