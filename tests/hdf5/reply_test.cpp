#include "formats/hdf5/reply.h"

#include <gtest/gtest.h>

#include "tests/hdf5/entry_text.h"
#include "tests/support/expect_error.h"

namespace shard::hdf5 {
namespace {

constexpr std::int64_t kFileBytes = 1 << 20;

Type float32() {
  Type type;
  type.kind = TypeClass::kFloat;
  type.bytes = 4;
  type.fields = {32, 0, 31, 23, 8, 0, 23, 127, true};
  return type;
}

Type small_enum() {
  Type base, type;
  base.bytes = 1;
  base.precision = 8;
  type.kind = TypeClass::kEnum;
  type.bytes = 1;
  type.inner = {{"", 0, 0, base}, {"NO", 0, 0, {}}, {"YES", 0, 1, {}}};
  return type;
}

Type text() {
  Type type;
  type.kind = TypeClass::kString;
  type.bytes = 8;
  type.is_variable = true;
  return type;
}

constexpr std::array kBytes{std::byte{1}, std::byte{0}, std::byte{7}, std::byte{9}};

Entry group() {
  Entry entry;
  entry.members = 2;
  entry.object = 96;
  entry.attributes = {{"flag", {small_enum(), {SpaceKind::kScalar, {}}, std::span(kBytes).first(1), {}}},
                      {"names", {text(), {SpaceKind::kSimple, {2}}, {}, {"a", ""}}}};
  return entry;
}

Entry dataset(StorageKind storage) {
  Entry entry;
  entry.kind = EntryKind::kDataset;
  entry.links = {"g", "x"};
  entry.object = 800;
  entry.type = float32();
  entry.space = {SpaceKind::kSimple, {3, 5}};
  entry.storage = storage;
  return entry;
}

Entry contiguous() {
  Entry entry = dataset(StorageKind::kContiguous);
  entry.offset = 2048;
  entry.stored_bytes = 60;
  entry.fill.assign(kBytes.begin(), kBytes.end());
  return entry;
}

Entry chunked() {
  Entry entry = dataset(StorageKind::kChunked);
  entry.chunk_shape = {2, 2};
  entry.filters = {{FilterKind::kShuffle, 4}, {FilterKind::kDeflate}};
  entry.chunks = {{0, 4096, 9, 0}, {5, 5000, 16, 3}};
  return entry;
}

Entry virtual_one() {
  Entry entry = dataset(StorageKind::kVirtual);
  entry.mappings = {{"a.h5", "d", {{{0, 0}, {3, 2}, {1, 1}, {3, 2}}}}, {".", "e", {{{1, 2}, {1, 3}, {7}, {3}}}}};
  return entry;
}

Entry unread() {
  Entry entry;
  entry.kind = EntryKind::kUnread;
  entry.links = {"g", "far"};
  entry.why = "a link into another file";
  return entry;
}

std::span<const std::byte> bytes_of(const std::string& payload) { return std::as_bytes(std::span(payload)); }

Entry decoded(const std::string& payload) {
  Arena arena(std::make_shared<Budget>());
  return decode_entry(bytes_of(payload), kFileBytes, arena);
}

void expect_refused(const Entry& entry, const std::string& words) {
  test::expect_error(ErrorCode::kCorruption, words, [&] { decoded(encode(entry)); });
}

TEST(Hdf5Reply, EntriesComeBackAsTheyWere) {
  for (const Entry& entry : {group(), contiguous(), chunked(), virtual_one(), unread()}) {
    const std::string payload = encode(entry);
    const Entry back = decoded(payload);
    EXPECT_EQ(to_text(back), to_text(entry));
    EXPECT_EQ(encode(back), payload);
  }
}

TEST(Hdf5Reply, AnAnswerThatEndsEarlyIsRefused) {
  for (const Entry& entry : {group(), contiguous(), chunked(), virtual_one(), unread()}) {
    const std::string payload = encode(entry);
    for (std::size_t size = 0; size < payload.size(); ++size) {
      EXPECT_THROW(decoded(payload.substr(0, size)), Error) << size;
    }
    EXPECT_THROW(decoded(payload + '\0'), Error);
  }
}

TEST(Hdf5Reply, EachByteMayBeAnything) {
  for (const Entry& entry : {group(), contiguous(), chunked(), virtual_one(), unread()}) {
    const std::string payload = encode(entry);
    for (std::size_t at = 0; at < payload.size(); ++at) {
      for (const int value : {0, 1, 2, 127, 128, 255}) {
        std::string damaged = payload;
        damaged[at] = static_cast<char>(value);
        try {
          decoded(damaged);
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ErrorCode::kCorruption) << at << " " << value;
        }
      }
    }
  }
}

TEST(Hdf5Reply, WhatIsNotReadHasAReason) {
  Entry entry = unread();
  entry.why = "";
  expect_refused(entry, "a reason of the wrong length");
}

TEST(Hdf5Reply, PlacesLieInTheFile) {
  Entry entry = contiguous();
  entry.offset = kFileBytes - 59;
  expect_refused(entry, "ends after the file");
  entry.offset = -2;
  expect_refused(entry, "a negative offset");
  Entry chunks = chunked();
  chunks.chunks[1].offset = kFileBytes - 15;
  expect_refused(chunks, "ends after the file");
}

TEST(Hdf5Reply, ADatasetHasStorageForItsElements) {
  Entry entry = contiguous();
  entry.stored_bytes = 59;
  expect_refused(entry, "less storage than elements");
  entry.space.shape = {std::int64_t{1} << 40, std::int64_t{1} << 40};
  expect_refused(entry, "");
}

TEST(Hdf5Reply, ChunksAreInTheirGridInOrderOnce) {
  Entry entry = chunked();
  entry.chunks[1].number = 6;
  expect_refused(entry, "outside their grid");
  entry.chunks[1].number = 0;
  expect_refused(entry, "out of order");
  entry = chunked();
  entry.chunk_shape = {2, 0};
  expect_refused(entry, "a chunk without elements");
  entry.chunk_shape = {2};
  expect_refused(entry, "a different rank");
}

TEST(Hdf5Reply, ChunksWithoutFiltersHaveTheSizeOfTheirShape) {
  Entry entry = chunked();
  entry.filters.clear();
  expect_refused(entry, "does not have the size of its shape");
}

TEST(Hdf5Reply, BoxesLieInTheirDatasetAndHaveTheirSourcesSize) {
  Entry entry = virtual_one();
  entry.mappings[0].boxes[0].sizes = {4, 2};
  expect_refused(entry, "a box outside its shape");
  entry = virtual_one();
  entry.mappings[0].boxes[0].source_sizes = {3, 3};
  expect_refused(entry, "boxes of two sizes");
}

TEST(Hdf5Reply, DatatypesNestOnlySoDeep) {
  Entry entry = contiguous();
  for (int i = 0; i <= kMostTypeDepth; ++i) {
    Type array;
    array.kind = TypeClass::kArray;
    array.bytes = 4;
    array.dims = {1};
    array.inner = {{"", 0, 0, entry.type}};
    entry.type = array;
  }
  expect_refused(entry, "nest too deep");
}

TEST(Hdf5Reply, EntriesChunksAndBoxesAreCharged) {
  const auto budget = std::make_shared<Budget>();
  Arena arena(budget);
  decode_entry(bytes_of(encode(chunked())), kFileBytes, arena);
  decode_entry(bytes_of(encode(virtual_one())), kFileBytes, arena);
  EXPECT_EQ(budget->count(Charge::kEntries), 2);
  EXPECT_EQ(budget->count(Charge::kChunks), 2);
  EXPECT_EQ(budget->count(Charge::kPlacedBoxes), 4);
}

TEST(Hdf5Reply, FailuresAreErrorsOfTheirKind) {
  const auto fail = [](std::string payload) { throw_failure(bytes_of(payload)); };
  test::expect_error(ErrorCode::kCorruption, "'x': bad heap", [&] { fail(encode_failure("'x': bad heap", false)); });
  test::expect_error(ErrorCode::kUnsupported, "szip", [&] { fail(encode_failure("szip", true)); });
  test::expect_error(ErrorCode::kCorruption, "malformed answer", [&] { fail("\2x"); });
  test::expect_error(ErrorCode::kCorruption, "malformed answer", [&] { fail(""); });
  EXPECT_EQ(encode_failure(std::string(10000, 'x'), false).size(), kMostFailureBytes + 1);
}

}  // namespace
}  // namespace shard::hdf5
