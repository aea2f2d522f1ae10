// Runs that the store of an output copies itself are not read, and all other bytes are written once.
#include "libshard/exec/store_copies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "libshard/core/digest.h"
#include "libshard/io/run_copies.h"
#include "tests/exec/random_copies.h"
#include "tests/support/memory_checkpoint.h"

namespace shard {
namespace {

using testing::add_storage;
using testing::add_tensor;
using testing::CountingWriter;
using ::testing::IsEmpty;
using testing::MemoryFile;
using testing::MemoryReader;
using testing::Random;

constexpr std::int64_t kMebibyte = 1 << 20;

class StoredFile final : public MemoryFile {
 public:
  explicit StoredFile(const std::vector<std::byte>& bytes) : MemoryFile(bytes) { name_ = "s3://b/in"; }
  FileIdentity identity() const override { return {1, 2}; }
};

class StoredReader final : public MemoryReader {
 public:
  StoredReader(const Catalog& catalog, const std::vector<std::vector<std::byte>>& files)
      : MemoryReader(catalog, files), file_(std::make_shared<StoredFile>(files.front())) {}
  std::shared_ptr<const RandomReader> file(std::uint32_t) const override { return file_; }

 private:
  std::shared_ptr<const RandomReader> file_;
};

/// Copies all but the first `skipped` bytes of each run.
class CopyingWriter final : public CountingWriter, public RunCopier {
 public:
  CopyingWriter(std::int64_t size, std::span<const std::byte> source, std::int64_t skipped)
      : CountingWriter(size), source_(source), skipped_(skipped) {}
  std::vector<ByteRange> copy_runs(std::span<const SourceRun> runs, const std::stop_token&) override {
    std::vector<ByteRange> copied;
    for (const SourceRun& run : runs) {
      EXPECT_EQ(run.source, "s3://b/in");
      if (run.is_read) {
        read.push_back(run.bytes);
        continue;
      }
      offered.push_back(run.bytes);
      write_at(run.offset + skipped_, source_.subspan(static_cast<std::size_t>(run.source_offset + skipped_),
                                                      static_cast<std::size_t>(run.bytes - skipped_)));
      copied.push_back({run.offset + skipped_, run.offset + run.bytes});
    }
    return copied;
  }

  std::vector<std::int64_t> offered, read;  ///< Bytes of runs.

 private:
  const std::span<const std::byte> source_;
  const std::int64_t skipped_;
};

struct StoreCopying {
  Catalog source, target;
  std::vector<std::int64_t> offered, read;
  Progress progress;
  std::unique_ptr<StorageChecksums> checksums;
  bool is_compared = true;  ///< Each storage is one of the source.

  /// A tensor of bytes behind the one before it, on both sides.
  void add(const std::string& name, std::int64_t bytes, std::int64_t source_gap, std::int64_t target_gap,
           bool is_plain = true) {
    const std::uint32_t from = add_storage(source, 0, bytes, source_gap);
    source.storages[from].plain = is_plain;
    add_tensor(source, name, DType::kUint8, {bytes}, {{{0}, {bytes}, {1}, 0, from, 0}});
    const std::uint32_t to = add_storage(target, 0, bytes, target_gap);
    add_tensor(target, name, DType::kUint8, {bytes}, {{{0}, {bytes}, {1}, 0, to, 0}});
  }

  void run(std::int64_t skipped, const ExecuteOptions& options = {}) {
    Random random(1);
    const std::vector<std::vector<std::byte>> bytes{testing::random_bytes(random, source.files[0].bytes)};
    const StoredReader reader(source, bytes);
    CopyingWriter to(target.files[0].bytes, bytes[0], skipped);
    const std::vector<FileWriter*> files{&to};
    const Plan plan = plan_copies(source, target, {.checksums = options.checksums});
    for (Storage& each : source.storages) {
      if (each.crc32) each.crc32 = crc_in(bytes[0], each);
    }
    checksums = execute(plan, source, reader, target, files, options, progress);
    std::vector<std::byte> expected(to.bytes.size());
    std::vector<unsigned char> writes(to.bytes.size());
    for (std::size_t i = 0; is_compared && i < source.storages.size(); ++i) {
      const Storage &from = source.storages[i], &written = target.storages[i];
      std::copy_n(bytes[0].begin() + from.offset, from.bytes, expected.begin() + written.offset);
      std::fill_n(writes.begin() + written.offset, written.bytes, 1);
    }
    EXPECT_TRUE(to.bytes == expected || !is_compared);
    EXPECT_TRUE(to.writes == writes || !is_compared) << "a byte was written twice, or never";
    for (std::uint32_t i = 0; options.checksums && i < target.storages.size(); ++i) {
      EXPECT_EQ(checksums->crc32_of(i), crc_in(to.bytes, target.storages[i])) << i;
    }
    offered = to.offered;
    read = to.read;
  }

