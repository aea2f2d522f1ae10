#include "libshard/job/copy_job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "libshard/checkpoint/writer.h"
#include "libshard/core/error.h"
#include "libshard/io/file_writer.h"
#include "libshard/io/local_disk.h"
#include "libshard/io/local_output.h"
#include "libshard/ranks/thread_group.h"
#include "tests/support/memory_checkpoint.h"
#include "tests/support/memory_disk.h"

namespace shard {
namespace {

using testing::add_storage;
using testing::add_tensor;
using ::testing::ElementsAre;
using testing::MemoryReader;

/// Puts all storages one after another into "data", and the number of tensors into "index".
class FlatWriter : public Writer {
 public:
  explicit FlatWriter(std::int64_t padding) : padding_(padding) {}
  void place(Catalog& target) override {
    std::int64_t end = 0;
    for (Storage& storage : target.storages) {
      storage.file = 0;
      storage.offset = end;
      end += storage.bytes;
    }
    target.files = {{"data", end + padding_, -1}, {"index", 1, -1}, {"empty", 0, -1}};
  }
  void finish_file(const Catalog& target, std::uint32_t file, const Checksums&, FileWriter& to) override {
    const std::byte count[] = {static_cast<std::byte>(target.tensors.size())};
    if (file == 1) to.write_at(0, count);
  }
  bool is_folder() const override { return true; }

 private:
  std::int64_t padding_;
};

/// Puts every storage between 60 and 62, one after another into "data".
class FramedWriter : public Writer {
 public:
  void place(Catalog& target) override {
    std::int64_t end = 0;
    for (Storage& storage : target.storages) {
      storage.file = 0;
      storage.offset = end + 1;
      end = storage.offset + storage.bytes + 1;
    }
    target.files = {{"data", end, -1}};
  }
  bool needs_checksums() const override { return true; }
  std::unique_ptr<StorageFrames> frames(const Catalog&) const override { return std::make_unique<Frames>(); }
  bool is_folder() const override { return true; }

 private:
  class Frames : public StorageFrames {
    void append_before(std::uint32_t, std::string& out) override { out += '<'; }
    void append_after(std::uint32_t, std::uint32_t, std::string& out) override { out += '>'; }
  };
};

class CopyJobTest : public ::testing::Test {
 protected:
  CopyJobTest() : state_(std::make_shared<MemoryState>()), fs_(make_memory_disk(state_)) {
    fs_->make_folder("/d");
    for (const char* name : {"a", "b"}) {
      const std::uint32_t storage = add_storage(source_, 0, 4);
      add_tensor(source_, name, DType::kUint8, {4}, {{{0}, {4}, {1}, 0, storage, -1}});
    }
    source_.format = "made";
    source_.warnings = {"old"};
    validate_catalog(source_);
    for (Tensor& tensor : source_.tensors) tensor.source = kNoIndex;
    std::vector<std::byte> bytes;
    for (int i = 1; i <= 8; ++i) bytes.push_back(static_cast<std::byte>(i));
    reader_ = make_reader(bytes);
    job_.reader = reader_.get();
    job_.make_writer = [this](const Catalog&) { return std::make_unique<FlatWriter>(padding_); };
    choose({});
  }

  /// Makes the job one over these tensors of the source.
  void choose(const SelectionOptions& options) {
    job_.target = selected_target(*reader_, select(source_, options), WholeLayout{}, {.name = "flat"});
  }

  CopyResult run(const std::function<void(const CopyResult&)>& on_plan = {}) {
    return run_copy_job(*local_output(*fs_, "/d/out", {}, options_), solo_group(), job_, progress_, on_plan);
  }

  std::unique_ptr<MemoryReader> make_reader(const std::vector<std::byte>& file) const {
    return std::make_unique<MemoryReader>(source_, std::vector<std::vector<std::byte>>{file});
  }

  ErrorCode code_of_run() {
    try {
      run();
    } catch (const Error& error) {
      return error.code();
    }
    ADD_FAILURE() << "no error";
    return ErrorCode::kPeer;
  }

  std::vector<int> content(const std::string& path) const {
    std::vector<int> numbers;
    for (const std::byte each : state_->content(path)) numbers.push_back(std::to_integer<int>(each));
    return numbers;
  }

