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

/// Puts all storages into one file, one after another, from `begin` on; the file has four bytes more than it needs.
class LineWriter : public Writer {
 public:
  LineWriter(std::string file, std::int64_t begin) : file_(std::move(file)), begin_(begin) {}
  void place(Catalog& target) override {
    std::int64_t end = begin_;
    for (Storage& storage : target.storages) {
      storage.file = 0;
      storage.offset = end;
      end += storage.bytes;
    }
    target.files = {{file_, end - begin_ + 4, -1}};
  }
  bool is_folder() const override { return true; }

 private:
  std::string file_;
  std::int64_t begin_;
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

  /// Two ranks copy; `change` makes their jobs differ.
  void expect_refused(const std::function<void(CopyJob&, int rank)>& change) {
    MemoryReader reader(source_, {std::vector<std::byte>(8)});
    const auto run = [&](Group& group) {
      CopyJob job;
      job.reader = &reader;
      job.traits.name = "line";
      job.make_writer = [](const Catalog&) { return std::make_unique<LineWriter>("data", 0); };
      job.selection = select(source_, {});
      change(job, group.rank());
      Progress progress;
      run_copy_job(*local_output(*disk_, "/d/out", {}, {}), group, job, progress, {});
    };
    expect_error(ErrorCode::kInvalidArgument, "they would copy different things", [&] { run_as_threads(2, run); });
    EXPECT_EQ(disk_->status("/d/out").kind, FileKind::kAbsent);
  }

  std::unique_ptr<LocalDisk> disk_ = make_memory_disk(std::make_shared<MemoryState>());
  Catalog source_;
};

TEST_F(RanksThatDiffer, InTheNameOfAFileAreRefused) {
  expect_refused([](CopyJob& job, int rank) {
    job.make_writer = [rank](const Catalog&) { return std::make_unique<LineWriter>(rank == 0 ? "a" : "b", 0); };
  });
}

TEST_F(RanksThatDiffer, InTheOffsetsOfStoragesAreRefused) {
  expect_refused([](CopyJob& job, int rank) {
    job.make_writer = [rank](const Catalog&) { return std::make_unique<LineWriter>("data", 4 * rank); };
  });
}

TEST_F(RanksThatDiffer, InADtypeOfTheSameSizeAreRefused) {
  expect_refused([&](CopyJob& job, int rank) {
    job.selection = select(source_, {.cast = {rank == 0 ? "a=float16" : "a=bfloat16"}});
  });
}

}  // namespace
}  // namespace shard
