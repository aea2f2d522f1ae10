#include "libshard/exec/piece_reader.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <vector>

#include "libshard/core/digest.h"
#include "libshard/core/error.h"
#include "libshard/exec/runs.h"
#include "tests/plan/pieces.h"
#include "tests/support/expect_error.h"
#include "tests/support/memory_checkpoint.h"

namespace shard {
namespace {

using testing::below;
using testing::MemoryReader;
using testing::Random;
using testing::Sizes;
using testing::strides_in;

constexpr std::int64_t kStorageBegin = 13;

/// One storage of random 16-bit elements, a piece of it, and the bytes that are read from that.
struct Reading {
  explicit Reading(std::int64_t elements) {
    Random random(99);
    catalog.files.push_back({"f", kStorageBegin + 2 * elements, -1});
    catalog.storages.push_back({.offset = kStorageBegin, .bytes = 2 * elements});
    bytes.resize(static_cast<std::size_t>(catalog.files[0].bytes));
    for (std::byte& each : bytes) each = static_cast<std::byte>(random());
  }

  void read(const Piece& piece, const Box& box, std::span<const BufferBox> boxes, std::size_t staging_bytes) {
    const MemoryReader reader(catalog, {bytes});
    SourceChecks checks(catalog);
    std::vector<std::byte> staging(staging_bytes);
    PieceReader(catalog, reader, checks, progress, stop.get_token()).read(piece, box, 2, boxes, staging);
  }

  Catalog catalog;
  std::vector<std::byte> bytes;
  Progress progress;
  std::stop_source stop;
};

Sizes row_major(const Sizes& sizes) {
  Sizes strides(sizes.size());
  row_major_strides(sizes, strides);
  return strides;
}

Sizes first_of(const std::array<std::int64_t, kMaxDims>& values, int dims) {
  return {values.begin(), values.begin() + dims};
}

std::vector<std::size_t> random_order(Random& random, std::size_t dims) {
  std::vector<std::size_t> order(dims);
  for (std::size_t d = 0; d < dims; ++d) order[d] = d;
  std::ranges::shuffle(order, random);
  return order;
}

/// Checks every element of a buffer box against the storage, one by one; those outside `box` must be untouched.
void expect_read(const Reading& reading, const Piece& piece, const Box& box, const BufferBox& part) {
  const std::int64_t count = part.box().numel();
  for (std::int64_t n = 0; n < count; ++n) {
    std::int64_t rest = n, in_buffer = 0, in_storage = piece.first;
    bool is_inside = true;
    for (std::size_t d = part.sizes.size(); d-- > 0; rest /= part.sizes[d]) {
      const std::int64_t i = rest % part.sizes[d], at = part.offsets[d] + i;
      in_buffer += i * part.strides[d];
      in_storage += (at - piece.offsets[static_cast<int>(d)]) * piece.strides[static_cast<int>(d)];
      is_inside = is_inside && at >= box.offset[d] && at < box.offset[d] + box.size[d];
    }
    for (std::int64_t b = 0; b < 2; ++b) {
      const std::byte found = part.data[in_buffer * 2 + b];
      const std::byte wanted =
          is_inside ? reading.bytes[static_cast<std::size_t>(kStorageBegin + in_storage * 2 + b)] : std::byte{0};
      ASSERT_EQ(found, wanted);
    }
  }
}

TEST(PieceReader, FillsBoxesOfTheBufferWhateverTheStridesOnEitherSide) {
  Random random(31);
  for (int round = 0; round < 2000; ++round) {
    const auto dims = static_cast<std::size_t>(1 + below(random, 3));
    Sizes offsets(dims), sizes(dims);
    for (std::size_t d = 0; d < dims; ++d) offsets[d] = below(random, 5), sizes[d] = 1 + below(random, 8);
    const std::int64_t gap = 1 + below(random, 2);
    Arena arena;
    Piece piece = testing::make_piece(arena, offsets, sizes, strides_in(sizes, random_order(random, dims), gap));
    piece.first = below(random, 4);
    Reading reading(piece.first + span_of(sizes, piece.strides.span()));
    Box box = testing::box_of(piece);
    for (std::size_t d = 0; d < dims; ++d) {
      const std::int64_t skip = below(random, box.size[d]);
      box.offset[d] += skip;
      box.size[d] = 1 + below(random, box.size[d] - skip);
    }
    // Two boxes that cover more than `box`: cut the piece's box in two along a dimension.
    std::vector<Box> halves = {testing::box_of(piece)};
    if (sizes[0] > 1) {
      halves.push_back(halves[0]);
      halves[0].size[0] = 1 + below(random, sizes[0] - 1);
      halves[1].offset[0] += halves[0].size[0];
      halves[1].size[0] -= halves[0].size[0];
    }
    std::vector<Sizes> kept;
    kept.reserve(3 * halves.size());
    std::vector<std::vector<std::byte>> memory;
    std::vector<BufferBox> boxes;
    for (const Box& half : halves) {
      memory.emplace_back(static_cast<std::size_t>(half.numel() * 2));
      kept.push_back(first_of(half.offset, half.dims));
      kept.push_back(first_of(half.size, half.dims));
      kept.push_back(strides_in(kept.back(), random_order(random, dims)));
      const std::size_t last = kept.size();
      boxes.push_back({kept[last - 3], kept[last - 2], kept[last - 1], memory.back().data()});
    }
    reading.read(piece, box, boxes, static_cast<std::size_t>(2 * (1 + below(random, 300))));
    for (const BufferBox& part : boxes) expect_read(reading, piece, box, part);
    ASSERT_FALSE(HasFatalFailure()) << "round " << round;
  }
}

/// A row-major piece of 100 x 50 elements into one row-major box.
struct Matrix {
  Matrix() : reading(5000) {
    piece = testing::make_piece(arena, {0, 0}, sizes, {50, 1});
    target = {offsets, sizes, strides, memory.data()};
  }
  std::int64_t calls(const Sizes& at, const Sizes& size, std::size_t staging) {
    const std::int64_t before = reading.progress.read_calls;
    reading.read(piece, Box(at, size), std::span(&target, 1), staging);
    return reading.progress.read_calls - before;
  }

