#include "formats/hdf5/chunk_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <thread>

#include "tests/hdf5/applied_filters.h"
#include "tests/hdf5/golden_chunks.h"
#include "tests/support/expect_error.h"

namespace shard::hdf5 {
namespace {

using test::error_of;
using ::testing::HasSubstr;
using namespace shard::hdf5::testing;
using namespace std::string_literals;

std::string to_string(std::span<const Filter> filters) {
  std::string text;
  for (const Filter& filter : filters) {
    if (filter.kind == FilterKind::kDeflate) text += "deflate ";
    if (filter.kind == FilterKind::kLzf) text += "lzf ";
    if (filter.kind == FilterKind::kShuffle) text += "shuffle" + std::to_string(filter.parameter) + " ";
    if (filter.kind == FilterKind::kFletcher32) text += "fletcher32 ";
  }
  return text;
}

std::string from_hex(const std::string& hex) {
  std::string text;
  for (std::size_t i = 0; i < hex.size(); i += 2)
    text.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), {}, 16)));
  return text;
}

/// Every order of up to three different filters, and some of two equal ones.
std::vector<std::vector<Filter>> pipelines() {
  std::vector<std::vector<Filter>> all;
  for (const std::uint32_t width : {1U, 2U, 3U, 4U, 8U, 16U, 100U}) {
    std::vector<Filter> three{kDeflated, shuffled(width), kSummed};
    std::vector<int> order{0, 1, 2};
    do {
      for (std::size_t count = 0; count <= 3; ++count) {
        std::vector<Filter> filters;
        for (std::size_t i = 0; i < count; ++i) filters.push_back(three[static_cast<std::size_t>(order[i])]);
        all.push_back(filters);
      }
    } while (std::ranges::next_permutation(order).found);
  }
  all.push_back({kDeflated, kDeflated, kSummed, kDeflated});
  for (const std::uint32_t width : {1U, 4U, 16U}) {
    all.push_back({kLzf});
    all.push_back({shuffled(width), kLzf});
    all.push_back({shuffled(width), kLzf, kSummed});
    all.push_back({kSummed, kLzf, shuffled(width), kDeflated});
    all.push_back({kDeflated, kLzf});
  }
  all.push_back({shuffled(4), kSummed, shuffled(8), kSummed, kDeflated});
  return all;
}

TEST(ChunkView, EveryOrderOfFiltersIsUndone) {
  for (const std::vector<Filter>& filters : pipelines()) {
    for (const std::size_t bytes : {0, 1, 7, 100, 4800, 100003}) {
      const std::string text = sample(bytes);
      const StoredChunk stored(filtered(text, filters), bytes, filters);
      EXPECT_TRUE(read(*stored.view(), 0, bytes) == text) << to_string(filters) << bytes;
    }
  }
}

TEST(ChunkView, LzfStreamsOfOtherBytesAreRefused) {
  const auto why = [](const std::string& stored, std::size_t bytes) {
    const StoredChunk chunk(stored, bytes, {kLzf});
    const Error error = error_of([&] { read(*chunk.view(), 0, bytes); });
    EXPECT_EQ(error.code(), ErrorCode::kCorruption);
    return error.why();
  };
  EXPECT_THAT(why("\x20\x00"s, 3), HasSubstr("before its start"));
  EXPECT_THAT(why("\x00z\x20\x01"s, 4), HasSubstr("before its start"));
  EXPECT_THAT(why("\x02zz"s, 3), HasSubstr("truncated"));
  EXPECT_THAT(why("\x00z\xE0"s, 30), HasSubstr("truncated"));
  EXPECT_THAT(why("\x00z\x20"s, 30), HasSubstr("truncated"));
  EXPECT_THAT(why("\x00z"s, 2), HasSubstr("fewer bytes"));
  EXPECT_THAT(why("\x00z\xE0\xFF\x00"s, 100), HasSubstr("more bytes"));
  EXPECT_THAT(why("\x01zy\x00x"s, 2), HasSubstr("more bytes"));
}

