#include "libshard/exec/read_boxes.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>

#include "libshard/core/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/memory_checkpoint.h"

namespace shard {
namespace {

using testing::add_storage;
using testing::add_tensor;
using testing::MadeChunk;
using testing::MemoryReader;
using Bytes = std::vector<std::byte>;

Bytes bytes_of(const std::vector<int>& values) {
  Bytes bytes;
  for (const int value : values) bytes.push_back(static_cast<std::byte>(value));
  return bytes;
}

Box box_of(const std::vector<std::int64_t>& offsets, const std::vector<std::int64_t>& sizes) {
  return {offsets, sizes};
}

/// A matrix of 4 x 3 bytes 0, 1, ..., 11: its upper half in one file, its lower half transposed in another one; and a
/// vector of float32, 1 and 2.
struct TwoFiles {
  TwoFiles() {
    const std::uint32_t upper = add_storage(catalog, 0, 6), lower = add_storage(catalog, 1, 6);
    add_tensor(catalog, "matrix", DType::kUint8, {4, 3},
               {MadeChunk{{0, 0}, {2, 3}, {3, 1}, 0, upper}, MadeChunk{{2, 0}, {2, 3}, {1, 2}, 0, lower}});
    const std::uint32_t numbers = add_storage(catalog, 1, 8);
    add_tensor(catalog, "vector", DType::kFloat32, {2}, {MadeChunk{{0}, {2}, {1}, 0, numbers}});
  }
  std::int64_t read(const std::vector<WantedBox>& wanted, const ReadBoxesOptions& options = {}) const {
    const MemoryReader reader(
        catalog, {bytes_of({0, 1, 2, 3, 4, 5}), bytes_of({6, 9, 7, 10, 8, 11, 0, 0, 0x80, 0x3f, 0, 0, 0, 0x40})});
    return read_boxes(reader, wanted, options);
  }
  Catalog catalog;
};

TEST(ReadBoxes, FillsABoxAcrossChunksAndNothingElse) {
  Bytes memory(4, std::byte{99});
  const std::int64_t read = TwoFiles().read({{0, box_of({1, 1}, {2, 2}), DType::kUint8, memory}});
  EXPECT_EQ(memory, bytes_of({4, 5, 7, 8}));
  EXPECT_LE(read, 8) << "two rows of the upper half are not needed";
}

TEST(ReadBoxes, FillsManyBoxesOfOneTensorInOneRun) {
  Bytes rows(6), column(4), none;
  TwoFiles().read({{0, box_of({2, 0}, {2, 3}), DType::kUint8, rows},
                   {0, box_of({0, 2}, {4, 1}), DType::kUint8, column},
                   {0, box_of({4, 0}, {0, 3}), DType::kUint8, none}},
                  {.threads = 3});
  EXPECT_EQ(rows, bytes_of({6, 7, 8, 9, 10, 11}));
  EXPECT_EQ(column, bytes_of({2, 5, 8, 11}));
}

TEST(ReadBoxes, ConvertsToTheDTypeOfTheMemory) {
  Bytes memory(4);
  TwoFiles().read({{1, box_of({0}, {2}), DType::kBfloat16, memory}});
  EXPECT_EQ(memory, bytes_of({0x80, 0x3f, 0, 0x40}));
}

TEST(ReadBoxes, RefusesABoxOutsideItsTensor) {
  Bytes memory(6);
  const Error error = test::error_of([&] { TwoFiles().read({{0, box_of({3, 0}, {2, 3}), DType::kUint8, memory}}); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(error.tensor(), "matrix");
  EXPECT_EQ(error.expected(), "[4, 3]");
}

TEST(ReadBoxes, RefusesABoxThatEndsInsideAByte) {
  Catalog catalog;
  add_tensor(catalog, "sixths", DType::kFloat6E2m3fn, {8}, {MadeChunk{{0}, {8}, {1}, 0, add_storage(catalog, 0, 6)}});
  const MemoryReader reader(catalog, {bytes_of({1, 2, 3, 4, 5, 6})});
  Bytes half(3), part(2);
  read_boxes(reader, std::vector<WantedBox>{{0, box_of({4}, {4}), DType::kFloat6E2m3fn, half}}, {});
  EXPECT_EQ(half, bytes_of({4, 5, 6}));
  test::expect_error(ErrorCode::kUnsupported, "ends inside a byte", [&] {
    read_boxes(reader, std::vector<WantedBox>{{0, box_of({0}, {2}), DType::kFloat6E2m3fn, part}}, {});
  });
}

TEST(ReadBoxes, RefusesMemoryOfADifferentSize) {
  Bytes memory(5);
  const Error error = test::error_of([&] { TwoFiles().read({{0, box_of({0, 0}, {2, 3}), DType::kUint8, memory}}); });
  EXPECT_EQ(error.expected(), "6");
  EXPECT_EQ(error.found(), "5");
}

TEST(ReadBoxes, StopsOnRequest) {
  std::stop_source stop;
  stop.request_stop();
  Bytes memory(6);
  test::expect_error(ErrorCode::kInterrupted, "interrupted", [&] {
    TwoFiles().read({{0, box_of({0, 0}, {2, 3}), DType::kUint8, memory}}, {.stop = stop.get_token()});
  });
}

/// A file on a disk whose bytes are not in the page cache.
class DiskFile final : public testing::MemoryFile {
 public:
  explicit DiskFile(std::size_t bytes) : MemoryFile(Bytes(bytes, std::byte{7})) {}
  ~DiskFile() override { ::close(descriptor_); }
  DiskFile(const DiskFile&) = delete;
  DiskFile& operator=(const DiskFile&) = delete;
  int descriptor() const override { return descriptor_; }
  void read_at(std::int64_t offset_bytes, std::span<std::byte> out) const override {
    before_read();
    MemoryFile::read_at(offset_bytes, out);
  }
  std::function<void()> before_read;

 private:
  int descriptor_ = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
};

/// One tensor of bytes that fills a DiskFile.
class DiskReader final : public Reader {
 public:
  explicit DiskReader(std::int64_t bytes) : memory(static_cast<std::size_t>(bytes)) {
    add_tensor(catalog_, "line", DType::kUint8, {bytes},
               {MadeChunk{{0}, {bytes}, {1}, 0, add_storage(catalog_, 0, bytes)}});
    file_ = std::make_shared<DiskFile>(memory.size());
  }
  const Catalog& catalog() const override { return catalog_; }
  void locate(std::span<const std::uint32_t>) override {}
  std::shared_ptr<const RandomReader> file(std::uint32_t) const override { return file_; }
  void read(std::function<void()> before_read, const ReadBoxesOptions& options) {
    file_->before_read = std::move(before_read);
    const WantedBox all{0, box_of({0}, {std::ssize(memory)}), DType::kUint8, memory};
    read_boxes(*this, std::span(&all, 1), options);
  }
  Bytes memory;

 private:
  Catalog catalog_;
  std::shared_ptr<DiskFile> file_;
};

/// A slow disk takes seconds for all bytes of a tile.
TEST(ReadBoxes, StopsInTheMiddleOfATileOfADisk) {
  DiskReader reader(16 << 20);
  std::stop_source stop;
  int reads = 0;
  const auto stop_first = [&] {
    ++reads;
    stop.request_stop();
  };
  test::expect_error(ErrorCode::kInterrupted, "interrupted",
                     [&] { reader.read(stop_first, {.threads = 1, .stop = stop.get_token()}); });
  EXPECT_EQ(reads, 1);
  EXPECT_EQ(reader.memory.back(), std::byte{0}) << "one read is not the whole tile";
}

TEST(ReadBoxes, ReadsOneTensorOfADiskWithAllThreads) {
  constexpr int kThreads = 4;
  DiskReader reader(8 << 20);
  std::mutex mutex;
  std::condition_variable changed;
  int reads = 0;
  bool are_together = true;
  reader.read(
      [&] {
        std::unique_lock lock(mutex);
        ++reads;
        changed.notify_all();
        if (!changed.wait_for(lock, std::chrono::seconds(are_together ? 10 : 0), [&] { return reads >= kThreads; })) {
          are_together = false;
        }
      },
      {.threads = kThreads});
  EXPECT_TRUE(are_together) << "each thread waits for the reads of the others";
  EXPECT_EQ(reader.memory, Bytes(reader.memory.size(), std::byte{7}));
}

}  // namespace
}  // namespace shard