  Arena arena;
  Reading reading;
  Sizes offsets = {0, 0}, sizes = {100, 50}, strides = {50, 1};
  std::vector<std::byte> memory = std::vector<std::byte>(10000);
  Piece piece;
  BufferBox target;
};

TEST(PieceReader, ReadsOneRunThatLandsAsOneWithOneCallHoweverLittleStagingThereIs) {
  Matrix matrix;
  EXPECT_EQ(matrix.calls({0, 0}, {100, 50}, 2), 1);
  EXPECT_EQ(matrix.calls({10, 0}, {30, 50}, 2), 1);
  EXPECT_EQ(matrix.calls({10, 7}, {1, 20}, 2), 1);
  EXPECT_EQ(matrix.reading.progress.bytes_read, 2 * (5000 + 1500 + 20));
}

/// Rows of 40 elements with gaps between them, into a box without gaps.
std::int64_t calls_for_rows(std::int64_t gap, std::size_t staging) {
  Arena arena;
  Reading reading(10 * (40 + gap));
  const Sizes offsets = {0, 0}, sizes = {10, 40}, strides = row_major(sizes);
  std::vector<std::byte> memory(2 * 10 * 40);
  const BufferBox target{offsets, sizes, strides, memory.data()};
  const Piece piece = testing::make_piece(arena, offsets, sizes, {40 + gap, 1});
  reading.read(piece, testing::box_of(piece), std::span(&target, 1), staging);
  expect_read(reading, piece, testing::box_of(piece), target);
  if (reading.progress.read_calls == 10) {
    EXPECT_EQ(reading.progress.bytes_read, 2 * 10 * 40) << "no byte between rows";
  }
  return reading.progress.read_calls;
}

TEST(PieceReader, ReadsOverGapsOfUpToAPage) {
  EXPECT_EQ(calls_for_rows(1, 1 << 20), 1);
  EXPECT_EQ(calls_for_rows(2048, 1 << 20), 1);
  EXPECT_EQ(calls_for_rows(2049, 1 << 20), 10);
}

TEST(PieceReader, ReadsNoByteThatOtherTilesWillReadButOneInAHundred) {
  Matrix matrix;
  EXPECT_EQ(matrix.calls({0, 10}, {100, 20}, 10000), 100);
  EXPECT_EQ(matrix.reading.progress.bytes_read, 2 * 100 * 20);
  Arena arena;
  Reading reading(100 * 1000);
  const Sizes offsets = {0, 0}, sizes = {99, 995}, strides = row_major(sizes);
  std::vector<std::byte> memory(2 * 99 * 995);
  const BufferBox target{offsets, sizes, strides, memory.data()};
  const Piece piece = testing::make_piece(arena, {0, 0}, {100, 1000}, {1000, 1});
  reading.read(piece, Box(offsets, sizes), std::span(&target, 1), 1 << 20);
  EXPECT_EQ(reading.progress.read_calls, 1);
  expect_read(reading, piece, Box(offsets, sizes), target);
}

TEST(PieceReader, CutsSpansWithTheirGapsToTheStagingBuffer) {
  EXPECT_EQ(calls_for_rows(60, 2 * 940), 1);
  EXPECT_EQ(calls_for_rows(60, 2 * 939), 2);
  EXPECT_EQ(calls_for_rows(60, 2 * 100), 10);
}

TEST(PieceReader, ReadsElementsThatAreRepeatedOnce) {
  Arena arena;
  Reading reading(1000);
  const Sizes offsets = {0, 0, 0}, sizes = {5, 1000, 3}, strides = row_major(sizes);
  std::vector<std::byte> memory(2 * 5 * 1000 * 3);
  const BufferBox target{offsets, sizes, strides, memory.data()};
  const Piece piece = testing::make_piece(arena, offsets, sizes, {0, 1, 0});
  reading.read(piece, testing::box_of(piece), std::span(&target, 1), 2000);
  EXPECT_EQ(reading.progress.read_calls, 1);
  EXPECT_EQ(reading.progress.bytes_read, 2000);
  expect_read(reading, piece, testing::box_of(piece), target);
}

TEST(PieceReader, SumsOnlyReadsThatMayCompleteAStorage) {
  for (const std::int64_t step : {1, 2}) {
    Arena arena;
    Reading reading(1000);
    reading.catalog.storages[0].crc32 = 7;
    const Sizes offsets = {0}, sizes = {400}, strides = {1};
    std::vector<std::byte> memory(800);
    const BufferBox target{offsets, sizes, strides, memory.data()};
    const Piece piece = testing::make_piece(arena, offsets, sizes, {step});
    const MemoryReader reader(reading.catalog, {reading.bytes});
    SourceChecks checks(reading.catalog);
    std::vector<std::byte> staging(2000);
    PieceReader(reading.catalog, reader, checks, reading.progress, {})
        .read(piece, testing::box_of(piece), 2, std::span(&target, 1), staging);
    EXPECT_EQ(checks.incomplete().size(), step == 1 ? 1U : 0U);
  }
}

TEST(PieceReader, ReadsWhatIsPermutedInBlocksOfTheStagingBuffer) {
  Matrix matrix;
  matrix.strides = {1, 100};
  EXPECT_EQ(matrix.calls({0, 0}, {100, 50}, 10000), 1);
  EXPECT_EQ(matrix.calls({0, 0}, {100, 50}, 2500), 4);
  expect_read(matrix.reading, matrix.piece, testing::box_of(matrix.piece), matrix.target);
}

TEST(PieceReader, LeavesAloneWhatNoBoxWantsOfARun) {
  Arena arena;
  Reading reading(100);
  const Sizes begin = {0}, whole = {100}, middle = {40}, wanted = {20}, one = {1};
  std::vector<std::byte> memory(400);
  const BufferBox target{middle, wanted, one, memory.data() + 200};
  const Piece piece = testing::make_piece(arena, begin, whole, one);
  reading.read(piece, testing::box_of(piece), std::span(&target, 1), 400);
  expect_read(reading, piece, testing::box_of(piece), target);
  EXPECT_TRUE(std::ranges::all_of(std::span(memory).first(200), [](std::byte each) { return each == std::byte{0}; }));
}

/// Decoded storages of one file: each has a separate view.
class ViewedReader : public MemoryReader {
 public:
  explicit ViewedReader(const Catalog& catalog) : MemoryReader(catalog, {{std::byte{9}}}) {}
  std::shared_ptr<const RandomReader> bytes_of(std::uint32_t storage) const override {
    return std::make_shared<testing::MemoryFile>(std::vector<std::byte>(2, static_cast<std::byte>(storage + 1)));
  }
};

TEST(PieceReader, ReadsEachStorageThatIsNotPlainFromItsOwnView) {
  Arena arena;
  Catalog catalog;
  catalog.files.push_back({"f", 1, -1});
  catalog.storages = {{.offset = 0, .bytes = 2, .plain = false}, {.offset = 0, .bytes = 2, .plain = false}};
  const ViewedReader reader(catalog);
  SourceChecks checks(catalog);
  Progress progress;
  PieceReader pieces(catalog, reader, checks, progress, {});
  const Sizes begin = {0}, one = {1};
  for (std::uint32_t storage = 0; storage < 2; ++storage) {
    Piece piece = testing::make_piece(arena, begin, one, one);
    piece.storage = storage;
    std::vector<std::byte> memory(2), staging(2);
    const BufferBox target{begin, one, one, memory.data()};
    pieces.read(piece, testing::box_of(piece), 2, std::span(&target, 1), staging);
    EXPECT_EQ(memory[0], static_cast<std::byte>(storage + 1));
  }
}

TEST(PieceReader, CountsTheOverflowsOfItsReads) {
  struct Computed final : testing::MemoryFile {
    using MemoryFile::MemoryFile;
    void read_at(std::int64_t offset_bytes, std::span<std::byte> out) const override {
      overflows += 3;
      MemoryFile::read_at(offset_bytes, out);
    }
    std::int64_t take_overflows() const override { return std::exchange(overflows, 0); }
    mutable std::int64_t overflows = 0;
  };
  struct ComputedReader final : MemoryReader {
    explicit ComputedReader(const Catalog& catalog) : MemoryReader(catalog, {}) {}
    std::shared_ptr<const RandomReader> bytes_of(std::uint32_t) const override { return view; }
    std::shared_ptr<const Computed> view = std::make_shared<Computed>(std::vector<std::byte>(4));
  };
  Arena arena;
  Catalog catalog;
  catalog.files.push_back({"f", 1, -1});
  catalog.storages = {{.offset = 0, .bytes = 4, .plain = false}};
  const ComputedReader reader(catalog);
  SourceChecks checks(catalog);
  Progress progress;
  TileRecord record;
  PieceReader pieces(catalog, reader, checks, progress, {});
  pieces.set_record(&record);
  const Sizes begin = {0}, two = {2}, one = {1};
  const Piece piece = testing::make_piece(arena, begin, two, one);
  std::vector<std::byte> memory(4), staging(2);
  const BufferBox target{begin, two, one, memory.data()};
  for (int i = 0; i < 2; ++i) pieces.read(piece, testing::box_of(piece), 2, std::span(&target, 1), staging);
  EXPECT_EQ(progress.cast_overflows, 6);
  EXPECT_EQ(record.cast_overflows, 6);
}

/// Records the size of each read.
class MeteredFile : public testing::MemoryFile {
 public:
  MeteredFile(std::vector<std::byte> bytes, int requests) : MemoryFile(std::move(bytes)), requests_(requests) {}
  void read_at(std::int64_t offset_bytes, std::span<std::byte> out) const override {
    sizes.push_back(std::ssize(out));
    MemoryFile::read_at(offset_bytes, out);
  }
  int requests_at_once() const override { return requests_; }

