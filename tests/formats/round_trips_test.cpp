// On a disk with long round trips, the headers inside of files are requested many at one time, in several files at
// once.
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <numeric>
#include <set>

#include "libshard/checkpoint/container_report.h"
#include "libshard/io/forwarding_reader.h"
#include "tests/support/content.h"

namespace shard {
namespace {

using testing::Content;

/// The requests to the files of a disk. One for many ranges counts once.
struct Requests {
  std::mutex mutex;
  std::condition_variable changed;
  int count = 0;
  /// If set, each request waits until `together` files have one, or some seconds.
  std::size_t together = 0;
  std::set<std::string> waiting;
  bool have_met = false;

  void begin(const std::string& file) {
    std::unique_lock lock(mutex);
    ++count;
    waiting.insert(file);
    have_met = have_met || (together > 0 && waiting.size() >= together);
    changed.notify_all();
    changed.wait_for(lock, std::chrono::seconds(5), [this] { return together == 0 || have_met; });
    waiting.erase(file);
  }
};

class SlowFile final : public ForwardingReader {
 public:
  SlowFile(std::shared_ptr<const RandomReader> file, Requests& requests)
      : ForwardingReader(std::move(file)), requests_(requests) {}
  void read_at(std::int64_t offset_bytes, std::span<std::byte> out) const override {
    requests_.begin(name_);
    file_->read_at(offset_bytes, out);
  }
  void read_many(std::span<const RangedRead> ranges) const override {
    requests_.begin(name_);
    file_->read_many(ranges);
  }
  int requests_at_once() const override { return 4; }

 private:
  Requests& requests_;
};

class SlowStore final : public SourceStore {
 public:
  SlowStore(const SourceStore& inner, Requests& requests) : inner_(inner), requests_(requests) {}
  FileStatus status(const std::string& path) const override { return inner_.status(path); }
  std::vector<std::string> list(const std::string& folder) const override { return inner_.list(folder); }
  std::unique_ptr<RandomReader> open(const std::string& path) const override {
    return std::make_unique<SlowFile>(inner_.open(path), requests_);
  }
  std::unique_ptr<RandomReader> open_below(const std::string& folder, const std::string& relative) const override {
    return std::make_unique<SlowFile>(inner_.open_below(folder, relative), requests_);
  }

 private:
  const SourceStore& inner_;
  Requests& requests_;
};

class Report final : public ContainerReport {
 public:
  void on_crc_run(CrcRange) override { ++runs; }
  void on_crcs_checked(std::int64_t) override {}
  void on_global(std::string_view) override {}
  Findings& findings() override { return found; }

  CollectedFindings found;
  int runs = 0;
};

class RoundTrips : public ::testing::TestWithParam<const char*> {
 protected:
  RoundTrips() {
    std::mt19937_64 random(1);
    Content content;
    for (int i = 0; i < kTensors; ++i) {
      content["w" + std::to_string(i)] = testing::random_tensor(random, DType::kFloat32, {kRanks, 64, 256});
    }
    testing::write_checkpoint(*disk_, *testing::content_reader(content),
                              {.format = GetParam(), .destination = "/c", .layout = RanksLayout{kRanks}});
    OpenOptions options;
    options.findings = &throwing_findings();
    reader_ = format_named(GetParam()).open({&store_, {"/c"}}, options);
    tensors_.resize(kTensors);
    std::iota(tensors_.begin(), tensors_.end(), 0U);
  }

  static constexpr int kTensors = 24, kRanks = 4;
  std::unique_ptr<LocalDisk> disk_ = make_memory_disk(std::make_shared<MemoryState>());
  Requests requests_;
  SlowStore store_{*disk_, requests_};
  std::unique_ptr<Reader> reader_;
  std::vector<std::uint32_t> tensors_;
};

TEST_P(RoundTrips, TensorsOfSeveralFilesAreLocatedAtOneTime) {
  requests_.together = kRanks;
  reader_->locate(tensors_);
  EXPECT_TRUE(requests_.have_met) << "the files were read one after another";
}

TEST_P(RoundTrips, RecordsAreCheckedManyAtOneTime) {
  Report report;
  for (std::uint32_t file = 0; file < reader_->catalog().files.size(); ++file) {
    requests_.count = 0;
    EXPECT_TRUE(reader_->check_container(file, report));
    EXPECT_LT(requests_.count, kTensors / 2) << reader_->catalog().files[file].path;
  }
  EXPECT_EQ(report.runs, kTensors * kRanks);
  EXPECT_TRUE(report.found.all().empty());
}

INSTANTIATE_TEST_SUITE_P(Formats, RoundTrips, ::testing::Values("dcp", "torch-ranks"),
                         [](const auto& each) { return each.index == 0 ? "dcp" : "torch_ranks"; });

}  // namespace
}  // namespace shard
