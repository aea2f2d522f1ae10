// The scan for records is bounded for any bytes.
#include "formats/parts/zip/scan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/torch/saved_zip.h"
#include "libshard/core/digest.h"
#include "tests/support/bytes.h"
#include "tests/support/cpu_time.h"
#include "tests/support/expect_error.h"
#include "tests/support/memory_checkpoint.h"

namespace shard::zip {
namespace {

std::string saved_zip(std::string_view pickle, const std::vector<std::string>& storages) {
  std::vector<std::int64_t> sizes;
  std::vector<std::uint32_t> crcs;
  for (const std::string& storage : storages) {
    sizes.push_back(std::ssize(storage));
    crcs.push_back(crc32(test::as_span(storage)));
  }
  const torch_save::SavedZip zip("archive", std::ssize(pickle), sizes);
  std::string file(static_cast<std::size_t>(zip.total_bytes()), '\0');
  for (const torch_save::SavedZip::Span& span : zip.frame(pickle, crcs)) {
    std::ranges::copy(span.content, file.begin() + span.offset);
  }
  for (std::size_t i = 0; i < storages.size(); ++i) {
    std::ranges::copy(storages[i], file.begin() + zip.data_offset(i));
  }
  return file;
}

std::vector<FoundZip> scan(const std::string& bytes) {
  Arena arena(std::make_shared<Budget>());
  arena.earn(0, std::ssize(bytes));
  const auto span = test::as_span(bytes);
  const auto file = std::make_shared<testing::MemoryFile>(std::vector<std::byte>(span.begin(), span.end()));
  return scan_zips(file, 0, file->size(), arena);
}

std::vector<std::string> names(const FoundZip& zip) {
  std::vector<std::string> all;
  for (const Record& record : zip.records) all.push_back(record.name.substr(record.name.find('/') + 1));
  return all;
}

TEST(Scan, FindsTheZipsOfAFileOneBehindTheOther) {
  const std::string first = saved_zip("pickle", {std::string(100, 'a')}), second = saved_zip("other", {});
  const std::vector<FoundZip> zips = scan(first + second);
  ASSERT_EQ(zips.size(), 2U);
  EXPECT_TRUE(zips[0].is_whole && zips[1].is_whole);
  EXPECT_EQ(zips[0].end, std::ssize(first));
  EXPECT_EQ(zips[1].begin, std::ssize(first));
  EXPECT_EQ(zips[1].end, std::ssize(first + second));
  EXPECT_THAT(names(zips[0]), ::testing::ElementsAre("data.pkl", ".format_version", ".storage_alignment", "byteorder",
                                                     "data/0", "version", ".data/serialization_id"));
}

TEST(Scan, DoesNotTakeRecordsInsideARecordForItsOwn) {
  const std::string inner = saved_zip("inner", {std::string(64, 'i')});
  const std::vector<FoundZip> zips = scan(saved_zip("outer", {inner}));
  ASSERT_EQ(zips.size(), 1U);
  EXPECT_EQ(zips[0].records.size(), 7U);
  EXPECT_EQ(zips[0].records[4].bytes, std::ssize(inner));
}

TEST(Scan, OfARecordOfUnknownEndSkipsToTheNextZip) {
  std::string damaged = saved_zip("pickle", {std::string(100, 'a'), std::string(100, 'b')});
  const std::size_t descriptor = damaged.find("PK\x07\x08", damaged.find("aaa"));
  damaged.replace(descriptor, 16, 16, '\0');
  const std::vector<FoundZip> zips = scan(damaged + saved_zip("next", {}));
  ASSERT_EQ(zips.size(), 2U);
  EXPECT_EQ(zips[0].lost.size(), 1U);
  EXPECT_EQ(zips[0].lost[0].name, "archive/data/0");
  EXPECT_EQ(zips[0].end, std::ssize(damaged));
  EXPECT_TRUE(zips[1].is_whole);
}

TEST(Scan, OfADescriptorThatHasLostItsSignatureGoesOnBehindIt) {
  std::string damaged = saved_zip("pickle", {std::string(100, 'a'), std::string(100, 'b')});
  damaged[damaged.find("PK\x07\x08", damaged.find("aaa"))] = 'x';
  const std::vector<FoundZip> zips = scan(damaged);
  ASSERT_EQ(zips.size(), 1U);
  EXPECT_EQ(zips[0].lost.size(), 1U);
  EXPECT_THAT(names(zips[0]), ::testing::Contains("data/1"));
}

TEST(Scan, FindsNothingInOtherBytes) {
  EXPECT_TRUE(scan("").empty());
  EXPECT_TRUE(scan(std::string(100'000, 'P')).empty());
  EXPECT_TRUE(scan("PK\x03\x04 is not a header, as its flags and name are not").empty());
}

TEST(Scan, OfSignaturesAloneIsRefusedOrEndsSoon) {
  std::string descriptors, headers, ends;
  const std::string header = saved_zip("", {}).substr(0, 64);
  while (descriptors.size() < (8 << 20)) descriptors.append("PK\x07\x08", 4);
  while (headers.size() < (8 << 20)) headers += header;
  while (ends.size() < (8 << 20)) ends += std::string("PK\x05\x06\0\0\0\0", 8);
  for (const std::string& bytes : {descriptors, headers, ends, header + ends}) {
    const double seconds = test::cpu_seconds([&] {
      try {
        scan(bytes);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kCorruption) << error.what();
      }
    });
    EXPECT_LT(seconds, test::cpu_limit(20));
  }
}

/// Descriptors that all name one header: the bytes before each would be checked again.
TEST(Scan, ChecksEachByteAFewTimesWhateverDescriptorsClaim) {
  std::string bytes = saved_zip("x", {}).substr(0, 64);
  const std::size_t data = bytes.size();
  const auto number = [](std::uint32_t value) { return std::string(reinterpret_cast<const char*>(&value), 4); };
  while (bytes.size() < (4 << 20)) {
    const auto size = static_cast<std::uint32_t>(bytes.size() - data);
    bytes += std::string("PK\x07\x08", 4) + "crc!" + number(size) + number(size) + std::string("PK\x01\x02", 4);
  }
  EXPECT_LT(test::cpu_seconds([&] {
              try {
                scan(bytes);
              } catch (const Error& error) {
                EXPECT_EQ(error.code(), ErrorCode::kCorruption) << error.what();
              }
            }),
            test::cpu_limit(20));
}

}  // namespace
}  // namespace shard::zip