  std::shared_ptr<MemoryState> state_;
  std::unique_ptr<LocalDisk> fs_;
  Catalog source_;
  std::unique_ptr<MemoryReader> reader_;
  std::int64_t padding_ = 0;
  CopyJob job_;
  Progress progress_;
  LocalOutputOptions options_;
};

TEST_F(CopyJobTest, WritesEveryFileOfTheWriter) {
  run();
  EXPECT_THAT(content("/d/out/data"), ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
  EXPECT_THAT(content("/d/out/index"), ElementsAre(2));
  EXPECT_EQ(fs_->status("/d/out/empty").kind, FileKind::kFile);
}

TEST_F(CopyJobTest, WritesSmallStoragesAndTheirFramesTogether) {
  job_.make_writer = [](const Catalog&) { return std::make_unique<FramedWriter>(); };
  run();
  EXPECT_THAT(content("/d/out/data"), ElementsAre('<', 1, 2, 3, 4, '>', '<', 5, 6, 7, 8, '>'));
  EXPECT_EQ(progress_.write_calls, 1);
}

TEST_F(CopyJobTest, CopiesWhatWasSelected) {
  choose({.exclude = {"a"}});
  run();
  EXPECT_THAT(content("/d/out/data"), ElementsAre(5, 6, 7, 8));
  EXPECT_EQ(progress_.bytes_read, 4);
}

TEST_F(CopyJobTest, TellsWhatItWillDoBeforeItDoes) {
  bool existed = true;
  CopyResult told;
  run([&](const CopyResult& result) {
    told = result;
    existed = fs_->status("/d/out").kind != FileKind::kAbsent;
  });
  EXPECT_FALSE(existed);
  EXPECT_EQ(told.bytes_to_read, 8);
  EXPECT_EQ(told.bytes_to_write, 8);
  EXPECT_EQ(told.tensors, 2);
  EXPECT_EQ(told.tiles, 1);
  EXPECT_EQ(told.files.size(), 3);
  EXPECT_THAT(told.warnings, ::testing::Contains("old"));
}

TEST_F(CopyJobTest, TouchesNothingInADryRun) {
  job_.dry_run = true;
  const CopyResult result = run();
  EXPECT_EQ(result.bytes_to_write, 8);
  EXPECT_THAT(state_->paths(), ::testing::Not(::testing::Contains(::testing::HasSubstr("out"))));
}

/// Lets one rank read only its own file.
class OwnFileReader : public Reader {
 public:
  OwnFileReader(const Reader& all, int rank) : all_(all), rank_(rank) {}
  const Catalog& catalog() const override { return all_.catalog(); }
  void locate(std::span<const std::uint32_t>) override {}
  std::shared_ptr<const RandomReader> file(std::uint32_t index) const override {
    if (catalog().files[index].rank == rank_) return all_.file(index);
    throw Error(ErrorCode::kNotFound, "another rank's file");
  }

 private:
  const Reader& all_;
  const int rank_;
};

TEST_F(CopyJobTest, CopiesByOwnerWhatEachRankHolds) {
  Catalog source;
  std::vector<testing::MadeChunk> chunks;
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    chunks.push_back({{2 * rank}, {2}, {1}, 0, add_storage(source, rank, 2), static_cast<std::int32_t>(rank)});
    source.files[rank].rank = static_cast<int>(rank);
  }
  add_tensor(source, "a", DType::kUint8, {6}, chunks);
  validate_catalog(source);
  std::vector<std::vector<std::byte>> files;
  for (int rank = 0; rank < 3; ++rank) files.push_back({std::byte(2 * rank + 1), std::byte(2 * rank + 2)});
  const MemoryReader all(source, files);
  std::atomic<std::int64_t> copied{0};
  run_as_threads(3, [&](Group& group) {
    OwnFileReader own(all, group.rank());
    CopyJob job = job_;
    job.reader = &own;
    job.topology.by_owner = true;
    job.target = selected_target(own, select(source, {}), WholeLayout{}, {.name = "flat"});
    Progress progress;
    const auto output = local_output(*fs_, "/d/out", {}, {});
    copied += run_copy_job(*output, group, job, progress, {}).bytes_to_write;
    EXPECT_EQ(progress.bytes_written, group.rank() == 0 ? 6 : 2);
  });
  EXPECT_EQ(copied, 6);
  EXPECT_THAT(content("/d/out/data"), ElementsAre(1, 2, 3, 4, 5, 6));
}

TEST_F(CopyJobTest, RefusesAnExistingDestination) {
  fs_->make_folder("/d/out");
  EXPECT_EQ(code_of_run(), ErrorCode::kExists);
}

TEST_F(CopyJobTest, RefusesWhatTheDiskCannotHold) {
  padding_ = std::int64_t{1} << 41;
  EXPECT_EQ(code_of_run(), ErrorCode::kResource);
  EXPECT_THAT(state_->paths(), ::testing::Not(::testing::Contains(::testing::HasSubstr("out"))));
}

TEST_F(CopyJobTest, WarnsInADryRunOfWhatTheDiskCannotHold) {
  padding_ = std::int64_t{1} << 41;
  job_.dry_run = true;
  EXPECT_THAT(run().warnings,
              ::testing::Contains("the output needs 2199023255561 bytes, but the disk has only 1099511627776 free"));
}

TEST_F(CopyJobTest, LeavesNothingBehindWhenReadingFails) {
  reader_ = make_reader(std::vector<std::byte>(7));
  job_.reader = reader_.get();
  choose({});
  EXPECT_EQ(code_of_run(), ErrorCode::kCorruption);
  EXPECT_THAT(state_->paths(), ::testing::Not(::testing::Contains(::testing::HasSubstr("out"))));
}

TEST_F(CopyJobTest, LeavesTheDestinationAsItWasWhateverCallFails) {
  int failures = 0;
  for (std::int64_t call = 0;; ++call) {
    fs_->remove_all("/d/out");
    choose({.exclude = {"a"}});
    run();
    choose({});
    options_.force = true;
    const std::int64_t before = state_->calls();
    state_->fail_at(before + call);
    try {
      run();
    } catch (const Error&) {
      ++failures;
      EXPECT_THAT(content("/d/out/data"), ElementsAre(5, 6, 7, 8)) << "call " << call;
    }
    if (state_->calls() <= before + call) break;  // It ended before that call.
    state_->fail_at(-1);
  }
  EXPECT_GT(failures, 5);
}

TEST_F(CopyJobTest, EndsWithInterruptedWhenAskedToStop) {
  std::stop_source stop;
  stop.request_stop();
  job_.stop = stop.get_token();
  EXPECT_EQ(code_of_run(), ErrorCode::kInterrupted);
  EXPECT_EQ(fs_->status("/d/out").kind, FileKind::kAbsent);
}

}  // namespace
}  // namespace shard
