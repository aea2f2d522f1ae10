// The costs of a job for its ranks, by simulation: scale_program RANKS TENSORS. Ranks are threads; every operation is
// counted as the bytes that a rank sends and receives. Prints a table for tests/RESULTS.md.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <vector>

#include "libshard/io/local_disk.h"
#include "libshard/ranks/collective_step.h"
#include "libshard/ranks/thread_group.h"
#include "tests/support/content.h"

namespace shard {
namespace {

using testing::content_reader;
using testing::open_checkpoint;
using testing::write_checkpoint;
using Clock = std::chrono::steady_clock;

struct Traffic {
  std::int64_t operations = 0, sent = 0, received = 0;
};

/// Counts the traffic of a group.
class CountingGroup final : public Group {
 public:
  CountingGroup(Group& group, Traffic& traffic) : group_(group), traffic_(traffic) {}
  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }
  std::string_view backend() const override { return group_.backend(); }
  void barrier() override {
    ++traffic_.operations;
    group_.barrier();
  }
  void broadcast(std::span<std::byte> data, int root) override {
    count(rank() == root ? bytes(data) : 0, rank() == root ? 0 : bytes(data));
    group_.broadcast(data, root);
  }
  void all_gather(std::span<const std::byte> own, std::span<std::byte> all) override {
    count(bytes(own), bytes(all));
    group_.all_gather(own, all);
  }
  void exchange(std::span<const std::span<const std::byte>> to, std::span<const std::span<std::byte>> from) override {
    std::int64_t sent = 0, received = 0;
    for (const auto& piece : to) sent += bytes(piece);
    for (const auto& piece : from) received += bytes(piece);
    count(sent, received);
    group_.exchange(to, from);
  }
  void set_timeout(std::chrono::milliseconds timeout) override { group_.set_timeout(timeout); }
  void abort() noexcept override { group_.abort(); }

 private:
  static std::int64_t bytes(std::span<const std::byte> data) { return static_cast<std::int64_t>(data.size()); }
  void count(std::int64_t sent, std::int64_t received) {
    ++traffic_.operations;
    traffic_.sent += sent;
    traffic_.received += received;
  }

  Group& group_;
  Traffic& traffic_;
};

void report(const char* what, int ranks, Clock::time_point begin, const std::vector<Traffic>& traffic) {
  Traffic most;
  for (const Traffic& one : traffic) {
    most.operations = std::max(most.operations, one.operations);
    most.sent = std::max(most.sent, one.sent);
    most.received = std::max(most.received, one.received);
  }
  fmt::print("| {} | {} | {} | {} | {} | {} | {:.2f} |\n", what, ranks, most.operations, most.sent, traffic[0].received,
             most.received, std::chrono::duration<double>(Clock::now() - begin).count());
}

void measure(const char* what, int ranks, const std::function<void(Group&)>& body) {
  std::vector<Traffic> traffic(static_cast<std::size_t>(ranks));
  const Clock::time_point begin = Clock::now();
  run_as_threads(ranks, [&](Group& group) {
    CountingGroup counting(group, traffic[static_cast<std::size_t>(group.rank())]);
    body(counting);
  });
  report(what, ranks, begin, traffic);
}

/// A checkpoint of many small tensors, each cut into four chunks.
void make_source(LocalDisk& fs, int tensors) {
  testing::Content content;
  std::mt19937_64 random(1);
  for (int i = 0; i < tensors; ++i) {
    content[fmt::format("layers.{:06}.weight", i)] = testing::random_tensor(random, DType::kUint8, {8, 4});
  }
  write_checkpoint(fs, *content_reader(content),
                   {.format = "dcp", .destination = "/d/source", .layout = RanksLayout{4, 0}});
}

void run(int ranks, int tensors) {
  auto state = std::make_shared<MemoryState>();
  const std::unique_ptr<LocalDisk> fs = make_memory_disk(state);
  fs->make_folder("/d");
  make_source(*fs, tensors);
  fmt::print(
      "| step | ranks | operations a rank | bytes sent, most | received by rank 0 | received, most | seconds |\n");
  measure("agree on a step", ranks, [](Group& group) { collective_step(group, {}, [](std::stop_token) {}); });
  measure("fail together", ranks, [](Group& group) {
    try {
      collective_step(group, {}, [&](std::stop_token) {
        if (group.rank() == group.size() / 2) throw Error(ErrorCode::kResource, "disk full");
      });
    } catch (const Error&) {
      return;  // The expected result.
    }
  });
  measure("compare a fingerprint", ranks, [](Group& group) {
    expect_same(group, "0123456789abcdef0123456789abcdef", ErrorCode::kPeer, "other plans");
  });
  std::mutex one_catalog;  // A rank's reads are not measured.
  measure("whole job", ranks, [&](Group& group) {
    std::unique_ptr<Reader> reader;
    {
      const std::scoped_lock lock(one_catalog);
      reader = open_checkpoint(*fs, "/d/source");
    }
    write_checkpoint(*fs, group, *reader,
                     {.format = "torch", .destination = "/d/out.pt", .single_file = true, .force = true});
  });
}

}  // namespace
}  // namespace shard

int main(int argc, char** argv) {
  shard::run(argc > 1 ? std::atoi(argv[1]) : 1000, argc > 2 ? std::atoi(argv[2]) : 1000);
  return 0;
}
