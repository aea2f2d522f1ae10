// Tiles whose bytes go from a source with streams straight to the output: the same bytes, each written once.
#include "libshard/exec/streamed_tiles.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <mutex>

#include "libshard/core/digest.h"
#include "tests/exec/random_copies.h"
#include "tests/support/expect_error.h"
#include "tests/support/memory_checkpoint.h"

namespace shard {
namespace {

using testing::add_storage;
using testing::add_tensor;
using testing::below;
using testing::CountingWriter;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Le;
using testing::MadeChunk;
using testing::MemoryFile;
using testing::MemoryReader;
using testing::Random;
using testing::RandomCopy;
using testing::same_bytes;
using testing::seed;

constexpr std::int64_t kMiB = 1 << 20;

/// Passes on bytes in parts of 100,003, and records the length of each stream.
class StreamingFile final : public MemoryFile {
 public:
  using MemoryFile::MemoryFile;
  int streams_at_once() const override { return has_streams ? 3 : 0; }
  void stream(std::int64_t offset_bytes, std::int64_t bytes, const ByteTaker& take) const override {
    {
      const std::scoped_lock lock(mutex_);
      lengths.push_back(bytes);
    }
    std::vector<std::byte> part;
    for (std::int64_t done = 0; done < bytes; done += std::ssize(part)) {
      part.resize(static_cast<std::size_t>(std::min<std::int64_t>(100'003, bytes - done)));
      if (offset_bytes + done + std::ssize(part) > broken_at) {
        throw Error(ErrorCode::kNotFound, "cannot reach the server").in_file("s3://b/in");
      }
      read_at(offset_bytes + done, part);
      take(part);
    }
  }

  mutable std::vector<std::int64_t> lengths;
  std::int64_t broken_at = INT64_MAX;  ///< Bytes behind this position never arrive.
  bool has_streams = true;

 private:
  mutable std::mutex mutex_;
};

class StreamingReader final : public MemoryReader {
 public:
  explicit StreamingReader(const RandomCopy& the) : MemoryReader(the.source, the.source_files) {
    for (const auto& bytes : the.source_files) files.push_back(std::make_shared<StreamingFile>(bytes));
  }
  std::shared_ptr<const RandomReader> file(std::uint32_t index) const override { return files.at(index); }
  std::vector<std::int64_t> lengths() const {
    std::vector<std::int64_t> all;
    for (const auto& file : files) all.insert(all.end(), file->lengths.begin(), file->lengths.end());
    return all;
  }

  std::vector<std::shared_ptr<StreamingFile>> files;
};

class LocalWriter final : public CountingWriter {
 public:
  using CountingWriter::CountingWriter;
  int descriptor() const override { return 0; }
  void read_back(std::int64_t offset_bytes, std::span<std::byte> out) override {
    std::ranges::copy(std::span(bytes).subspan(static_cast<std::size_t>(offset_bytes), out.size()), out.begin());
  }
};

class KeptLog final : public TileLog {
 public:
  const TileRecord* written_before(std::int64_t tile) const override {
    const auto found = before.find(tile);
    return found == before.end() ? nullptr : &found->second;
  }
  void add(TileRecord record) override {
    const std::scoped_lock lock(mutex_);
    EXPECT_TRUE(added.try_emplace(record.tile, record).second) << "tile " << record.tile << " twice";
  }

  std::map<std::int64_t, TileRecord> before, added;

 private:
  std::mutex mutex_;
};

/// A copy to local files.
struct Streaming {
  explicit Streaming(const RandomCopy& copied, PlanOptions options = {}) : the(copied), reader(copied) {
    plan = plan_copies(the.source, the.target, options);
    for (const File& file : the.target.files) {
      files.push_back(std::make_unique<LocalWriter>(file.bytes));
      writers.push_back(files.back().get());
    }
  }
  void run(ExecuteOptions options = {}) {
    checksums = execute(plan, the.source, reader, the.target, writers, options, progress);
  }
  void expect_all_written() const {
    for (std::size_t i = 0; i < the.expected.size(); ++i) {
      EXPECT_TRUE(same_bytes(files[i]->bytes, the.expected[i])) << "file " << i;
      EXPECT_TRUE(files[i]->writes == the.writes[i]) << "times written, file " << i;
    }
    EXPECT_EQ(progress.bytes_written, plan.bytes_to_write);
    EXPECT_GE(progress.bytes_read, plan.bytes_to_read);
  }

  const RandomCopy& the;
  StreamingReader reader;
  Plan plan;
  std::vector<std::unique_ptr<LocalWriter>> files;
  std::vector<FileWriter*> writers;
  Progress progress;
  std::unique_ptr<StorageChecksums> checksums;
};

constexpr std::int64_t kElement = 16;  ///< Few long elements, because RandomCopy visits each.

/// Adds a tensor behind those before it in the source, in pieces of equal length; in one piece in the target.
/// \param file  of the source
void add_line(RandomCopy& the, std::int64_t bytes, std::int64_t gap = 0, std::int64_t pieces = 1,
              std::uint32_t file = 0) {
  const std::int64_t elements = bytes / kElement, each = elements / pieces;
  const std::string name = fmt::format("t{}", the.source.tensors.size());
  std::vector<MadeChunk> chunks;
  for (std::int64_t i = 0; i < pieces; ++i) {
    const std::uint32_t storage = add_storage(the.source, file, each * kElement, gap);
    chunks.push_back({{i * each}, {each}, {1}, 0, storage, static_cast<std::int32_t>(i)});
  }
  add_tensor(the.source, name, DType::kComplex128, {elements}, chunks);
  const std::uint32_t storage = add_storage(the.target, 0, bytes, 7);
  add_tensor(the.target, name, DType::kComplex128, {elements}, {{{0}, {elements}, {1}, 0, storage, 0}});
}

TEST(StreamTiles, TakesRunsNearEachOtherWithOneRequest) {
  Random random(1);
  RandomCopy the;
  add_line(the, 3 * kMiB, 100);
  add_line(the, 2 * kMiB, 100);
  add_line(the, kElement, 60'000);
  add_line(the, kMiB, 100'000);
  add_line(the, 17 * kMiB);
  the.fill(random);
  for (const bool checksums : {false, true}) {
    Streaming streaming(the, {.threads = 2, .checksums = checksums});
    streaming.run({.threads = 2, .checksums = checksums});
    streaming.expect_all_written();
    std::vector<std::int64_t> lengths = streaming.reader.lengths();
    std::ranges::sort(lengths);
    EXPECT_THAT(lengths, Each(Le(8 * kMiB)));
    EXPECT_EQ(lengths.size(), 4) << "one for the first three tensors, three for the rest, " << lengths.size();
    EXPECT_EQ(streaming.progress.read_calls, 4) << "the workers have nothing to read";
    EXPECT_LE(streaming.progress.write_calls, streaming.plan.tile_count + 23);
    for (std::uint32_t s = 0; checksums && s < the.target.storages.size(); ++s) {
      const Storage& storage = the.target.storages[s];
      EXPECT_EQ(streaming.checksums->crc32_of(s),
                crc32(std::span(the.expected[0])
                          .subspan(static_cast<std::size_t>(storage.offset), static_cast<std::size_t>(storage.bytes))));
    }
  }
}

TEST(StreamTiles, LeavesSmallPiecesShortRunsAndCheckedStoragesToTheWorkers) {
  Random random(2);
  RandomCopy divided, few, checked;
  add_line(divided, 4 * kMiB, 0, 64);
  add_line(few, kMiB - kElement);
  add_line(checked, 4 * kMiB);
  for (RandomCopy* const the : {&divided, &few, &checked}) the->fill(random);
  checked.source.storages[0].crc32 = crc32(std::span(checked.source_files[0]));
  for (const RandomCopy* const the : {&divided, &few, &checked}) {
    Streaming streaming(*the);
    streaming.run();
    streaming.expect_all_written();
    EXPECT_THAT(streaming.reader.lengths(), IsEmpty());
  }
  checked.source.storages[0].crc32 = *checked.source.storages[0].crc32 ^ 1;
  test::expect_error(ErrorCode::kCorruption, "do not match the checksum", [&] { Streaming(checked).run(); });
}

TEST(StreamTiles, LeavesSourceFilesWithoutStreamsToTheWorkers) {
  Random random(6);
  RandomCopy the;
  for (std::uint32_t file = 0; file < 3; ++file) add_line(the, 2 * kMiB, 0, 1, file);
  the.fill(random);
  for (std::size_t without = 0; without < 3; ++without) {  // Zeros of padding are a file of their own, without streams.
    Streaming streaming(the);
    streaming.reader.files[without]->has_streams = false;
    streaming.run();
    streaming.expect_all_written();
    EXPECT_EQ(streaming.reader.lengths().size(), without == 0 ? 0 : 2) << "file " << without;
  }
}

TEST(StreamTiles, LeavesFilesThatAreNotLocalToTheWorkers) {
  Random random(3);
  RandomCopy the;
  add_line(the, 4 * kMiB);
  the.fill(random);
  Streaming streaming(the);
  CountingWriter object(the.target.files[0].bytes);
  streaming.writers[0] = &object;
  streaming.run();
  EXPECT_TRUE(same_bytes(object.bytes, the.expected[0]));
  EXPECT_THAT(streaming.reader.lengths(), IsEmpty());
}

TEST(StreamTiles, RecordsEachTileAndKeepsThoseOfAnEarlierRun) {
  Random random(4);
  RandomCopy the;
  add_line(the, 6 * kMiB);
  the.fill(random);
  KeptLog log;
  Streaming first(the);
  first.run({.log = &log});
  ASSERT_GT(first.plan.tile_count, 2);
  ASSERT_EQ(std::ssize(log.added), first.plan.tile_count);
  EXPECT_THAT(first.reader.lengths(), ElementsAre(6 * kMiB));
  for (const auto& [tile, record] : log.added) {
    const auto begin = static_cast<std::size_t>(the.target.storages[0].offset + tile * first.plan.units[0].tile[0]);
    EXPECT_EQ(record.crc, crc32(std::span(the.expected[0]).subspan(begin, static_cast<std::size_t>(record.bytes))));
  }
  // The second run has all tiles but the last three, of which one has been changed.
  Streaming second(the);
  second.files[0]->bytes = the.expected[0];
  log.before = std::move(log.added);
  log.added.clear();
  for (int i = 1; i <= 2; ++i) log.before.erase(first.plan.tile_count - i);
  second.run({.log = &log});
  EXPECT_EQ(std::ssize(log.added), 2);
  EXPECT_TRUE(same_bytes(second.files[0]->bytes, the.expected[0]));
}

TEST(Stream, ReadsBlocksWithoutAnotherWay) {
  Random random(6);
  const std::vector<std::byte> bytes = testing::random_bytes(random, 2 * kMiB + 1000);
  std::vector<std::byte> taken;
  MemoryFile(bytes).stream(10, 2 * kMiB + 900, [&](auto part) { taken.insert(taken.end(), part.begin(), part.end()); });
  EXPECT_TRUE(same_bytes(taken, {bytes.begin() + 10, bytes.end() - 90}));
}

TEST(StreamTiles, NamesTheTensorWhoseBytesDoNotArrive) {
  Random random(5);
  RandomCopy the;
  add_line(the, 2 * kMiB);
  add_line(the, 2 * kMiB);
  the.fill(random);
  for (const auto& [broken_at, name] : {std::pair(kMiB, "t0"), std::pair(3 * kMiB, "t1")}) {
    Streaming streaming(the);
    streaming.reader.files[0]->broken_at = broken_at;
    try {
      streaming.run();
      FAIL() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kNotFound);
      EXPECT_EQ(error.tensor(), name);
    }
  }
  Streaming full(the);
  full.files[0]->room_for_writes = 2;
  test::expect_error(ErrorCode::kResource, "disk full", [&] { full.run(); });
}

TEST(StreamTiles, WriteWhatTheObviousWayWritesForAnyPieces) {
  const std::uint64_t first = seed();
  for (std::uint64_t round = 0; round < 10; ++round) {
    SCOPED_TRACE(fmt::format("SHARD_SEED={} round {}", first, round));
    Random random(first + round);
    RandomCopy the;
    add_line(the, 2 * kMiB + kElement * below(random, 100'000), below(random, 100'000));
    for (std::int64_t i = 0, n = below(random, 3); i < n; ++i) {
      the.add(random, DType::kComplex128, DType::kComplex128, {1 + below(random, 400), 1 + below(random, 600)});
      the.add(random, DType::kComplex128, DType::kComplex128, {1 + below(random, 200'000)});
    }
    add_line(the, kElement * (1 + below(random, 100'000)));
    the.fill(random);
    Streaming streaming(the, {.threads = 2});
    streaming.run({.threads = 2});
    streaming.expect_all_written();
    EXPECT_FALSE(streaming.reader.lengths().empty()) << "the first tensor";
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace shard
