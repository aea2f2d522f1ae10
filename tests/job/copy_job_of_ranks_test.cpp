// Properties of ranks together: they copy the same, check together, and end together. Ranks are threads here.
#include <gtest/gtest.h>

#include <array>
#include <optional>

#include "libshard/checkpoint/writer.h"
#include "libshard/io/local_disk.h"
#include "libshard/io/local_output.h"
#include "libshard/job/copy_job.h"
#include "libshard/ranks/thread_group.h"
#include "tests/support/breaking_group.h"
#include "tests/support/expect_error.h"
#include "tests/support/memory_checkpoint.h"
#include "tests/support/memory_disk.h"

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

/// Puts each storage into a file of its own.
class FilePerStorage : public Writer {
 public:
  void place(Catalog& target) override {
    target.files.clear();
    for (Storage& storage : target.storages) {
      storage.file = static_cast<std::uint32_t>(target.files.size());
      storage.offset = 0;
      target.files.push_back({std::to_string(storage.file), storage.bytes, -1});
    }
  }
  bool is_folder() const override { return true; }
};

/// A source of tensors in one file of zeros, and a job that copies it.
class CopyJobOfRanks : public ::testing::Test {
 protected:
  CopyJobOfRanks() { disk_->make_folder("/d"); }
  void add(const char* name, std::int64_t bytes) {
    const std::uint32_t storage = add_storage(source_, 0, bytes);
    add_tensor(source_, name, DType::kUint8, {bytes}, {{{0}, {bytes}, {1}, 0, storage, -1}});
  }

  void copy(Group& group, const std::function<void(CopyJob&)>& change) {
    Progress progress;
    copy(group, change, "/d/out", progress);
  }
  void copy(Group& group, const std::function<void(CopyJob&)>& change, const std::string& destination,
            Progress& progress) {
    MemoryReader reader(source_, {std::vector<std::byte>(static_cast<std::size_t>(source_.files[0].bytes))});
    CopyJob job;
    job.reader = &reader;
    job.make_writer = [](const Catalog&) { return std::make_unique<LineWriter>("data", 0); };
    job.target = selected_target(reader, select(source_, {}), WholeLayout{}, {.name = "line"});
    change(job);
    run_copy_job(*local_output(*disk_, destination, {}, {}), group, job, progress, {});
  }

  std::unique_ptr<LocalDisk> disk_ = make_memory_disk(std::make_shared<MemoryState>());
  Catalog source_;
};

TEST_F(CopyJobOfRanks, SucceedsWhereARankIsLostAfterTheCommit) {
  add("a", 4);
  validate_catalog(source_);
  run_as_threads(2, [&](Group& group) {
    if (group.rank() == 0) {
      testing::BreakingGroup breaking(group, *disk_, "/d/out");
      EXPECT_NO_THROW(copy(breaking, [](CopyJob&) {}));
    } else {
      EXPECT_EQ(test::error_of([&] { copy(group, [](CopyJob&) {}); }).code(), ErrorCode::kPeer);
    }
  });
  EXPECT_EQ(disk_->status("/d/out/data").kind, FileKind::kFile);
}

TEST_F(CopyJobOfRanks, ChecksAStorageOfWhichEachRankReadsAPart) {
  add("a", 4 << 20);
  source_.storages[0].crc32 = 1;
  validate_catalog(source_);
  expect_error(ErrorCode::kCorruption, "checksum",
               [&] { run_as_threads(2, [&](Group& group) { copy(group, [](CopyJob&) {}); }); });
  EXPECT_EQ(disk_->status("/d/out").kind, FileKind::kAbsent);
}

TEST_F(CopyJobOfRanks, CountersAreSummedOnRankZeroEvenIfEachRankHasAPlace) {
  add("a", 4);
  add("b", 4);
  validate_catalog(source_);
  run_as_threads(2, [&](Group& group) {
    const auto change = [](CopyJob& job) {
      job.topology.own_places = true;
      job.make_writer = [](const Catalog&) { return std::make_unique<FilePerStorage>(); };
    };
    Progress progress;
    copy(group, change, "/d/out" + std::to_string(group.rank()), progress);
    EXPECT_EQ(progress.bytes_written, group.rank() == 0 ? 8 : 4);
    EXPECT_EQ(progress.is_summed, group.rank() == 0);
  });
}

TEST_F(CopyJobOfRanks, ARankThatCannotFindItsPlaceEndsAllWithItsError) {
  add("a", 4);
  validate_catalog(source_);
  std::array<std::optional<Error>, 2> errors;
  run_as_threads(2, [&](Group& group) {
    const auto state = std::make_shared<MemoryState>();
    const std::unique_ptr<LocalDisk> disk = make_memory_disk(state);
    disk->make_folder("/d");
    MemoryReader reader(source_, {std::vector<std::byte>(4)});
    CopyJob job;
    job.reader = &reader;
    job.make_writer = [](const Catalog&) { return std::make_unique<FilePerStorage>(); };
    job.target = selected_target(reader, select(source_, {}), WholeLayout{}, {.name = "line"});
    job.topology.own_places = true;
    const auto output = local_output(*disk, "/d/out" + std::to_string(group.rank()), {}, {});
    if (group.rank() == 1) state->fail_at(state->calls());
    Progress progress;
    errors[static_cast<std::size_t>(group.rank())] =
        test::error_of([&] { run_copy_job(*output, group, std::move(job), progress, {}); });
  });
  for (const auto& error : errors) {
    EXPECT_EQ(error->code(), ErrorCode::kResource);
    EXPECT_EQ(error->rank(), 1);
  }
}

class RanksThatDiffer : public CopyJobOfRanks {
 protected:
  RanksThatDiffer() {
    add("a", 4);
    add("b", 4);
    validate_catalog(source_);
  }

  /// Two ranks copy; `change` makes their jobs differ.
  void expect_refused(const std::function<void(CopyJob&, int rank)>& change) {
    expect_error(ErrorCode::kInvalidArgument, "their plans differ", [&] {
      run_as_threads(2, [&](Group& group) { copy(group, [&](CopyJob& job) { change(job, group.rank()); }); });
    });
    EXPECT_EQ(disk_->status("/d/out").kind, FileKind::kAbsent);
  }
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
    job.target = selected_target(*job.reader, select(source_, {.cast = {rank == 0 ? "a=float16" : "a=bfloat16"}}),
                                 WholeLayout{}, {.name = "line"});
  });
}

}  // namespace
}  // namespace shard
