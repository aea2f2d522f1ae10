#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "libshard/core/digest.h"
#include "libshard/core/error.h"
#include "libshard/exec/checksums.h"
#include "tests/support/memory_checkpoint.h"

namespace shard {
namespace {

constexpr std::int64_t kBytes = 1000;

std::vector<std::byte> content() {
  std::vector<std::byte> bytes(kBytes);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7);
  return bytes;
}

Catalog one_storage(std::optional<std::uint32_t> crc) {
  Catalog catalog;
  catalog.files.push_back({"w.pt", kBytes, -1});
  catalog.storages.push_back({.offset = 0, .bytes = kBytes, .crc32 = crc});
  return catalog;
}

struct Range {
  std::int64_t begin, end;
};

/// Ranges that cover the content, in random order, some of them twice.
std::vector<Range> random_ranges(std::mt19937& random) {
  std::vector<Range> ranges;
  for (std::int64_t begin = 0; begin < kBytes;) {
    const std::int64_t end = std::min<std::int64_t>(kBytes, begin + 1 + static_cast<std::int64_t>(random() % 200));
    ranges.push_back({begin, end});
    if (random() % 4 == 0) ranges.push_back({begin, end});
    begin = end;
  }
  std::ranges::shuffle(ranges, random);
  return ranges;
}

void add(SourceChecks& checks, std::int64_t offset_bytes, std::span<const std::byte> bytes) {
  checks.add(0, std::vector<ReadBytes>{{offset_bytes, bytes}});
}

bool finds_damage(SourceChecks& checks, const std::vector<std::byte>& bytes, const std::vector<Range>& ranges) {
  try {
    for (const auto& [begin, end] : ranges) {
      add(checks, begin,
          std::span(bytes).subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin)));
    }
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCorruption);
    EXPECT_EQ(error.kind(), FindingKind::kCrcMismatch);
    EXPECT_EQ(error.file(), "w.pt");
    return true;
  }
  return false;
}

TEST(SourceChecks, FindAFlippedBitInWhateverPiecesItIsRead) {
  std::mt19937 random(7);
  const Catalog catalog = one_storage(crc32(content()));
  for (int round = 0; round < 200; ++round) {
    std::vector<std::byte> bytes = content();
    const bool is_damaged = round % 2 == 1;
    if (is_damaged) bytes[random() % bytes.size()] ^= std::byte{1};
    SourceChecks checks(catalog);
    EXPECT_EQ(finds_damage(checks, bytes, random_ranges(random)), is_damaged);
  }
}

TEST(SourceChecks, JoinWhatSeveralRanksRead) {
  std::mt19937 random(8);
  const Catalog catalog = one_storage(crc32(content()));
  std::vector<std::byte> bytes = content();
  bytes[500] ^= std::byte{4};
  SourceChecks first(catalog), second(catalog);
  EXPECT_FALSE(finds_damage(first, bytes, {{0, 300}, {700, kBytes}}));
  EXPECT_FALSE(finds_damage(second, bytes, {{300, 700}}));
  EXPECT_THROW(first.add_all(second.incomplete()), Error);
}

TEST(SourceChecks, FindAFlippedBitInReadsThatOverlap) {
  const Catalog catalog = one_storage(crc32(content()));
  std::vector<std::byte> bytes = content();
  bytes[500] ^= std::byte{4};
  for (const bool is_damaged : {false, true}) {
    SourceChecks checks(catalog);
    EXPECT_EQ(finds_damage(checks, is_damaged ? bytes : content(), {{0, 600}, {900, kBytes}, {300, 950}}), is_damaged);
  }
}

TEST(SourceChecks, UseTheSumOfAReadUnlessAPartOfItIsKnown) {
  const std::vector<std::byte> bytes = content();
  const Catalog catalog = one_storage(crc32(bytes));
  const auto read = [&bytes](std::size_t begin, std::uint32_t crc) {
    return ReadBytes{static_cast<std::int64_t>(begin), std::span(bytes).subspan(begin), crc};
  };
  SourceChecks wrong(catalog), partly_known(catalog);
  EXPECT_THROW(wrong.add(0, std::vector{read(0, crc32(bytes) + 1)}), Error);
  add(partly_known, 0, std::span(bytes).first(600));
  EXPECT_NO_THROW(partly_known.add(0, std::vector{read(400, crc32(read(400, 0).bytes))}));
  EXPECT_TRUE(partly_known.incomplete().empty());
}

