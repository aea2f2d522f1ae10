// Jobs of ranks with a separate disk and device each: the same output as one process without any. Ranks are threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>

#include "formats/detect.h"
#include "libshard/io/local_output.h"
#include "libshard/job/copy_job.h"
#include "libshard/job/group_store.h"
#include "libshard/ranks/collective_step.h"
#include "libshard/ranks/thread_group.h"
#include "tests/support/content.h"
#include "tests/support/device_double.h"
#include "tests/support/expect_error.h"
#include "tests/support/memory_disk.h"
#include "tests/support/memory_files.h"

namespace shard::testing {
namespace {

/// A backend that does not count as one of devices.
class NamedGroup final : public Group {
 public:
  NamedGroup(Group& inner, std::string_view name) : inner_(inner), name_(name) {}
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  std::string_view backend() const override { return name_; }
  void barrier() override { inner_.barrier(); }
  void broadcast(std::span<std::byte> data, int root) override { inner_.broadcast(data, root); }
  void all_gather(std::span<const std::byte> own, std::span<std::byte> all) override { inner_.all_gather(own, all); }
  void exchange(std::span<const std::span<const std::byte>> to, std::span<const std::span<std::byte>> from) override {
    for (const auto& each : to) largest_bytes = std::max(largest_bytes, std::ssize(each));
    inner_.exchange(to, from);
  }
  void set_timeout(std::chrono::milliseconds timeout) override { inner_.set_timeout(timeout); }
  void abort() noexcept override { inner_.abort(); }

  std::ptrdiff_t largest_bytes = 0;  ///< Bytes that an exchange sent from this rank to another rank.