  mutable std::vector<std::int64_t> sizes;

 private:
  const int requests_;
};

class MeteredReader : public MemoryReader {
 public:
  MeteredReader(const Catalog& catalog, std::shared_ptr<const MeteredFile> file)
      : MemoryReader(catalog, {}), file_(std::move(file)) {}
  std::shared_ptr<const RandomReader> file(std::uint32_t) const override { return file_; }

 private:
  const std::shared_ptr<const MeteredFile> file_;
};

TEST(PieceReader, SumsALongRunInBlocksUnlessItsRequestsTakeLong) {
  constexpr std::int64_t kElements = 300'000;
  const auto sizes_of_reads = [](std::optional<std::uint32_t> crc, int requests) {
    Arena arena;
    Reading reading(kElements);
    reading.catalog.storages[0].crc32 = crc;
    const auto file = std::make_shared<const MeteredFile>(reading.bytes, requests);
    const Sizes begin = {0}, whole = {kElements}, one = {1};
    std::vector<std::byte> memory(2 * kElements);
    const BufferBox target{begin, whole, one, memory.data()};
    const Piece piece = testing::make_piece(arena, begin, whole, one);
    const MeteredReader reader(reading.catalog, file);
    SourceChecks checks(reading.catalog);
    PieceReader(reading.catalog, reader, checks, reading.progress, {})
        .read(piece, testing::box_of(piece), 2, std::span(&target, 1), {});
    expect_read(reading, piece, testing::box_of(piece), target);
    EXPECT_TRUE(checks.incomplete().empty());
    EXPECT_EQ(reading.progress.read_calls, 1);
    return file->sizes;
  };
  const Reading same(kElements);
  const std::uint32_t crc = crc32(std::span(same.bytes).subspan(kStorageBegin));
  const std::vector<std::int64_t> blocks = {262'144, 262'144, 75'712}, whole = {600'000};
  EXPECT_EQ(sizes_of_reads(crc, 1), blocks);
  EXPECT_EQ(sizes_of_reads(crc, 8), whole);
  EXPECT_EQ(sizes_of_reads(std::nullopt, 1), whole);
  EXPECT_EQ(test::error_of([&] { sizes_of_reads(crc + 1, 1); }).kind(), FindingKind::kCrcMismatch);
}

TEST(PieceReader, StopsWhenAsked) {
  Matrix matrix;
  matrix.reading.stop.request_stop();
  EXPECT_EQ(test::error_of([&] { matrix.calls({0, 0}, {100, 50}, 100); }).code(), ErrorCode::kInterrupted);
  EXPECT_EQ(matrix.reading.progress.read_calls, 0);
}

}  // namespace
}  // namespace shard