TEST(SourceChecks, GiveUpStoragesThatAreReadInTooManyRuns) {
  constexpr std::int64_t kMany = 600'000;
  Catalog catalog = one_storage(7);
  catalog.storages[0].bytes = kMany;
  SourceChecks checks(catalog);
  const std::byte one[1] = {};
  for (std::int64_t i = 0; i < kMany; i += 2) add(checks, i, one);
  EXPECT_TRUE(checks.incomplete().empty());
  for (std::int64_t i = 1; i < kMany; i += 2) add(checks, i, one);
  EXPECT_TRUE(checks.incomplete().empty()) << "and nothing is reported of them";
}

TEST(SourceChecks, ClaimNothingOfWhatWasReadInPart) {
  const Catalog catalog = one_storage(crc32(content()) + 1);
  SourceChecks checks(catalog);
  EXPECT_FALSE(finds_damage(checks, content(), {{0, 999}, {0, 10}, {500, 800}}));
  EXPECT_EQ(checks.incomplete().size(), 1U);
}

TEST(SourceChecks, ReadTheRestOfWhatWasReadForTheMostPart) {
  const Catalog catalog = one_storage(crc32(content()));
  std::vector<std::byte> damaged = content();
  damaged[10] ^= std::byte{4};
  const auto finds_after = [&](const std::vector<std::byte>& bytes, std::size_t read, bool is_own) {
    const testing::MemoryReader reader(catalog, {bytes});
    SourceChecks checks(catalog);
    add(checks, 0, std::span(bytes).first(read));
    try {
      checks.read_rest(reader, [is_own](const Storage&) { return is_own; }, {});
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), FindingKind::kCrcMismatch);
      return true;
    }
    EXPECT_EQ(checks.incomplete().empty(), read == 900 && is_own);
    return false;
  };
  EXPECT_FALSE(finds_after(content(), 900, true));
  EXPECT_TRUE(finds_after(damaged, 900, true));
  EXPECT_FALSE(finds_after(damaged, 900, false));
  EXPECT_FALSE(finds_after(damaged, 800, true)) << "a fifth is too much to read";
}

TEST(SourceChecks, NeedAChecksumToCompareWith) {
  const Catalog catalog = one_storage(std::nullopt);
  SourceChecks checks(catalog);
  EXPECT_FALSE(finds_damage(checks, content(), {{0, kBytes}}));
  EXPECT_TRUE(checks.incomplete().empty());
}

TEST(SourceChecks, RefuseRunsThatCannotBe) {
  const Catalog catalog = one_storage(7);
  SourceChecks checks(catalog);
  for (const CrcRun& run : {CrcRun{0, 10, 1, 0}, CrcRun{-1, 10, 0, 0}, CrcRun{995, 10, 0, 0}, CrcRun{0, 0, 0, 0}}) {
    EXPECT_THROW(checks.add_all(std::span(&run, 1)), Error);
  }
}

TEST(SourceChecks, TellASinkThatCollectsEveryStorageThatDiffers) {
  Catalog catalog = one_storage(7);
  catalog.storages.push_back(catalog.storages[0]);
  catalog.storages.push_back({.offset = 0, .bytes = kBytes, .crc32 = crc32(content())});
  CollectedFindings findings;
  SourceChecks checks(catalog, findings);
  const std::vector<std::byte> all = content();
  for (std::uint32_t storage = 0; storage < 3; ++storage) checks.add(storage, std::vector<ReadBytes>{{0, all}});
  EXPECT_EQ(findings.kinds(), std::vector<FindingKind>(2, FindingKind::kCrcMismatch));
}

}  // namespace
}  // namespace shard
