// Runs that the store of an output copies itself are not read, and all other bytes are written once.
#include "libshard/exec/store_copies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

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
      offered.push_back(run.bytes);
      write_at(run.offset + skipped_, source_.subspan(static_cast<std::size_t>(run.source_offset + skipped_),
                                                      static_cast<std::size_t>(run.bytes - skipped_)));
      copied.push_back({run.offset + skipped_, run.offset + run.bytes});
    }
    return copied;
  }

  std::vector<std::int64_t> offered;

 private:
  const std::span<const std::byte> source_;
  const std::int64_t skipped_;
};

struct StoreCopying {
  Catalog source, target;
  std::vector<std::int64_t> offered;
  Progress progress;

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
    execute(plan, source, reader, target, files, options, progress);
    std::vector<std::byte> expected(to.bytes.size());
    std::vector<unsigned char> writes(to.bytes.size());
    for (std::size_t i = 0; i < source.storages.size(); ++i) {
      const Storage &read = source.storages[i], &written = target.storages[i];
      std::copy_n(bytes[0].begin() + read.offset, read.bytes, expected.begin() + written.offset);
      std::fill_n(writes.begin() + written.offset, written.bytes, 1);
    }
    EXPECT_TRUE(to.bytes == expected);
    EXPECT_TRUE(to.writes == writes) << "a byte was written twice, or never";
    offered = to.offered;
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

TEST(StoreCopies, AreNotOfferedBytesThatNeedAChecksum) {
  StoreCopying copying;
  copying.add("a", 6 * kMebibyte, 1, 0);
  copying.run(0, {.checksums = true});
  EXPECT_THAT(copying.offered, IsEmpty());
}

TEST(StoreCopies, AreNotOfferedDecodedBytes) {
  StoreCopying copying;
  copying.add("a", 6 * kMebibyte, 1, 0, false);
  copying.run(0);
  EXPECT_THAT(copying.offered, IsEmpty());
}

}  // namespace
}  // namespace shard
