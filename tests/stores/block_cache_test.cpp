// Blocks of remote files: few requests, several at one time, within a limit of memory.
#include "libshard/stores/remote/block_cache.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <set>
#include <system_error>
#include <vector>

#include "libshard/core/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/without_threads.h"

namespace shard::stores {
namespace {

constexpr std::int64_t kMiB = 1 << 20;

std::byte byte_at(std::int64_t offset) { return static_cast<std::byte>((offset * 7 + offset / 4096) & 0xFF); }

/// A file whose fetches are counted.
struct CountedContent {
  explicit CountedContent(std::int64_t bytes, std::int64_t head = 64 << 10)
      : file(std::make_shared<BlockCache::File>(
            BlockCache::File{bytes, std::min(bytes, head),
                             [this](std::int64_t offset, std::span<std::byte> out) { fetch(offset, out); }})) {}

  void fetch(std::int64_t offset, std::span<std::byte> out) {
    const int now = ++running;
    int most = most_running;
    while (now > most && !most_running.compare_exchange_weak(most, now)) continue;
    for (int i = 0; i < 5000 && most_running < together; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    --running;
    if (fails > 0 && fails-- > 0) throw Error(ErrorCode::kNotFound, "unreachable");
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = byte_at(offset + static_cast<std::int64_t>(i));
    const std::scoped_lock lock(mutex);
    fetched.insert({offset, std::ssize(out)});
    ++fetches;
  }

  BlockCache::FilePtr file;
  std::mutex mutex;
  std::set<std::pair<std::int64_t, std::int64_t>> fetched;
  int together = 1;  ///< Fetches wait until this many have run at one time.
  std::atomic<int> fetches{0}, running{0}, most_running{0}, fails{0};
};

void expect_read(BlockCache& cache, const CountedContent& content, std::int64_t offset, std::int64_t bytes) {
  std::vector<std::byte> out(static_cast<std::size_t>(bytes));
  const RangedRead range{offset, out};
  cache.read(content.file, std::span(&range, 1));
  for (std::int64_t i = 0; i < bytes; i += 997) {
    ASSERT_EQ(out[static_cast<std::size_t>(i)], byte_at(offset + i)) << offset << " + " << i;
  }
}

TEST(BlockCache, DoesNotReadAheadWhatIsNotExpectedToBeRead) {
  CountedContent content(64 * kMiB);
  {
    BlockCache cache(48 * kMiB, 8, 2);
    cache.expect_no_reads(content.file, 16 * kMiB, 60 * kMiB);
    cache.expect_no_reads(content.file, 8 * kMiB, 16 * kMiB);
    for (std::int64_t at = 0; at < 8 * kMiB; at += kMiB) expect_read(cache, content, at, kMiB);
  }
  EXPECT_EQ(content.fetches, 4) << "the head, the first read and two blocks";
  BlockCache cache(48 * kMiB, 8, 2);
  cache.expect_no_reads(content.file, 8 * kMiB, 64 * kMiB);
  expect_read(cache, content, 20 * kMiB, kMiB);
}

TEST(BlockCache, SmallFilesAreReadOnceAndWhole) {
  CountedContent content(1000);
  BlockCache cache(48 * kMiB, 8, 2);
  for (int i = 0; i < 100; ++i) expect_read(cache, content, i * 10, 10);
  EXPECT_EQ(content.fetches, 1);
}

TEST(BlockCache, ReadsFailRatherThanWaitIfTheSystemStartsNoThread) {
  CountedContent content(1000), other(1000);
  BlockCache cache(48 * kMiB, 8, 2);
  {
    const test::WithoutThreads none;
    EXPECT_THROW(cache.start_head(content.file), std::system_error);
    EXPECT_THROW(expect_read(cache, content, 0, 1000), std::system_error);
  }
  expect_read(cache, content, 0, 1000);
  const test::WithoutThreads none;  // The first thread continues.
  expect_read(cache, other, 0, 1000);
}

TEST(BlockCache, HeaderOfALargeFileIsASmallRange) {
  CountedContent content(100 * kMiB);
  BlockCache cache(48 * kMiB, 8, 2);
  expect_read(cache, content, 0, 8);
  expect_read(cache, content, 8, 5000);
  EXPECT_EQ(content.fetched, (std::set<std::pair<std::int64_t, std::int64_t>>{{0, 64 << 10}}));
}

TEST(BlockCache, SequentialReadsRunAheadOverSeveralConnections) {
  CountedContent content(64 * kMiB);
  BlockCache cache(48 * kMiB, 8, 2);
  for (std::int64_t at = 0; at < 64 * kMiB; at += kMiB) expect_read(cache, content, at, kMiB);
  EXPECT_EQ(content.fetches, 18);  // The head, the first read, and the rest in blocks.
  EXPECT_LE(content.most_running, 8);
}

TEST(BlockCache, TwoReadersOfOneFileDoNotRemoveEachOthersBlocks) {
  CountedContent content(64 * kMiB);
  BlockCache cache(48 * kMiB, 8, 2);
  for (std::int64_t at = 0; at < 32 * kMiB; at += kMiB) {
    expect_read(cache, content, at, kMiB);
    expect_read(cache, content, 32 * kMiB + at, kMiB);
  }
  EXPECT_LE(content.fetches, 17 + 4);  // The first reader fills the memory before the second begins.
}

TEST(BlockCache, BlocksReadAheadRemainUntilTheyAreRead) {
  std::vector<std::unique_ptr<CountedContent>> contents;
  for (int i = 0; i < 40; ++i) contents.push_back(std::make_unique<CountedContent>(10 * kMiB));
  BlockCache cache(kMiB, 8, 1);  // Room for 16 heads.
  for (const auto& content : contents) cache.start_head(content->file);
  for (const auto& content : contents) expect_read(cache, *content, 0, 64 << 10);
  for (const auto& content : contents) EXPECT_EQ(content->fetches, 1);
}

TEST(BlockCache, ReadsAcrossBlocksAndToTheEndAreRight) {
  CountedContent content(9 * kMiB + 17);
  BlockCache cache(kMiB, 2, 1);
  expect_read(cache, content, 0, 9 * kMiB + 17);
  expect_read(cache, content, 9 * kMiB, 17);
  expect_read(cache, content, (64 << 10) - 1, 2);
}

TEST(BlockCache, ManyThreadsShareLittleMemory) {
  CountedContent content(8 * kMiB);
  BlockCache cache(256 << 10, 4, 8);
  std::vector<std::jthread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      for (std::int64_t at = 0; at < 8 * kMiB; at += 300'000) {
        expect_read(cache, content, (at + i * kMiB) % (7 * kMiB), 200'000);
      }
    });
  }
}

TEST(BlockCache, FailedFetchesAreTriedAgainByLaterReads) {
  CountedContent content(1000);
  BlockCache cache(kMiB, 2, 1);
  content.fails = 1;
  test::expect_error(ErrorCode::kNotFound, "unreachable", [&] { expect_read(cache, content, 0, 10); });
  expect_read(cache, content, 0, 10);
}

TEST(BlockCache, SeveralRangesAreFetchedAtOneTime) {
  CountedContent content(64 * kMiB);
  content.together = 4;
  BlockCache cache(48 * kMiB, 8, 2);
  std::vector<std::byte> out(40);
  std::vector<RangedRead> ranges;
  for (std::size_t i = 0; i < 4; ++i) {
    ranges.push_back({static_cast<std::int64_t>(i) * 12 * kMiB, std::span(out).subspan(i * 10, 10)});
  }
  cache.read(content.file, ranges);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(out[i * 10], byte_at(ranges[i].offset_bytes));
  EXPECT_EQ(content.most_running, 4);
}

TEST(BlockCache, AnnouncedReadsAreFetchedAtOneTime) {
  CountedContent content(64 * kMiB);
  content.together = 4;
  BlockCache cache(48 * kMiB, 8, 2);
  for (std::int64_t at = 10 * kMiB; at < 50 * kMiB; at += 10 * kMiB) cache.expect_read(content.file, at, at + kMiB / 2);
  for (std::int64_t at = 10 * kMiB; at < 50 * kMiB; at += 10 * kMiB) expect_read(cache, content, at, kMiB / 2);
  EXPECT_EQ(content.most_running, 4);
  EXPECT_EQ(content.fetches, 4);
}

TEST(BlockCache, AnnouncedReadsTakeFreeMemoryOnly) {
  CountedContent content(64 * kMiB);
  {
    BlockCache cache(kMiB, 8, 2);
    for (std::int64_t at = 0; at < 64 * kMiB; at += kMiB) cache.expect_read(content.file, at, at + (64 << 10));
  }
  EXPECT_LE(content.fetches, 16);
}

TEST(BlockCache, AFewBytesFarFromOthersTakeASmallBlock) {
  CountedContent content(64 * kMiB);
  BlockCache cache(48 * kMiB, 8, 2);
  std::vector<std::byte> out(16);
  const std::vector<RangedRead> far{{5 * kMiB - 4, std::span(out).first(8)}, {9 * kMiB, std::span(out).last(8)}};
  cache.read(content.file, far);
  EXPECT_EQ(out[3], byte_at(5 * kMiB - 1));
  EXPECT_EQ(out[4], byte_at(5 * kMiB));
  EXPECT_EQ(out[8], byte_at(9 * kMiB));
  std::int64_t bytes = 0;
  for (const auto& [offset, count] : content.fetched) bytes += count;
  EXPECT_EQ(content.fetches, 2);
  EXPECT_EQ(bytes, 3 * (64 << 10));
  // A read beside it shows that more follow.
  expect_read(cache, content, 9 * kMiB + (64 << 10), 8);
  EXPECT_TRUE(content.fetched.contains({9 * kMiB + (64 << 10), 3 * kMiB - (64 << 10)}));
  expect_read(cache, content, 8 * kMiB, 4 * kMiB);
  EXPECT_EQ(content.fetches, 4);
}

TEST(BlockCache, OnlyTheRestOfALongHeaderIsRead) {
  CountedContent content(64 * kMiB);
  BlockCache cache(48 * kMiB, 8, 2);
  expect_read(cache, content, 0, 8);
  expect_read(cache, content, 8, 150'000);
  EXPECT_EQ(content.fetched, (std::set<std::pair<std::int64_t, std::int64_t>>{{0, 64 << 10}, {64 << 10, 128 << 10}}));
}

TEST(BlockCache, StreamsThatTakeTurnsAreReadAhead) {
  CountedContent content(128 * kMiB);
  BlockCache cache(48 * kMiB, 8, 2);
  for (std::int64_t at = 0; at < 16 * kMiB; at += 4 * kMiB) {
    for (std::int64_t stream = 0; stream < 4; ++stream) {
      expect_read(cache, content, stream * 32 * kMiB + at, 4 * kMiB);
    }
  }
  EXPECT_LE(content.fetches, 17 + 4 + 8);
}

/// Two threads take the next tensor of a file in turn.
TEST(BlockCache, ReadersThatTakeTheNextPieceInTurnAreReadAheadLikeOne) {
  constexpr std::int64_t kPiece = 16 * kMiB, kPieces = 6;
  CountedContent content(kPiece * kPieces + 1000);
  BlockCache cache(48 * kMiB, 8, 2);
  for (std::int64_t pair = 0; pair < kPieces; pair += 2) {
    for (std::int64_t at = 0; at < kPiece; at += 2 * kMiB) {
      for (const std::int64_t piece : {pair, pair + 1}) {
        expect_read(cache, content, 1000 + piece * kPiece + at, 2 * kMiB);
      }
    }
  }
  EXPECT_LE(content.fetches, kPieces * 4 + 2 + 4) << "blocks were fetched twice";
}

/// The order of names may differ from that of a file, so a stream jumps in the middle of what was read ahead.
TEST(BlockCache, AStreamThatJumpsGetsTheMemoryOfWhatIsNoLongerRead) {
  CountedContent content(256 * kMiB);
  {
    BlockCache cache(48 * kMiB, 8, 2);
    for (std::int64_t at = 0; at < 16 * kMiB; at += kMiB) expect_read(cache, content, at, kMiB);
    for (std::int64_t at = 128 * kMiB; at < 204 * kMiB; at += kMiB) expect_read(cache, content, at, kMiB);
    const auto is_fetched = [&] {
      const std::scoped_lock lock(content.mutex);
      return content.fetched.contains({228 * kMiB, 4 * kMiB});
    };
    for (int i = 0; i < 5000 && !is_fetched(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_TRUE(is_fetched()) << "the seventh block after the last one";
  }
  EXPECT_LE(content.fetches, 1 + 5 + 8 + 20 + 8) << "blocks were fetched twice";
}

/// Each rank's file has a piece of every tensor, and a tensor is read as a whole, so that reads go from file to file.
/// The places of the pieces are found first, by a few bytes of each.
TEST(BlockCache, PiecesOfManyFilesThatAreReadInTurnsAreFetchedOnce) {
  constexpr std::int64_t kFiles = 64, kPieces = 4, kPiece = 512 << 10, kBetween = 700;
  std::vector<std::unique_ptr<CountedContent>> contents;
  for (std::int64_t i = 0; i < kFiles; ++i) {
    contents.push_back(std::make_unique<CountedContent>(kPieces * (kPiece + kBetween) + 20'000));
  }
  std::int64_t fetches = 0, bytes = 0;
  {
    BlockCache cache(48 * kMiB, 8, 2);
    for (const auto& content : contents) {
      for (std::int64_t piece = 0; piece < kPieces; ++piece) {
        expect_read(cache, *content, piece * (kPiece + kBetween), kBetween);
      }
    }
    for (std::int64_t piece = 0; piece < kPieces; ++piece) {
      for (const auto& content : contents) {
        expect_read(cache, *content, piece * (kPiece + kBetween) + kBetween, kPiece);
      }
    }
  }
  for (const auto& content : contents) {
    fetches += content->fetches;
    for (const auto& [offset, count] : content->fetched) bytes += count;
  }
  EXPECT_LE(bytes, kFiles * kPieces * kPiece * 5 / 4);
  EXPECT_LE(fetches, kFiles * kPieces * 3);
}

TEST(BlockCache, KnownHeadsNeedNoFetch) {
  CountedContent content(10 * kMiB);
  BlockCache cache(48 * kMiB, 8, 2);
  std::vector<std::byte> head(64 << 10);
  for (std::size_t i = 0; i < head.size(); ++i) head[i] = byte_at(static_cast<std::int64_t>(i));
  cache.put_head(content.file, head);
  expect_read(cache, content, 100, 1000);
  EXPECT_EQ(content.fetches, 0);
}

}  // namespace
}  // namespace shard::stores