 private:
  Group& inner_;
  const std::string_view name_;
};

/// A checkpoint of pieces of `ranks` ranks in one format, each rank's files on its own disk, and the job of all of
/// them.
class RanksWithDevices : public ::testing::Test {
 protected:
  RanksWithDevices() {
    std::mt19937_64 random(5);
    constexpr DType kDtypes[] = {DType::kFloat32, DType::kUint8, DType::kInt64, DType::kBfloat16};
    content_ = random_content(random, 12, 9, kDtypes);
    content_["rows"] = random_tensor(random, DType::kFloat32, {1500, 512});
    content_["wide"] = random_tensor(random, DType::kInt64, {7, 20'000});
    for (std::size_t rank = 0; rank < kRanks; ++rank) devices_.push_back(std::make_unique<DeviceDouble>(options_));
    write_checkpoint(*whole_.disk, *content_reader(content_),
                     {.format = "torch-ranks", .destination = "/d/src", .layout = RanksLayout{kRanks, 1}});
    const auto reader = open_checkpoint(*whole_.disk, "/d/src");
    const Files files = whole_.files_below("/d/src");
    for (const File& file : reader->catalog().files) {
      disks_[static_cast<std::size_t>(file.rank)].state->put("/d/src/" + file.path, files.at(file.path));
    }
    write_checkpoint(*whole_.disk, *reader, {.format = "torch-ranks", .destination = "/d/dst", .layout = to_});
  }

  /// Every rank reads, exchanges and writes. \returns the largest number of bytes that a rank sent to another in one
  /// exchange of the group: the number of exchanges depends on the load of the machine.
  std::int64_t run(std::string_view backend, std::int64_t max_memory_bytes) {
    std::array<std::int64_t, kRanks> largest{};
    run_as_threads(kRanks, [&](Group& threads) {
      NamedGroup group(threads, backend);
      const auto rank = static_cast<std::size_t>(group.rank());
      GroupStore store(*disks_[rank].disk, group.rank());
      std::unique_ptr<Reader> reader;
      std::unique_ptr<OutputStore> output;
      collective_step(group, {.traffic = &store}, [&](const std::stop_token&) {
        const Source source{&store, {"/d/src"}};
        reader = detect_format(source).open(source, {});
        reader->load_objects();
        output = local_output(*disks_[rank].disk, "/d/dst", {}, {});
      });
      group.largest_bytes = 0;
      WriteCheckpoint what{.format = "torch-ranks", .destination = "/d/dst", .layout = to_};
      what.threads = 2;
      what.max_memory_bytes = max_memory_bytes;
      what.topology.peer_store = &store;
      what.topology.own_places = true;
      what.device = devices_[rank].get();
      write_checkpoint(*output, group, *reader, what);
      largest[rank] = group.largest_bytes;
    });
    return std::ranges::max(largest);
  }

  Files written() const {
    Files all;
    for (const Disk& each : disks_) all.merge(each.files_below("/d/dst"));
    return all;
  }
  /// The traffic of all devices.
  std::int64_t sum(std::atomic<std::int64_t> DeviceCounters::*counter) const {
    std::int64_t all = 0;
    for (const auto& each : devices_) all += each->counters().*counter;
    return all;
  }

  static constexpr int kRanks = 3;
  const Layout to_ = RanksLayout{kRanks + 1, 0};
  DoubleOptions options_;
  Content content_;
  Disk whole_;
  std::array<Disk, kRanks> disks_;
  std::vector<std::unique_ptr<DeviceDouble>> devices_;
};

TEST_F(RanksWithDevices, WriteWhatOneProcessWritesAndPiecesTravelFromDeviceToDevice) {
  const std::int64_t largest = run("threads", 64 << 20);
  EXPECT_EQ(written(), whole_.files_below("/d/dst"));
  const std::int64_t received = sum(&DeviceCounters::bytes_received);
  EXPECT_GT(received, 2 << 20);
  EXPECT_LT(largest, 64 << 10) << "pieces went through the group";  // Metadata does.
  // Each byte that a tile needs enters a device once, on the rank that reads it. Pieces that arrive do not.
  EXPECT_LT(sum(&DeviceCounters::bytes_in), received + (4 << 20));
}

TEST_F(RanksWithDevices, DoSoWithinLittleMemoryOnTheHostAndOnTheDevice) {
  constexpr std::int64_t kMemory = 32 << 20;
  run("threads", kMemory);
  EXPECT_EQ(written(), whole_.files_below("/d/dst"));
  for (const auto& device : devices_) {
    EXPECT_LE(device->counters().most_bytes, kMemory);
    EXPECT_LE(device->counters().most_pinned, kMemory);
    EXPECT_EQ(device->counters().used_bytes, 0);
  }
}

TEST_F(RanksWithDevices, SendThroughTheHostWhereTheBackendIsNotTheDevices) {
  const std::int64_t largest = run("gloo", 64 << 20);
  EXPECT_EQ(written(), whole_.files_below("/d/dst"));
  EXPECT_EQ(sum(&DeviceCounters::bytes_received), 0);
  EXPECT_GT(largest, 256 << 10);
}

TEST_F(RanksWithDevices, TakeNoMoreThanTheFullestDeviceHasFree) {
  devices_[1] = std::make_unique<DeviceDouble>(DoubleOptions{.memory_bytes = 80 << 20, .taken_bytes = 32 << 20});
  run("threads", 1 << 30);
  EXPECT_EQ(written(), whole_.files_below("/d/dst"));
  for (const auto& device : devices_) EXPECT_LE(device->counters().most_bytes, 48 << 20);
}

TEST_F(RanksWithDevices, EndAlikeWhereADeviceHasTooLittle) {
  devices_[2] = std::make_unique<DeviceDouble>(DoubleOptions{.memory_bytes = 64 << 20, .taken_bytes = 60 << 20});
  const Error error = test::error_of([&] { run("threads", 64 << 20); });
  EXPECT_EQ(error.code(), ErrorCode::kResource);
  EXPECT_EQ(error.expected(), std::to_string(32 << 20));
  EXPECT_EQ(error.found(), std::to_string((4 << 20) - (4 << 20) / 8));
  EXPECT_TRUE(written().empty());
}

}  // namespace
}  // namespace shard::testing
