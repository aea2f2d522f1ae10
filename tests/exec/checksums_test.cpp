#include "libshard/exec/checksums.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "libshard/core/digest.h"
#include "libshard/core/error.h"

namespace shard {
namespace {

/// Storages of 100 and 70 bytes.
std::vector<Storage> two_storages() { return {{.offset = 0, .bytes = 100}, {.offset = 100, .bytes = 70}}; }

std::uint32_t crc_of(const std::vector<std::byte>& bytes, std::size_t begin, std::size_t end) {
  return crc32(std::span(bytes).subspan(begin, end - begin));
}

TEST(StorageChecksums, TakeBytesThatNobodyRecordsForZeros) {
  const std::vector<Storage> storages = two_storages();
  std::mt19937 random(4);
  for (int round = 0; round < 200; ++round) {
    StorageChecksums sums(storages);
    std::vector<std::byte> bytes(100);
    std::vector<std::pair<std::size_t, std::size_t>> parts;
    for (std::size_t begin = random() % 3 * 10; begin < 100;) {
      const std::size_t end = std::min<std::size_t>(100, begin + 1 + random() % 30);
      if (random() % 3 != 0) parts.emplace_back(begin, end);
      begin = end;
    }
    std::ranges::shuffle(parts, random);
    for (const auto& [begin, end] : parts) {
      for (std::size_t i = begin; i < end; ++i) bytes[i] = static_cast<std::byte>(random());
      sums.record(0, static_cast<std::int64_t>(begin), static_cast<std::int64_t>(end - begin),
                  crc_of(bytes, begin, end));
    }
    EXPECT_EQ(sums.crc32_of(0), crc32(bytes)) << "round " << round;
    EXPECT_EQ(sums.crc32_of(1), crc32(std::vector<std::byte>(70)));
  }
}

TEST(StorageChecksums, JoinWhatSeveralRanksRecorded) {
  const std::vector<Storage> storages = two_storages();
  std::vector<std::byte> bytes(70, std::byte{9});
  StorageChecksums mine(storages), other(storages);
  mine.record(1, 0, 20, crc_of(bytes, 0, 20));
  other.record(1, 50, 20, crc_of(bytes, 50, 70));
  other.record(1, 20, 30, crc_of(bytes, 20, 50));
  EXPECT_EQ(other.recorded().size(), 1U) << "runs that touch are one";
  mine.record_all(other.recorded());
  EXPECT_EQ(mine.crc32_of(1), crc32(bytes));
}

TEST(StorageChecksums, RefuseRunsThatCannotBe) {
  const std::vector<Storage> storages = two_storages();
  for (const CrcRun& run : {CrcRun{0, 10, 2, 0}, CrcRun{-1, 10, 0, 0}, CrcRun{0, 0, 0, 0}, CrcRun{61, 10, 1, 0},
                            CrcRun{0, 101, 0, 0}, CrcRun{INT64_MAX, 1, 0, 0}}) {
    EXPECT_FALSE(fits(run, storages));
    StorageChecksums sums(storages);
    EXPECT_THROW(sums.record_all(std::span(&run, 1)), Error);
  }
  EXPECT_TRUE(fits({60, 10, 1, 0}, storages));
  EXPECT_TRUE(fits({0, 100, 0, 0}, storages));
}

}  // namespace
}  // namespace shard