  static std::uint32_t crc_in(std::span<const std::byte> file, const Storage& storage) {
    return crc32(file.subspan(static_cast<std::size_t>(storage.offset), static_cast<std::size_t>(storage.bytes)));
  }
};

TEST(StoreCopies, JoinAdjacentTensorsAndLeaveTheRest) {
  StoreCopying copying;
  copying.add("a", 3 * kMebibyte + 5, 100, 7);
  copying.add("b", 4 * kMebibyte, 0, 0);
  copying.add("c", 2 * kMebibyte, 0, 3);  // Not adjacent in the target.
  copying.add("d", 6 * kMebibyte, 9, 0);  // Not adjacent in the source.
  copying.run(1000);
  EXPECT_THAT(copying.offered, ::testing::ElementsAre(7 * kMebibyte + 5, 6 * kMebibyte));
  EXPECT_EQ(copying.progress.bytes_cloned, 13 * kMebibyte + 5 - 2000);
  EXPECT_EQ(copying.progress.bytes_read, 2 * kMebibyte + 2000);
}

TEST(StoreCopies, AreNotOfferedShortRuns) {
  StoreCopying copying;
  copying.add("a", kLeastCopiedRun - 1, 1, 0);
  copying.run(0);
  EXPECT_THAT(copying.offered, IsEmpty());
}

TEST(StoreCopies, AreReadIfTheirChecksumIsNotKnown) {
  StoreCopying copying;
  copying.add("a", 6 * kMebibyte, 1, 0);
  copying.run(0, {.checksums = true});
  EXPECT_THAT(copying.offered, IsEmpty());
  EXPECT_THAT(copying.read, ::testing::ElementsAre(6 * kMebibyte));
}

TEST(StoreCopies, TakeTheChecksumsOfTheirSource) {
  StoreCopying copying;
  copying.add("a", 6 * kMebibyte, 1, 0);
  copying.add("b", 7 * kMebibyte, 1, 3);
  copying.add("c", 8 * kMebibyte, 1, 3);
  copying.source.storages[0].crc32 = copying.source.storages[2].crc32 = 0;  // Set by run.
  copying.run(1000, {.checksums = true});
  EXPECT_THAT(copying.offered, ::testing::ElementsAre(6 * kMebibyte, 8 * kMebibyte));
  EXPECT_THAT(copying.read, ::testing::ElementsAre(7 * kMebibyte));
  EXPECT_EQ(copying.progress.bytes_read, 7 * kMebibyte + 2000);
}

/// A tensor of two storages of the source has a known checksum only if both are whole.
TEST(StoreCopies, JoinTheChecksumsOfWholeStorages) {
  for (const bool is_whole : {true, false}) {
    StoreCopying copying;
    const std::int64_t rows = 6 * kMebibyte, rest = is_whole ? 0 : 5;
    const std::uint32_t first = add_storage(copying.source, 0, rows, 100);
    const std::uint32_t second = add_storage(copying.source, 0, rows + rest, 100);
    copying.source.storages[first].crc32 = copying.source.storages[second].crc32 = 0;
    add_tensor(copying.source, "a", DType::kUint8, {2 * rows},
               {{{0}, {rows}, {1}, 0, first, 0}, {{rows}, {rows}, {1}, 0, second, 0}});
    const std::uint32_t to = add_storage(copying.target, 0, 2 * rows, 7);
    add_tensor(copying.target, "a", DType::kUint8, {2 * rows}, {{{0}, {2 * rows}, {1}, 0, to, 0}});
    copying.is_compared = false;
    copying.run(1000, {.checksums = true});
    EXPECT_EQ(copying.offered.size(), is_whole ? 2U : 0U);
    EXPECT_EQ(copying.read.size(), is_whole ? 0U : 2U);
  }
}

TEST(StoreCopies, AreNotOfferedDecodedBytes) {
  StoreCopying copying;
  copying.add("a", 6 * kMebibyte, 1, 0, false);
  copying.run(0);
  EXPECT_THAT(copying.offered, IsEmpty());
}

}  // namespace
}  // namespace shard
