#include "formats/parts/zip/zip.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "formats/torch/saved_zip.h"
#include "libshard/core/digest.h"
#include "tests/formats/bytes_file.h"
#include "tests/support/expect_error.h"

namespace shard::zip {
namespace {

using ::shard::testing::BytesFile;
using ::shard::testing::golden;
using ::testing::HasSubstr;

ZipReader open(const std::string& bytes) {
  return ZipReader(std::make_shared<BytesFile>(bytes), 0, static_cast<std::int64_t>(bytes.size()));
}

std::string text(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

struct Content {
  std::string name, content;
};

// A zip as ZipLayout lays it out, with true CRCs.
std::string build(const std::vector<Content>& records, const std::string& folder = "archive") {
  ZipLayout layout(folder);
  std::vector<std::int64_t> places;
  std::vector<std::uint32_t> crcs;
  for (const Content& record : records) {
    places.push_back(layout.add(record.name, static_cast<std::int64_t>(record.content.size())));
    crcs.push_back(crc32(std::as_bytes(std::span(record.content))));
  }
  std::string out(static_cast<std::size_t>(layout.total_bytes()), '?');
  for (const ZipLayout::Span& span : layout.frame(crcs)) {
    out.replace(static_cast<std::size_t>(span.offset), span.content.size(), span.content);
  }
  for (std::size_t i = 0; i < records.size(); ++i) {
    out.replace(static_cast<std::size_t>(places[i]), records[i].content.size(), records[i].content);
  }
  return out;
}

template <class T>
void put(std::string& bytes, std::size_t at, T number) {
  std::memcpy(bytes.data() + at, &number, sizeof number);
}

// Two records, "archive/a" = "abc" and "archive/b" = "" and "archive/c" = "xy": local headers at 0, 83 and 128+...
const std::vector<Content> kThree{{"a", "abc"}, {"b", ""}, {"c", "xy"}};

std::size_t directory_of(const std::string& bytes) { return bytes.find("PK\x01\x02"); }

TEST(ZipReader, ReadsNamesSizesAndContent) {
  const ZipReader zip = open(build(kThree));
  ASSERT_EQ(zip.records().size(), 3U);
  EXPECT_EQ(zip.folder(), "archive");
  EXPECT_EQ(zip.records()[0].name, "archive/a");
  EXPECT_EQ(zip.records()[0].bytes, 3);
  ASSERT_NE(zip.find("c"), nullptr);
  EXPECT_EQ(text(zip.read(*zip.find("c"), 2)), "xy");
  EXPECT_EQ(text(zip.read(*zip.find("b"), 0)), "");
}

TEST(ZipReader, FindReturnsNullForAnAbsentRecord) { EXPECT_EQ(open(build(kThree)).find("d"), nullptr); }

TEST(ZipReader, PlacesDataAtMultiplesOf64) {
  const ZipReader zip = open(build(kThree));
  EXPECT_EQ(zip.data_offset(*zip.find("a")), 64);
  EXPECT_EQ(zip.data_offset(*zip.find("b")), 128);
  EXPECT_EQ(zip.data_offset(*zip.find("c")), 192);
}

TEST(ZipReader, ReadsAZipInsideABiggerFile) {
  const std::string inner = build(kThree);
  const std::string outer = "before" + inner + "after";
  const ZipReader zip(std::make_shared<BytesFile>(outer), 6, static_cast<std::int64_t>(inner.size()));
  EXPECT_EQ(zip.data_offset(*zip.find("a")), 6 + 64);
  EXPECT_EQ(text(zip.read(*zip.find("a"), 3)), "abc");
}

TEST(ZipReader, ReadsAZipWithAComment) {
  std::string bytes = build(kThree) + "made by hand";
  bytes[bytes.size() - 12 - 2] = 12;
  const ZipReader zip = open(bytes);
  ASSERT_EQ(zip.records().size(), 3U);
  EXPECT_EQ(text(zip.read(*zip.find("a"), 3)), "abc");
}

TEST(ZipReader, RefusesACommentOfAnotherLength) {
  std::string bytes = build(kThree) + "made by hand";
  bytes[bytes.size() - 12 - 2] = 11;
  EXPECT_THAT(test::error_of([&] { open(bytes); }).what(), ::testing::HasSubstr("end record is missing"));
}

TEST(ZipReader, SaysWhenItIsNotAZipAtAll) {
  EXPECT_EQ(test::error_of([] { open(std::string(100, 'x')); }).why(),
            "it does not start like a zip either, so it is not a zip file");
  EXPECT_EQ(test::error_of([] { open(build(kThree) + "x"); }).why(),
            "the file was truncated, or bytes were appended to it");
}

TEST(ZipReader, OpensASmallZipWithOneRead) {
  const std::string bytes = build(kThree);
  const auto file = std::make_shared<BytesFile>(bytes);
  const ZipReader zip(file, 0, file->size());
  zip.read(*zip.find("a"), 3);
  zip.data_offset(*zip.find("c"));
  EXPECT_EQ(file->reads(), 1);
}

TEST(ZipReader, OpensALargeZipWithTwoReads) {
  const auto file = std::make_shared<BytesFile>(build({{"data.pkl", "abc"}, {"data/0", std::string(100'000, 'x')}}));
  const ZipReader zip(file, 0, file->size());
  zip.read(*zip.find("data.pkl"), 3);
  zip.data_offset(*zip.find("data/0"));
  EXPECT_EQ(file->reads(), 2);
}

TEST(ZipReader, ReadsADirectoryLargerThanItsWindow) {
  std::vector<Content> records;
  for (int i = 0; i < 1000; ++i) records.push_back({"data/" + std::to_string(i), std::to_string(i)});
  const ZipReader zip = open(build(records));
  ASSERT_EQ(zip.records().size(), 1000U);
  EXPECT_EQ(text(zip.read(*zip.find("data/777"), 3)), "777");
}

TEST(ZipReader, ReadsDeflatedRecords) {
  const ZipReader zip = open(golden("torch/deflated.pt"));
  ASSERT_NE(zip.find("version"), nullptr);
  EXPECT_EQ(zip.find("data.pkl")->method, 8);
  EXPECT_EQ(text(zip.read(*zip.find("byteorder"), 6)), "little");
}

TEST(ZipReader, DoesNotCheckCrcsThatTorchLeftOut) {
  const ZipReader zip = open(golden("torch/no_crc.pt"));
  for (const Record& record : zip.records()) EXPECT_EQ(record.checksum().has_value(), record.bytes == 0) << record.name;
  EXPECT_EQ(text(zip.read(*zip.find("byteorder"), 6)), "little");
}

TEST(ZipReader, RefusesARecordThatIsLargerThanAllowed) {
  const ZipReader zip = open(build(kThree));
  EXPECT_THROW(zip.read(*zip.find("a"), 2), Error);
}

struct Damage {
  const char* what;
  std::function<void(std::string&)> mutate;
  ErrorCode code;
  const char* words;
};

// Opens the damaged zip and reads all of its records.
void read_all(const std::string& bytes) {
  const ZipReader zip = open(bytes);
  for (const Record& record : zip.records()) zip.read(record, record.bytes);
}

class ZipDamage : public ::testing::TestWithParam<Damage> {};

TEST_P(ZipDamage, IsRefusedByName) {
  std::string bytes = build(kThree);
  GetParam().mutate(bytes);
  try {
    read_all(bytes);
    FAIL() << "accepted: " << GetParam().what;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), GetParam().code) << error.what();
    EXPECT_THAT(error.what(), HasSubstr(GetParam().words));
    EXPECT_EQ(error.file(), "test.pt");
  }
}

// Offsets: local header fields from 0, directory entry fields from directory_of, end records from the end.
/// Puts bytes into the directory, and updates its sizes and offset.
void insert_into_directory(std::string& bytes, std::size_t at, std::string_view more) {
  bytes.insert(at, more);
  for (const std::size_t from_end : {98 - 40, 42 - 8, 10}) {  // Sizes in both end records; the zip64 one's offset.
    bytes[bytes.size() - from_end] = static_cast<char>(bytes[bytes.size() - from_end] + std::ssize(more));
  }
}

const Damage kDamage[] = {
    {"local signature", [](std::string& b) { b[0] = 'X'; }, ErrorCode::kCorruption, "signature"},
    {"local flags", [](std::string& b) { b[6] ^= 0x08; }, ErrorCode::kCorruption, "flags"},
    {"local method", [](std::string& b) { b[8] = 8; }, ErrorCode::kCorruption, "method"},
    {"local crc", [](std::string& b) { b[14] = 1; }, ErrorCode::kCorruption, "CRC"},
    {"local name", [](std::string& b) { b[30 + 8] = 'z'; }, ErrorCode::kCorruption, "name"},
    {"local name length", [](std::string& b) { b[26] = 8; }, ErrorCode::kCorruption, "name"},
    {"local extra length", [](std::string& b) { b[29] = 1; }, ErrorCode::kCorruption, "reaches past"},
    {"data", [](std::string& b) { b[64] ^= 1; }, ErrorCode::kCorruption, "checksum"},
    {"entry signature", [](std::string& b) { b[directory_of(b)] = 'X'; }, ErrorCode::kCorruption,
     "entry has no signature"},
    {"entry encryption", [](std::string& b) { b[directory_of(b) + 8] |= 1; }, ErrorCode::kUnsupported, "encrypted"},
    {"entry unknown flag", [](std::string& b) { b[directory_of(b) + 9] |= 0x10; }, ErrorCode::kUnsupported, "flags"},
    {"entry method", [](std::string& b) { b[directory_of(b) + 10] = 12; }, ErrorCode::kCorruption, "method"},
    {"entry crc", [](std::string& b) { b[directory_of(b) + 16] ^= 1; }, ErrorCode::kCorruption, "checksum"},
    {"entry compressed", [](std::string& b) { b[directory_of(b) + 20] = 4; }, ErrorCode::kCorruption, "two sizes"},
    {"entry size", [](std::string& b) { b[directory_of(b) + 24] = 4; }, ErrorCode::kCorruption, "two sizes"},
    {"entry huge size",
     [](std::string& b) {
       put<std::uint32_t>(b, directory_of(b) + 20, 0x7FFFFFFF);
       put<std::uint32_t>(b, directory_of(b) + 24, 0x7FFFFFFF);
     },
     ErrorCode::kCorruption, "reaches past"},
    {"entry size without zip64 field", [](std::string& b) { put<std::uint32_t>(b, directory_of(b) + 24, 0xFFFFFFFF); },
     ErrorCode::kCorruption, "zip64 field lacks"},
    {"entry extra field",
     [](std::string& b) {
       put<std::uint32_t>(b, directory_of(b) + 24, 0xFFFFFFFF);
       put<std::uint16_t>(b, directory_of(b) + 30, 4);
       insert_into_directory(b, directory_of(b) + 46 + 9, {"\x01\0\x08\0", 4});
     },
     ErrorCode::kCorruption, "an extra field is longer than its header"},
    {"entry deflated too well",
     [](std::string& b) {
       b[8] = b[directory_of(b) + 10] = 8;
       put<std::uint32_t>(b, directory_of(b) + 24, 5000);
     },
     ErrorCode::kCorruption, "cannot decompress to 5000"},
    {"bytes behind the entries", [](std::string& b) { insert_into_directory(b, b.size() - 98, "more"); },
     ErrorCode::kCorruption, "4 bytes follow the directory's 3 entries"},
    {"entry name length", [](std::string& b) { put<std::uint16_t>(b, directory_of(b) + 28, 0xFFFF); },
     ErrorCode::kCorruption, "ends inside"},
    {"entry disk", [](std::string& b) { b[directory_of(b) + 34] = 1; }, ErrorCode::kCorruption, "disk"},
    {"entry offset", [](std::string& b) { b[directory_of(b) + 42] = 1; }, ErrorCode::kCorruption, "precede the first"},
    {"entry offset of another record", [](std::string& b) { put<std::uint32_t>(b, directory_of(b) + 46 + 9 + 42, 0); },
     ErrorCode::kCorruption, "reaches past the next record"},
    {"entry name absolute", [](std::string& b) { b[directory_of(b) + 46] = '/'; }, ErrorCode::kCorruption, "absolute"},
    {"entry name backslash", [](std::string& b) { b[directory_of(b) + 46] = '\\'; }, ErrorCode::kCorruption,
     "backslash"},
    {"entry name NUL", [](std::string& b) { b[directory_of(b) + 46] = '\0'; }, ErrorCode::kCorruption, "NUL"},
    {"entry name parent", [](std::string& b) { b.replace(directory_of(b) + 46, 3, "../"); }, ErrorCode::kCorruption,
     "'..'"},
    {"duplicate names", [](std::string& b) { b[directory_of(b) + 46 + 9 + 46 + 8] = 'a'; }, ErrorCode::kCorruption,
     "two records are named 'archive/a'"},
    {"zip64 end signature", [](std::string& b) { b[b.size() - 98] = 'X'; }, ErrorCode::kCorruption, "zip64 end record"},
    {"zip64 end size", [](std::string& b) { b[b.size() - 98 + 4] = 45; }, ErrorCode::kCorruption, "zip64 end record"},
    {"zip64 disk", [](std::string& b) { b[b.size() - 98 + 16] = 1; }, ErrorCode::kCorruption, "disks"},
    {"zip64 entries on disk", [](std::string& b) { b[b.size() - 98 + 24] = 4; }, ErrorCode::kCorruption,
     "counts 4 records and 3 in all"},
    {"zip64 entries", [](std::string& b) { b[b.size() - 98 + 24] = b[b.size() - 98 + 32] = 4; }, ErrorCode::kCorruption,
     "contradicts"},
    {"zip64 directory size", [](std::string& b) { b[b.size() - 98 + 40] ^= 1; }, ErrorCode::kCorruption, "contradicts"},
    {"zip64 directory offset", [](std::string& b) { b[b.size() - 98 + 48] ^= 1; }, ErrorCode::kCorruption,
     "contradicts"},
    {"zip64 offset past 63 bits", [](std::string& b) { b[b.size() - 98 + 55] = '\x80'; }, ErrorCode::kCorruption,
     "63 bits"},
    {"locator signature", [](std::string& b) { b[b.size() - 42] = 'X'; }, ErrorCode::kCorruption, "does not end at"},
    {"locator offset", [](std::string& b) { b[b.size() - 42 + 8] ^= 1; }, ErrorCode::kCorruption, "locator"},
    {"locator disks", [](std::string& b) { b[b.size() - 42 + 16] = 2; }, ErrorCode::kCorruption, "disks"},
    {"end signature", [](std::string& b) { b[b.size() - 22] = 'X'; }, ErrorCode::kCorruption, "end record is missing"},
    {"end disk", [](std::string& b) { b[b.size() - 18] = 1; }, ErrorCode::kCorruption, "disks"},
    {"end entries", [](std::string& b) { b[b.size() - 14] = b[b.size() - 12] = 4; }, ErrorCode::kCorruption,
     "contradicts"},
    {"end directory size", [](std::string& b) { b[b.size() - 10] ^= 1; }, ErrorCode::kCorruption, "contradicts"},
    {"end directory offset", [](std::string& b) { b[b.size() - 6] ^= 1; }, ErrorCode::kCorruption, "contradicts"},
    {"end comment", [](std::string& b) { b[b.size() - 2] = 1; }, ErrorCode::kCorruption, "end record is missing"},
    {"bytes after the end", [](std::string& b) { b += "x"; }, ErrorCode::kCorruption, "end record is missing"},
    {"bytes before the front", [](std::string& b) { b = "x" + b; }, ErrorCode::kCorruption, "locator"},
    {"cut inside the end record", [](std::string& b) { b.resize(b.size() - 10); }, ErrorCode::kCorruption,
     "end record is missing"},
    {"cut before the end record", [](std::string& b) { b.resize(b.size() - 22); }, ErrorCode::kCorruption,
     "end record is missing"},
    {"cut before the directory", [](std::string& b) { b.resize(directory_of(b)); }, ErrorCode::kCorruption,
     "end record is missing"},
    {"cut inside the first record", [](std::string& b) { b.resize(65); }, ErrorCode::kCorruption,
     "end record is missing"},
    {"cut to ten bytes", [](std::string& b) { b.resize(10); }, ErrorCode::kCorruption, "too few"},
    {"empty", [](std::string& b) { b.clear(); }, ErrorCode::kCorruption, "too few"},
};
INSTANTIATE_TEST_SUITE_P(EachField, ZipDamage, ::testing::ValuesIn(kDamage), [](const auto& damage) {
  std::string name = damage.param.what;
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return name;
});

TEST(ZipReader, RefusesThePartOfASplitArchiveThatHoldsTheDirectory) {
  std::string bytes = build(kThree);
  bytes[0] = 'X';  // It begins inside a record.
  bytes[bytes.size() - 18] = 1;
  test::expect_error(ErrorCode::kUnsupported, "several disks", [&] { open(bytes); });
}

/// A number of the tail of a zip: its offset from the zip's end, and its bytes.
struct TailField {
  const char* what;
  std::size_t from_end, bytes;
};
constexpr TailField kEndFields[] = {
    {"disk", 18, 2},           {"directory's disk", 16, 2}, {"records on this disk", 14, 2}, {"records", 12, 2},
    {"directory size", 10, 4}, {"directory offset", 6, 4},  {"comment length", 2, 2},
};
constexpr TailField kZip64Fields[] = {
    {"locator: disk of the record", 42 - 4, 4},
    {"locator: offset", 42 - 8, 8},
    {"locator: disks", 42 - 16, 4},
    {"zip64: size of the record", 98 - 4, 8},
    {"zip64: disk", 98 - 16, 4},
    {"zip64: directory's disk", 98 - 20, 4},
    {"zip64: records on this disk", 98 - 24, 8},
    {"zip64: records", 98 - 32, 8},
    {"zip64: directory size", 98 - 40, 8},
    {"zip64: directory offset", 98 - 48, 8},
};

/// Flips each bit of each field separately.
void expect_each_bit_is_damage(const std::string& whole, std::span<const TailField> fields) {
  ASSERT_NO_THROW(read_all(whole));
  for (const TailField& field : fields) {
    for (std::size_t bit = 0; bit < field.bytes * 8; ++bit) {
      std::string bytes = whole;
      bytes[bytes.size() - field.from_end + bit / 8] ^= static_cast<char>(1 << bit % 8);
      EXPECT_EQ(test::error_of([&] { read_all(bytes); }).code(), ErrorCode::kCorruption)
          << field.what << ", bit " << bit;
    }
  }
}

TEST(ZipReader, EachBitOfTheCountsBehindTheDirectoryIsDamage) {
  const std::string whole = build(kThree);
  expect_each_bit_is_damage(whole, kEndFields);
  expect_each_bit_is_damage(whole, kZip64Fields);
}

TEST(ZipReader, EachBitOfTheCountsIsDamageWithoutZip64Too) {
  std::string whole = build(kThree);
  whole.erase(whole.size() - 98, 76);
  expect_each_bit_is_damage(whole, kEndFields);
}

TEST(ZipReader, EachBitOfTheZip64CountsIsDamageWhereTheEndRecordLeavesThemToIt) {
  std::string whole = build(kThree);
  put<std::uint64_t>(whole, whole.size() - 14, UINT64_MAX);
  put<std::uint32_t>(whole, whole.size() - 6, UINT32_MAX);
  expect_each_bit_is_damage(whole, kZip64Fields);
}

TEST(ZipReader, CountsOfRecordsAreBoundByTheDirectory) {
  std::string bytes = build(kThree);
  for (const std::size_t at : {bytes.size() - 98 + 24, bytes.size() - 98 + 32}) {
    put<std::uint64_t>(bytes, at, 0x7FFFFFFFFFFF);
  }
  put<std::uint16_t>(bytes, bytes.size() - 14, 0xFFFF);
  put<std::uint16_t>(bytes, bytes.size() - 12, 0xFFFF);
  EXPECT_THROW(open(bytes), Error);
}

// Rebuilds the frame of a zip from nothing but its records' names, sizes and CRCs.
void expect_rebuilt(const std::string& name) {
  const std::string bytes = golden(name);
  const ZipReader zip = open(bytes);
  ZipLayout layout(zip.folder());
  std::vector<std::uint32_t> crcs;
  for (const Record& record : zip.records()) {
    const std::int64_t place = layout.add(record.name.substr(zip.folder().size() + 1), record.bytes);
    EXPECT_EQ(place, zip.data_offset(record)) << record.name;
    crcs.push_back(record.crc32);
  }
  EXPECT_EQ(layout.total_bytes(), static_cast<std::int64_t>(bytes.size()));
  for (const ZipLayout::Span& span : layout.frame(crcs)) {
    EXPECT_EQ(bytes.substr(static_cast<std::size_t>(span.offset), span.content.size()), span.content) << span.offset;
  }
}

class ZipLayoutGolden : public ::testing::TestWithParam<const char*> {};
TEST_P(ZipLayoutGolden, IsByteForByteWhatTorchWrites) { expect_rebuilt(GetParam()); }
INSTANTIATE_TEST_SUITE_P(Torch, ZipLayoutGolden,
                         ::testing::Values("torch/state.pt", "torch/nested.pt", "torch/dtypes.pt", "torch/bare.pt",
                                           "torch/parameter.pt", "torch/many.pt", "torch/no_crc.pt",
                                           "torch/hf/pytorch_model-00001-of-00002.bin"));

// The bytes around records' data, with zeros in between: a file of any size in little memory.
class SparseFile : public RandomReader {
 public:
  SparseFile(std::vector<ZipLayout::Span> spans, std::int64_t bytes) : spans_(std::move(spans)), bytes_(bytes) {}
  std::int64_t size() const override { return bytes_; }
  void read_at(std::int64_t offset, std::span<std::byte> out) const override {
    std::ranges::fill(out, std::byte{0});
    const std::int64_t end = offset + static_cast<std::int64_t>(out.size());
    for (const ZipLayout::Span& span : spans_) {
      const std::int64_t from = std::max(offset, span.offset);
      const std::int64_t to = std::min(end, span.offset + static_cast<std::int64_t>(span.content.size()));
      if (from >= to) continue;
      std::memcpy(out.data() + (from - offset), span.content.data() + (from - span.offset),
                  static_cast<std::size_t>(to - from));
    }
  }

 private:
  std::vector<ZipLayout::Span> spans_;
  std::int64_t bytes_;
};

TEST(ZipReader, ReadsRecordsOver4GibAndBehindThem) {
  constexpr std::int64_t kBig = (std::int64_t{5} << 30) + 10;
  ZipLayout layout("archive");
  const std::int64_t first = layout.add("data/0", kBig), second = layout.add("data/1", 4),
                     third = layout.add("data/2", 0);
  const auto file =
      std::make_shared<SparseFile>(layout.frame({0, crc32(std::vector<std::byte>(4)), 0}), layout.total_bytes());
  const ZipReader zip(file, 0, file->size());
  EXPECT_EQ(zip.find("data/0")->bytes, kBig);
  EXPECT_EQ(zip.data_offset(*zip.find("data/0")), first);
  EXPECT_EQ(zip.data_offset(*zip.find("data/1")), second);
  EXPECT_EQ(zip.data_offset(*zip.find("data/2")), third);
  EXPECT_EQ(zip.read(*zip.find("data/1"), 4), std::vector<std::byte>(4));
}

TEST(ZipReader, TheEndMayLieFarBehindThe32BitBorder) {
  ZipLayout layout("archive");
  layout.add("a", 3'000'000'000);
  layout.add("b", 3'000'000'000);
  const std::int64_t last = layout.add("c", 1);
  const auto file = std::make_shared<SparseFile>(layout.frame({0, 0, 1}), layout.total_bytes());
  const ZipReader zip(file, 0, file->size());
  EXPECT_EQ(zip.data_offset(*zip.find("c")), last);
  EXPECT_EQ(zip.find("b")->bytes, 3'000'000'000);
}

// The largest number of 32 bits means that a zip64 field has the size.
TEST(ZipLayout, HasAZip64FieldForASizeOf4GibLessAByte) {
  ZipLayout layout("archive");
  layout.add("a", 0xFFFFFFFF);
  const auto file = std::make_shared<SparseFile>(layout.frame({1}), layout.total_bytes());
  EXPECT_EQ(ZipReader(file, 0, file->size()).find("a")->bytes, 0xFFFFFFFF);
}

// The numbers of a file that torch 2.11 wrote for {"a": 4 GiB + 10 bytes, "b": 24 bytes, "e": 0 bytes} as big.pt.
TEST(ZipLayout, PlacesRecordsPast4GibAsTorchDoes) {
  ZipLayout layout("big");
  layout.add("data.pkl", 306);
  layout.add(".format_version", 1);
  layout.add(".storage_alignment", 2);
  layout.add("byteorder", 6);
  EXPECT_EQ(layout.add("data/0", 4294967306), 832);
  EXPECT_EQ(layout.add("data/1", 24), 4294968256);
  EXPECT_EQ(layout.add("data/2", 0), 4294968384);
  layout.add("version", 2);
  layout.add(".data/serialization_id", 40);
  EXPECT_EQ(layout.total_bytes(), 4294969353);
  const std::vector<ZipLayout::Span> frame = layout.frame(std::vector<std::uint32_t>(9));
  using namespace std::string_literals;
  // Local: sizes in a zip64 field, the compressed one still 0.
  EXPECT_EQ(frame[4].content.substr(frame[4].content.find("big/data/0") + 10, 20),
            "\x01\0\x10\0\x0a\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0"s);
  // The wide descriptor, even after a small record that merely begins past 4 GiB.
  EXPECT_EQ(frame[5].content.substr(0, 24), "PK\x07\x08\0\0\0\0\x0a\0\0\0\x01\0\0\0\x0a\0\0\0\x01\0\0\0"s);
  EXPECT_EQ(frame[6].content.substr(0, 24), "PK\x07\x08\0\0\0\0\x18\0\0\0\0\0\0\0\x18\0\0\0\0\0\0\0"s);
  // Directory: both sizes of the large one, the header offset of the next one.
  const std::string& end = frame[9].content;
  EXPECT_EQ(end.substr(end.find("big/data/0") + 10, 20), "\x01\0\x10\0\x0a\0\0\0\x01\0\0\0\x0a\0\0\0\x01\0\0\0"s);
  EXPECT_EQ(end.substr(end.find("big/data/1") + 10, 12), "\x01\0\x08\0\x62\x03\0\0\x01\0\0\0"s);
}

TEST(ZipLayout, RefusesSizesPast63Bits) {
  ZipLayout layout("archive");
  layout.add("data/0", INT64_MAX - 200);
  EXPECT_THROW(layout.add("data/1", 200), Error);
}

// All of torch's bytes around the storages except the number that distinguishes saves.
TEST(SavedZip, WritesWhatTorchWritesButTheId) {
  const std::string bytes = golden("torch/state.pt");
  const ZipReader zip = open(bytes);
  std::vector<std::int64_t> sizes;
  std::vector<std::uint32_t> crcs;
  for (int i = 0; zip.find("data/" + std::to_string(i)) != nullptr; ++i) {
    sizes.push_back(zip.find("data/" + std::to_string(i))->bytes);
    crcs.push_back(zip.find("data/" + std::to_string(i))->crc32);
  }
  const std::string pickle(text(zip.read(*zip.find("data.pkl"), 1 << 20)));
  const torch_save::SavedZip saved("state", std::ssize(pickle), sizes);
  ASSERT_EQ(saved.total_bytes(), static_cast<std::int64_t>(bytes.size()));
  std::string ours = bytes;
  for (const torch_save::SavedZip::Span& span : saved.frame(pickle, crcs)) {
    ours.replace(static_cast<std::size_t>(span.offset), span.content.size(), span.content);
  }
  const std::size_t id = static_cast<std::size_t>(zip.data_offset(*zip.find(".data/serialization_id")));
  EXPECT_THAT(ours.substr(id, 40), ::testing::MatchesRegex("[0-9]+"));
  const std::size_t crc_in_descriptor = id + 40 + 4, crc_in_directory = bytes.size() - 98 - 46 - 28 + 16;
  ours.replace(id, 40, bytes.substr(id, 40));
  ours.replace(crc_in_descriptor, 4, bytes.substr(crc_in_descriptor, 4));
  ours.replace(crc_in_directory, 4, bytes.substr(crc_in_directory, 4));
  EXPECT_TRUE(ours == bytes);
}

TEST(SavedZip, PlacesEachStorage) {
  const torch_save::SavedZip saved("archive", 6, std::vector<std::int64_t>{24, 0, 1});
  EXPECT_EQ(saved.data_offset(0) % 64, 0);
  EXPECT_EQ(saved.data_offset(1), saved.data_offset(0) + 128);
  EXPECT_EQ(saved.data_offset(2), saved.data_offset(1) + 64);
}

TEST(SavedZip, GivesEqualContentAnEqualId) {
  const torch_save::SavedZip saved("archive", 6, std::vector<std::int64_t>{4});
  const auto tail = [&](std::uint32_t crc) { return saved.frame("pickle", std::vector{crc}).back().content; };
  EXPECT_EQ(tail(7), tail(7));
  const std::size_t id = tail(7).find("serialization_id");
  EXPECT_NE(tail(7).substr(id, 200), tail(8).substr(id, 200));
}

TEST(SavedZip, CanBeReadBackWithItsCrcs) {
  const torch_save::SavedZip saved("archive", 6, std::vector<std::int64_t>{0});
  std::string bytes(static_cast<std::size_t>(saved.total_bytes()), '?');
  for (const torch_save::SavedZip::Span& span : saved.frame("pickle", std::vector<std::uint32_t>{0})) {
    bytes.replace(static_cast<std::size_t>(span.offset), span.content.size(), span.content);
  }
  const ZipReader zip = open(bytes);
  for (const Record& record : zip.records()) zip.read(record, record.bytes);
  EXPECT_EQ(text(zip.read(*zip.find("version"), 2)), "3\n");
}

}  // namespace
}  // namespace shard::zip
