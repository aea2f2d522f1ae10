// Saving and loading of sharded state on a disk whose n-th call fails, for every n, with ranks as threads.
#include <algorithm>
#include <atomic>
#include <optional>

#include "shardtorch/sharded_tensor/factories.h"
#include "tests/shardtorch/checkpoint_fixture.h"
#include "tests/support/memory_disk.h"

namespace shard::test {
namespace {

constexpr int kRanks = 2;
constexpr const char* kFolder = "/d/saved";

/// A disk in memory with the folder that outputs go to.
struct Disk {
  Disk() { state->put("/d/unrelated", {}); }

  std::shared_ptr<MemoryState> state = std::make_shared<MemoryState>();
  std::unique_ptr<LocalDisk> disk = make_memory_disk(state);
};

at::Tensor whole() { return content({6, 5}, at::kFloat); }
StateDict saved_state() {
  return state_of({{"w", value(cut(whole(), chunk_spec(0, placements(kRanks))))},
                   {"plain", content({3}, at::kInt)},
                   {"step", c10::IValue(7)}});
}
StateDict blank_state() {
  return state_of({{"w", value(blank(whole(), chunk_spec(1, placements(kRanks))))},
                   {"plain", at::zeros({3}, at::kInt)},
                   {"step", c10::IValue(0)}});
}

/// Runs `body` on all ranks and returns the codes of the Errors that they threw, by rank; none for a rank that did not.
std::vector<std::optional<ErrorCode>> codes_of(const std::function<void()>& body) {
  std::vector<std::optional<ErrorCode>> codes(kRanks);
  as_ranks(kRanks, [&](int rank) {
    try {
      body();
    } catch (const Error& error) {
      codes[static_cast<std::size_t>(rank)] = error.code();
    }
  });
  return codes;
}

class FailingDisk : public ::testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Formats, FailingDisk, ::testing::Values("dcp", "torch-ranks"), [](const auto& format) {
  std::string name = format.param;
  std::ranges::replace(name, '-', '_');
  return name;
});

TEST_P(FailingDisk, LeavesNothingOfASaveWhicheverCallFails) {
  bool is_through = false;
  for (std::int64_t call = 0; !is_through; ++call) {
    SCOPED_TRACE(call);
    Disk memory;
    memory.state->fail_at(call);
    const auto codes = codes_of(
        [&] { checkpoint::save(saved_state(), kFolder, nullptr, {.format = GetParam(), .disk = memory.disk.get()}); });
    is_through = memory.state->calls() <= call;  // The call was never made.
    memory.state->fail_at(-1);
    EXPECT_EQ(codes[0], codes[1]);
    EXPECT_EQ(memory.state->open_files(), 0);
    const bool is_there = memory.disk->status(kFolder).kind == FileKind::kFolder;
    EXPECT_EQ(is_there, !codes[0].has_value());
    if (codes[0]) {
      EXPECT_TRUE(*codes[0] == ErrorCode::kResource || *codes[0] == ErrorCode::kNotFound) << code_name(*codes[0]);
    }
    ASSERT_LT(call, 1000) << "the save never gets through";
  }
}

TEST_P(FailingDisk, FailsALoadOnAllRanksWhicheverCallFails) {
  Disk memory;
  as_ranks(kRanks, [&](int) {
    checkpoint::save(saved_state(), kFolder, nullptr, {.format = GetParam(), .disk = memory.disk.get()});
  });
  bool is_through = false;
  for (std::int64_t call = 0; !is_through; ++call) {
    SCOPED_TRACE(call);
    const std::int64_t before = memory.state->calls();
    memory.state->fail_at(before + call);
    std::atomic<int> complete = 0;
    const auto codes = codes_of([&] {
      StateDict state = blank_state();
      checkpoint::load(state, kFolder, nullptr, {.store = memory.disk.get()});
      expect_content(ShardedTensor::of(state["w"].toTensor()), whole());
      EXPECT_TRUE(state["plain"].toTensor().equal(content({3}, at::kInt)));
      EXPECT_EQ(state["step"].toInt(), 7);
      ++complete;
    });
    is_through = memory.state->calls() - before <= call;
    memory.state->fail_at(-1);
    EXPECT_EQ(codes[0], codes[1]);
    EXPECT_EQ(complete, codes[0] ? 0 : kRanks);
    EXPECT_EQ(memory.state->open_files(), 0);
    if (codes[0]) {
      EXPECT_EQ(*codes[0], ErrorCode::kNotFound) << code_name(*codes[0]);
    }
    ASSERT_LT(call, 1000) << "the load never gets through";
  }
}

TEST(FailingDiskOfOneRank, LeavesNothingOfAStateFileWhicheverCallFails) {
  const StateDict state = state_of({{"a", at::ones({3})}});
  bool is_through = false;
  for (std::int64_t call = 0; !is_through; ++call) {
    SCOPED_TRACE(call);
    Disk memory;
    memory.state->fail_at(call);
    bool has_failed = false;
    try {
      save_state_file(state, "/d/s.pt", false, *memory.disk);
    } catch (const Error&) {
      has_failed = true;
    }
    is_through = memory.state->calls() <= call;
    memory.state->fail_at(-1);
    EXPECT_EQ(has_failed, memory.disk->status("/d/s.pt").kind == FileKind::kAbsent);
    EXPECT_EQ(memory.state->open_files(), 0);
    if (!has_failed) {
      EXPECT_TRUE(at::equal(load_state_file("/d/s.pt", *memory.disk)["a"].toTensor(), at::ones({3})));
    }
  }
}

}  // namespace
}  // namespace shard::test