TEST(ChunkView, SkippedFiltersAreNotUndone) {
  const std::vector<Filter> filters{shuffled(4), kDeflated, kSummed};
  const std::string text = sample(4800);
  for (std::uint32_t skipped = 0; skipped < 8; ++skipped) {
    const StoredChunk stored(filtered(text, filters, skipped), text.size(), filters, skipped);
    EXPECT_TRUE(read(*stored.view(), 0, text.size()) == text) << skipped;
  }
}

TEST(ChunkView, ChunksOfH5pyAreRead) {
  for (const GoldenChunk& golden : golden_chunks()) {
    const std::string elements = from_hex(golden.elements);
    const StoredChunk stored(from_hex(golden.stored), elements.size(), golden.filters);
    EXPECT_TRUE(read(*stored.view(), 0, elements.size()) == elements) << golden.name;
  }
}

TEST(ChunkView, SumsOfHdf5Before163FitToo) {
  std::string stored = summed(sample(4800));
  std::swap(stored[4800], stored[4801]), std::swap(stored[4802], stored[4803]);
  EXPECT_TRUE(read(*StoredChunk(stored, 4800, {kSummed}).view(), 0, 4800) == sample(4800));
}

TEST(ChunkView, SumsOfBytesAboveAllAreRight) {
  for (const std::size_t bytes : {719, 720, 721, 722, 100000}) {
    const std::string text(bytes, '\xff');
    EXPECT_TRUE(read(*StoredChunk(summed(text), bytes, {kSummed}).view(), 0, bytes) == text) << bytes;
  }
}

TEST(ChunkView, AChunkIsReadFromTheFileOnce) {
  const std::vector<Filter> filters{shuffled(4), kDeflated, kSummed};
  const std::string text = sample(100000);
  const StoredChunk stored(filtered(text, filters), text.size(), filters);
  const auto view = stored.view();
  EXPECT_EQ(stored.file->reads(), 0);
  std::mt19937 random(1);
  for (int i = 0; i < 1000; ++i) {
    const std::size_t offset = random() % text.size(), bytes = random() % (text.size() - offset);
    ASSERT_TRUE(read(*view, static_cast<std::int64_t>(offset), bytes) == text.substr(offset, bytes));
  }
  EXPECT_EQ(stored.file->reads(), 1);
  EXPECT_EQ(view->size(), 100000);
  EXPECT_EQ(view->held_bytes(), 100000);
}

TEST(ChunkView, ThreadsShareOneDecoding) {
  const std::string text = sample(1 << 20);
  const StoredChunk stored(deflate(text), text.size(), {kDeflated});
  const auto view = stored.view();
  std::vector<std::string> parts(8);
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      threads.emplace_back([&, i] { parts[i] = read(*view, static_cast<std::int64_t>(i << 17), 1 << 17); });
    }
  }
  std::string all;
  for (const std::string& part : parts) all += part;
  EXPECT_TRUE(all == text);
  EXPECT_EQ(stored.file->reads(), 1);
}

Error failure(const StoredChunk& stored) {
  return error_of([&] { read(*stored.view(), 0, static_cast<std::size_t>(stored.chunk.bytes)); });
}

TEST(ChunkView, WrongLengthsAreNamed) {
  const std::string text = sample(4800), stream = deflate(text);
  const auto check = [](const Error& error, std::string_view why) {
    EXPECT_EQ(error.code(), ErrorCode::kCorruption);
    EXPECT_THAT(error.what(), HasSubstr("cannot decode chunk (0, 1) of dataset /w"));
    EXPECT_THAT(error.why(), HasSubstr(why));
    EXPECT_EQ(error.file(), "a.h5");
  };
  check(failure({stream, 4801, {kDeflated}}), "decodes to fewer bytes than the chunk");
  check(failure({stream, 4799, {kDeflated}}), "decodes to more bytes than the chunk");
  check(failure({stream, 0, {kDeflated}}), "decodes to more bytes than the chunk");
  check(failure({stream + "x", 4800, {kDeflated}}), "bytes follow its deflate stream");
  check(failure({stream.substr(0, stream.size() - 1), 4800, {kDeflated}}), "is truncated");
  check(failure({"", 4800, {kDeflated}}), "is truncated");
  check(failure({"", 0, {kDeflated}}), "is truncated");
  check(failure({text, 4801, {}}), "its stored size does not fit");
  check(failure({text, 4799, {shuffled(4)}}), "its stored size does not fit");
  check(failure({text, 4800, {kSummed}}), "its stored size does not fit");
  check(failure({deflate("abc"), 0, {kSummed, kDeflated}}), "decodes to fewer bytes than the chunk");
  check(failure({deflate("abc"), 0, {kDeflated, kSummed, kDeflated}}), "shorter than its checksum");
  check(failure({text, 4800, {shuffled(0)}}), "elements of 0 bytes");
  check(failure({deflate(std::string(1 << 20, 'a')), 100, {kDeflated, kDeflated}}), "decodes to more bytes");
}

