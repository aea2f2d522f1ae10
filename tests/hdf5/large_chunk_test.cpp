#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <random>

#include "tests/hdf5/applied_filters.h"
#include "tests/support/expect_error.h"

namespace shard::hdf5 {
namespace {

using test::error_of;
using ::testing::HasSubstr;
using namespace shard::hdf5::testing;

constexpr std::size_t kLarge = static_cast<std::size_t>(kWholeChunk) + 4099;

std::vector<std::vector<Filter>> pipelines() {
  return {{},
          {kDeflated},
          {shuffled(4)},
          {kSummed},
          {shuffled(4), kDeflated},
          {shuffled(8), kDeflated, kSummed},
          {kSummed, shuffled(4), kDeflated},
          {shuffled(3), kSummed, kDeflated},
          {kDeflated, shuffled(4)},
          {kDeflated, kSummed, kDeflated},
          {shuffled(64), kDeflated}};
}

TEST(LargeChunk, ReadsInOrderGiveAllBytes) {
  const std::string text = sample(kLarge);
  for (const std::vector<Filter>& filters : pipelines()) {
    const StoredChunk stored(filtered(text, filters), text.size(), filters);
    const auto view = stored.view();
    std::string all;
    while (all.size() < text.size()) {
      all +=
          read(*view, static_cast<std::int64_t>(all.size()), std::min<std::size_t>(100003, text.size() - all.size()));
    }
    EXPECT_TRUE(all == text) << filters.size();
    EXPECT_LE(view->held_bytes(), 40 << 20);
  }
}

TEST(LargeChunk, ReadsInAnyOrderGiveTheSameBytes) {
  const std::string text = sample(kLarge);
  for (const std::vector<Filter>& filters : pipelines()) {
    const StoredChunk stored(filtered(text, filters), text.size(), filters);
    const auto view = stored.view();
    std::mt19937 random(1);
    for (int i = 0; i < 30; ++i) {
      const std::size_t offset = random() % text.size();
      const std::size_t bytes = random() % std::min<std::size_t>(300000, text.size() - offset);
      ASSERT_TRUE(read(*view, static_cast<std::int64_t>(offset), bytes) == text.substr(offset, bytes));
    }
  }
}

TEST(LargeChunk, NothingIsReadBeforeTheFirstRead) {
  const StoredChunk stored(deflate(sample(kLarge)), kLarge, {kDeflated});
  const auto view = stored.view();
  EXPECT_EQ(view->size(), static_cast<std::int64_t>(kLarge));
  EXPECT_EQ(view->held_bytes(), 0);
  EXPECT_EQ(stored.file->reads(), 0);
}

TEST(LargeChunk, AChecksumIsComparedBeforeTheFirstByte) {
  const std::string text = sample(kLarge);
  for (const std::vector<Filter>& filters : {std::vector{kSummed},
                                             {kSummed, kDeflated},
                                             {shuffled(4), kDeflated, kSummed},
                                             {kSummed, shuffled(4), kDeflated}}) {
    std::string stored;
    for (const Filter& filter : filters) {
      stored = filtered(stored.empty() ? text : stored, std::span(&filter, 1));
      if (filter.kind == FilterKind::kFletcher32) stored[stored.size() - 6] ^= 1;
    }
    const auto view = StoredChunk(stored, text.size(), filters).view();
    const Error error = error_of([&] { read(*view, 0, 1); });
    EXPECT_EQ(error.kind(), FindingKind::kCrcMismatch);
    EXPECT_THAT(error.what(), HasSubstr("chunk (0, 1) of dataset /w"));
    EXPECT_EQ(error.file(), "a.h5");
  }
}

TEST(LargeChunk, WrongLengthsAreNamed) {
  const std::string text = sample(kLarge), stream = deflate(text);
  const auto check = [](const StoredChunk& stored) {
    const auto view = stored.view();
    const Error error = error_of([&] { read(*view, 0, static_cast<std::size_t>(stored.chunk.bytes)); });
    EXPECT_EQ(error.code(), ErrorCode::kCorruption);
    EXPECT_THAT(error.what(), HasSubstr("chunk (0, 1) of dataset /w"));
  };
  for (const std::vector<Filter>& filters : {std::vector{kDeflated}, {shuffled(4), kDeflated}}) {
    check({stream, kLarge + 1, filters});
    check({stream, kLarge - 1, filters});
    check({stream + "x", kLarge, filters});
    check({stream.substr(0, stream.size() - 1), kLarge, filters});
    check({stream.substr(0, stream.size() / 2), kLarge, filters});
    check({"", kLarge, filters});
  }
  check({text, kLarge + 1, {}});
  check({text, kLarge, {kSummed}});
  check({deflate("abc"), kLarge, {kDeflated, kDeflated}});
  check({deflate(std::string(3 * kLarge, 'a')), kLarge, {kDeflated, kDeflated}});
}

TEST(LargeChunk, DamageOfAShuffledStreamIsFoundBeforeTheFirstByte) {
  const std::vector<Filter> filters{shuffled(4), kDeflated};
  std::string stored = filtered(sample(kLarge), filters);
  stored.back() ^= 1;  // The offset of the Adler-32.
  const auto view = StoredChunk(stored, kLarge, filters).view();
  EXPECT_EQ(error_of([&] { read(*view, 0, 1); }).code(), ErrorCode::kCorruption);
}

TEST(LargeChunk, ShuffledElementsOfManyBytesAreRefused) {
  const auto view = StoredChunk(deflate(sample(kLarge)), kLarge, {shuffled(65), kDeflated}).view();
  const Error error = error_of([&] { read(*view, 0, 1); });
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(error.why(), HasSubstr("65 bytes"));
}

/// Byte k of element i of the chunk below.
char byte_of(std::size_t element, std::size_t k) { return static_cast<char>(element >> (6 * k)); }

/// A chunk whose bytes never are in memory at once, shuffled and deflated.
std::string deflated_planes(std::size_t elements, std::size_t width) {
  z_stream stream{};
  EXPECT_EQ(deflateInit(&stream, 1), Z_OK);
  std::string out, plane(elements, '\0');
  std::vector<char> block(1 << 20);
  for (std::size_t k = 0; k < width; ++k) {
    for (std::size_t i = 0; i < elements; ++i) plane[i] = byte_of(i, k);
    stream.next_in = reinterpret_cast<Bytef*>(plane.data());
    stream.avail_in = static_cast<uInt>(plane.size());
    do {
      stream.next_out = reinterpret_cast<Bytef*>(block.data());
      stream.avail_out = static_cast<uInt>(block.size());
      ::deflate(&stream, k + 1 == width ? Z_FINISH : Z_NO_FLUSH);
      out.append(block.data(), block.size() - stream.avail_out);
    } while (stream.avail_out == 0);
  }
  deflateEnd(&stream);
  return out;
}

/// KiB that /proc/self/status states.
std::int64_t status_kib(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(name + ":")) return std::stoll(line.substr(name.size() + 1));
  }
  return 0;
}

TEST(LargeChunk, AChunkOf256MiBTakesLessThan64) {
  constexpr std::size_t kWidth = 8, kElements = (256 << 20) / kWidth;
  const StoredChunk stored(deflated_planes(kElements, kWidth), kElements * kWidth, {shuffled(kWidth), kDeflated});
  if (!(std::ofstream("/proc/self/clear_refs") << 5 << std::flush)) GTEST_SKIP() << "the kernel counts no peak";
  const std::int64_t before = status_kib("VmRSS");
  const auto view = stored.view();
  for (std::size_t first = 0; first < kElements; first += 1 << 17) {
    const std::string block = read(*view, static_cast<std::int64_t>(first * kWidth), (1 << 17) * kWidth);
    for (std::size_t i = 0; i < block.size(); i += 1021) {
      ASSERT_EQ(block[i], byte_of(first + i / kWidth, i % kWidth));
    }
  }
  EXPECT_LT(status_kib("VmHWM") - before, 64 << 10);
  EXPECT_LT(view->held_bytes(), 40 << 20);
}

}  // namespace
}  // namespace shard::hdf5
