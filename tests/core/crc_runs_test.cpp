#include "libshard/core/crc_runs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "libshard/core/digest.h"

namespace shard {
namespace {

std::vector<std::byte> content(std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 31 + 7);
  return bytes;
}

std::uint32_t crc_of(const std::vector<std::byte>& bytes, std::size_t begin, std::size_t end) {
  return crc32(std::span(bytes).subspan(begin, end - begin));
}

bool add(CrcRuns& runs, const std::vector<std::byte>& bytes, std::size_t begin, std::size_t end) {
  return runs.add(static_cast<std::int64_t>(begin), static_cast<std::int64_t>(end - begin), crc_of(bytes, begin, end));
}

TEST(CrcRuns, JoinPartsInAnyOrderToTheChecksumOfTheWhole) {
  const std::vector<std::byte> bytes = content(200);
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    std::vector<std::pair<std::size_t, std::size_t>> parts;
    for (std::size_t begin = 0; begin < bytes.size();) {
      const std::size_t end = std::min(bytes.size(), begin + 1 + random() % 40);
      parts.emplace_back(begin, end);
      begin = end;
    }
    std::ranges::shuffle(parts, random);
    CrcRuns runs;
    for (const auto& [begin, end] : parts) {
      EXPECT_FALSE(runs.covers(200));
      EXPECT_TRUE(add(runs, bytes, begin, end));
      std::int64_t last = -1;
      for (const auto& [offset, run] : runs.runs()) {  // Touching runs are one.
        EXPECT_GT(offset, last);
        last = offset + run.bytes;
        EXPECT_EQ(run.crc, crc_of(bytes, static_cast<std::size_t>(offset), static_cast<std::size_t>(last)));
      }
    }
    EXPECT_TRUE(runs.covers(200));
  }
}

TEST(CrcRuns, AddNothingThatOverlapsAKnownRun) {
  const std::vector<std::byte> bytes = content(100);
  CrcRuns runs;
  EXPECT_TRUE(add(runs, bytes, 20, 40));
  EXPECT_TRUE(add(runs, bytes, 60, 80));
  for (const auto& [begin, end] : {std::pair{20, 40}, {10, 21}, {39, 50}, {25, 30}, {0, 100}, {50, 61}, {79, 90}}) {
    EXPECT_FALSE(add(runs, bytes, static_cast<std::size_t>(begin), static_cast<std::size_t>(end)));
  }
  ASSERT_EQ(runs.runs().size(), 2U);
  EXPECT_EQ(runs.runs().at(20).bytes, 20);
  EXPECT_EQ(runs.runs().at(20).crc, crc_of(bytes, 20, 40));
  EXPECT_TRUE(add(runs, bytes, 40, 60)) << "what touches on both sides joins all";
  ASSERT_EQ(runs.runs().size(), 1U);
  EXPECT_EQ(runs.runs().at(20).crc, crc_of(bytes, 20, 80));
}

TEST(CrcRuns, KnowWhatOfARangeIsMissing) {
  const std::vector<std::byte> bytes = content(100);
  CrcRuns runs;
  add(runs, bytes, 20, 40);
  add(runs, bytes, 60, 80);
  const auto missing = [&](std::int64_t begin, std::int64_t end) {
    std::vector<std::pair<std::int64_t, std::int64_t>> parts;
    for (const auto& [from, to] : runs.missing(begin, end)) parts.emplace_back(from, to);
    return parts;
  };
  using Parts = std::vector<std::pair<std::int64_t, std::int64_t>>;
  EXPECT_EQ(missing(0, 100), (Parts{{0, 20}, {40, 60}, {80, 100}}));
  EXPECT_EQ(missing(0, 20), (Parts{{0, 20}}));
  EXPECT_EQ(missing(20, 40), Parts());
  EXPECT_EQ(missing(25, 30), Parts());
  EXPECT_EQ(missing(39, 61), (Parts{{40, 60}}));
  EXPECT_EQ(missing(45, 55), (Parts{{45, 55}}));
  EXPECT_EQ(missing(80, 90), (Parts{{80, 90}}));
}

TEST(CrcRuns, CoverOnlyFromTheBeginToTheEnd) {
  const std::vector<std::byte> bytes = content(100);
  CrcRuns runs;
  EXPECT_FALSE(runs.covers(0));
  add(runs, bytes, 0, 99);
  EXPECT_FALSE(runs.covers(100));
  EXPECT_TRUE(runs.covers(99));
  CrcRuns late;
  add(late, bytes, 1, 100);
  EXPECT_FALSE(late.covers(100));
}

}  // namespace
}  // namespace shard