TEST(ChunkView, AStreamFarLongerThanItsChunkIsNotEvenRead) {
  const StoredChunk stored(std::string(1 << 20, 'a'), 1000, {kDeflated});
  EXPECT_THAT(failure(stored).why(), HasSubstr("its stored size does not fit"));
  EXPECT_EQ(stored.file->reads(), 0);
}

TEST(ChunkView, AFailureIsRepeated) {
  const StoredChunk stored("no stream", 100, {kDeflated});
  const auto view = stored.view();
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(error_of([&] { read(*view, 0, 1); }).why(), HasSubstr("not a zlib stream"));
  }
}

TEST(ChunkView, DifferingSumsAreNamed) {
  const std::string text = sample(4800);
  std::string stored = summed(text);
  stored[100] = static_cast<char>(stored[100] + 1);
  EXPECT_EQ(failure({stored, 4800, {kSummed}}).kind(), FindingKind::kCrcMismatch);
  stored = deflate(text);
  stored.back() = static_cast<char>(stored.back() + 1);
  EXPECT_EQ(failure({stored, 4800, {kDeflated}}).kind(), FindingKind::kCrcMismatch);
}

// A sum or deflate's Adler-32 covers all bytes, so a result without failure must be right. fletcher32 does not
// distinguish a word of 0 from one of 65535.
TEST(ChunkView, NoChangedByteGivesOtherData) {
  const std::vector<std::vector<Filter>> covered{{kDeflated},
                                                 {shuffled(4), kDeflated},
                                                 {shuffled(4), kDeflated, kSummed},
                                                 {kSummed},
                                                 {kSummed, shuffled(4), kDeflated}};
  for (const std::vector<Filter>& filters : covered) {
    const std::string text = sample(600), whole = filtered(text, filters);
    int accepted = 0;
    for (std::size_t i = 0; i < whole.size(); ++i) {
      for (const int change : {1, 0x80, 0xff}) {
        std::string stored = whole;
        stored[i] = static_cast<char>(stored[i] ^ change);
        try {
          ASSERT_TRUE(read(*StoredChunk(stored, text.size(), filters).view(), 0, text.size()) == text)
              << to_string(filters) << i;
          ++accepted;
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ErrorCode::kCorruption);
        }
      }
    }
    // The stream's header contains the level, and the last bits are padding.
    EXPECT_LT(accepted, 8) << to_string(filters);
  }
}

TEST(ConstantView, RepeatsItsElement) {
  const auto check = [](const std::string& fill, const std::string& all) {
    const auto view = constant_view(std::as_bytes(std::span(fill)), static_cast<std::int64_t>(all.size()), "a.h5");
    for (std::size_t begin = 0; begin <= all.size(); ++begin) {
      for (std::size_t bytes = 0; begin + bytes <= all.size(); ++bytes) {
        ASSERT_EQ(read(*view, static_cast<std::int64_t>(begin), bytes), all.substr(begin, bytes));
      }
    }
    EXPECT_EQ(view->name(), "a.h5");
    EXPECT_EQ(view->size(), static_cast<std::int64_t>(all.size()));
    EXPECT_EQ(error_of([&] { read(*view, 1, all.size()); }).kind(), FindingKind::kOutOfBounds);
  };
  check("", std::string(40, '\0'));
  check("a", std::string(40, 'a'));
  check("aa", std::string(40, 'a'));
  check("abc", "abcabcabcabcabcabcabcabcabc");
  check("abcdefgh", "abcdefghabcdefghabcdefgh");
}

}  // namespace
}  // namespace shard::hdf5
