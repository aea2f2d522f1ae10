// Ranks that were given different jobs write nothing. Ranks are threads here.
#include <gtest/gtest.h>

#include "libshard/checkpoint/writer.h"
#include "libshard/io/local_disk.h"
#include "libshard/io/local_output.h"
#include "libshard/io/memory_disk.h"
#include "libshard/job/copy_job.h"
#include "libshard/ranks/thread_group.h"
#include "tests/support/expect_error.h"
#include "tests/support/memory_checkpoint.h"

namespace shard {
namespace {

using test::expect_error;
using testing::add_storage;
using testing::add_tensor;
using testing::MemoryReader;

/// Puts all storages, which have 4 bytes each, into one file: one after another or the last one first.
class OrderedWriter : public Writer {
 public:
  OrderedWriter(std::string file, bool is_reversed) : file_(std::move(file)), is_reversed_(is_reversed) {}
  void place(Catalog& target) override {
    const std::int64_t count = std::ssize(target.storages);
    for (std::int64_t i = 0; i < count; ++i) {
      Storage& storage = target.storages[static_cast<std::size_t>(i)];
      storage.file = 0;
      storage.offset = 4 * (is_reversed_ ? count - 1 - i : i);
    }
    target.files = {{file_, 4 * count, -1}};
  }
  bool is_folder() const override { return true; }

 private:
  std::string file_;
  bool is_reversed_;
};

class RanksThatDiffer : public ::testing::Test {
 protected:
  RanksThatDiffer() {
    disk_->make_folder("/d");
    for (const char* name : {"a", "b"}) {
      const std::uint32_t storage = add_storage(source_, 0, 4);
      add_tensor(source_, name, DType::kUint8, {4}, {{{0}, {4}, {1}, 0, storage, -1}});
    }
    validate_catalog(source_);
  }

  /// Two ranks copy; `change` makes the job of rank 1 another one.
  void expect_refused(const std::function<void(CopyJob&)>& change) {
    MemoryReader reader(source_, {std::vector<std::byte>(8)});
    const auto run = [&](Group& group) {
      CopyJob job;
      job.reader = &reader;
      job.traits.name = "ordered";
      job.make_writer = [](const Catalog&) { return std::make_unique<OrderedWriter>("data", false); };
      job.selection = select(source_, {});
      if (group.rank() == 1) change(job);
      Progress progress;
      run_copy_job(*local_output(*disk_, "/d/out", {}, {}), group, job, progress, {});
    };
    expect_error(ErrorCode::kInvalidArgument, "they would copy different things", [&] { run_as_threads(2, run); });
    EXPECT_EQ(disk_->status("/d/out").kind, FileKind::kAbsent);
  }

  std::unique_ptr<LocalDisk> disk_ = make_memory_disk(std::make_shared<MemoryState>());
  Catalog source_;
};

TEST_F(RanksThatDiffer, InTheNamesOfFilesAreRefused) {
  expect_refused([](CopyJob& job) {
    job.make_writer = [](const Catalog&) { return std::make_unique<OrderedWriter>("DATA", false); };
  });
}

TEST_F(RanksThatDiffer, InTheOffsetsOfStoragesAreRefused) {
  expect_refused([](CopyJob& job) {
    job.make_writer = [](const Catalog&) { return std::make_unique<OrderedWriter>("data", true); };
  });
}

TEST_F(RanksThatDiffer, InADtypeOfTheSameSizeAreRefused) {
  expect_refused([&](CopyJob& job) { job.selection = select(source_, {.cast = {"a=int8"}}); });
}

}  // namespace
}  // namespace shard
