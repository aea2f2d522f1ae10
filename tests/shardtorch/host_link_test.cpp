// Elements between ranks of one host, through memory that they share.

#include "shardtorch/sharded_tensor/host_link.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <functional>
#include <latch>
#include <numeric>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include "shardtorch/c10d/gloo.h"
#include "shardtorch/sharded_tensor/process_group.h"
#include "shardtorch/sharded_tensor/transfer.h"
#include "tests/support/distributed/multi_process_test.h"
#include "tests/support/distributed/sharded_tensor_test.h"
#include "tests/support/expect_error.h"

namespace shard::test {
namespace {

using namespace std::chrono_literals;

constexpr std::int64_t kHalf = HostLink::kHalfBytes;

/// Threads, each with its rank of a group over Gloo.
void over_gloo(int size, const std::function<void(const ProcessGroup&)>& body) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto device = gloo_device(/*is_one_host=*/true);
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      std::vector<int> ranks(static_cast<std::size_t>(size));
      std::iota(ranks.begin(), ranks.end(), 0);
      const ProcessGroup group(make_gloo_group(store, rank, size, device, 20s), std::move(ranks), "test");
      try {
        body(group);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
    });
  }
}

/// Elements that differ from sender to sender and from receiver to receiver.
at::Tensor letter(at::IntArrayRef size, int from, int to) {
  return at::arange(c10::multiply_integers(size), at::kInt).view(size).add(1'000'000 * from + 100'000'000 * to);
}

TEST(HostLink, IsMadeWhereAllRanksAreOnThisHost) {
  over_gloo(3, [](const ProcessGroup& group) {
    const HostLink* const link = group.host_link();
    EXPECT_NE(link, nullptr);
    EXPECT_EQ(group.host_link(), link) << "once";
  });
  over_gloo(1, [](const ProcessGroup& group) { EXPECT_EQ(group.host_link(), nullptr) << "nobody to share with"; });
}

/// Sends the message as `spoil` changes it, like a rank on a different host.
class SpoiledGroup final : public Group {
 public:
  SpoiledGroup(Group& group, std::function<void(std::span<std::byte>)> spoil)
      : group_(group), spoil_(std::move(spoil)) {}
  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }
  std::string_view backend() const override { return group_.backend(); }
  void barrier() override { group_.barrier(); }
  void broadcast(std::span<std::byte> data, int root) override { group_.broadcast(data, root); }
  void all_gather(std::span<const std::byte> own, std::span<std::byte> all) override {
    Bytes sent(own.begin(), own.end());
    spoil_(sent);
    group_.all_gather(sent, all);
  }
  void exchange(std::span<const std::span<const std::byte>> to, std::span<const std::span<std::byte>> from) override {
    std::vector<Bytes> sent;
    for (const auto& piece : to) spoil_(sent.emplace_back(piece.begin(), piece.end()));
    group_.exchange(std::vector<std::span<const std::byte>>(sent.begin(), sent.end()), from);
  }
  void set_timeout(std::chrono::milliseconds timeout) override { group_.set_timeout(timeout); }
  void abort() noexcept override { group_.abort(); }

 private:
  Group& group_;
  std::function<void(std::span<std::byte>)> spoil_;
};

/// Replaces `what` in `bytes` by `by`; nothing replaces the byte at the end.
void replace(std::span<std::byte> bytes, std::string_view what, std::string_view by) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const std::size_t at = text.find(what);
  if (at == std::string_view::npos) return;
  by.empty() ? void(bytes.back() ^= std::byte{1}) : void(std::memcpy(bytes.data() + at, by.data(), by.size()));
}

TEST(HostLink, IsNotMadeWhereOneRankCannotBeReached) {
  const std::vector<std::pair<std::string, std::string>> spoils{
      {host_identity().substr(0, 4), "else"},  // Another host.
      {"/proc/", "/pork/"},                    // Memory that cannot be opened from here.
      {"/proc/", ""},                          // Another's memory at that path.
  };
  for (const auto& [what, by] : spoils) {
    over_gloo(3, [&](const ProcessGroup& group) {
      SpoiledGroup spoiled(group.group(), [&](std::span<std::byte> bytes) {
        if (group.rank() == 1) replace(bytes, what, by);
      });
      EXPECT_EQ(HostLink::open(spoiled), nullptr) << what << " becomes '" << by << "' on rank " << group.rank();
    });
  }
}

TEST(HostLink, ElementsOfManyRoundsArriveWhereTheyBelong) {
  constexpr std::int64_t kRows = 1000, kWide = 5000;  // Three rounds, with two receivers for each rank.
  over_gloo(3, [&](const ProcessGroup& group) {
    const int own = group.rank();
    std::vector<at::Tensor> arrived;
    transfer(group, [&] {
      Transfer plan(3, at::kInt);
      for (int other = 0; other < 3; ++other) {
        const auto i = static_cast<std::size_t>(other);
        // Transposed, then empty, then packed; the received elements go to every second column.
        plan.to[i] = {letter({kWide, kRows}, own, other).t(), at::empty({0, 4}, at::kInt), letter({5}, own, other)};
        arrived.push_back(at::zeros({kRows, 2 * kWide}, at::kInt));
        plan.from[i] = {arrived.back().slice(1, 0, 2 * kWide, 2), at::empty({0, 4}, at::kInt),
                        at::empty({5}, at::kInt)};
        arrived.push_back(plan.from[i].back());
      }
      return plan;
    });
    for (int other = 0; other < 3; ++other) {
      const auto i = static_cast<std::size_t>(2 * other);
      EXPECT_TRUE(arrived[i].slice(1, 0, 2 * kWide, 2).equal(letter({kWide, kRows}, other, own).t())) << other;
      EXPECT_TRUE(arrived[i].slice(1, 1, 2 * kWide, 2).eq(0).all().item<bool>()) << "nothing beside them";
      EXPECT_TRUE(arrived[i + 1].equal(letter({5}, other, own))) << other;
    }
  });
}

TEST(HostLink, RanksMaySendAndTakeDifferentAmounts) {
  over_gloo(3, [](const ProcessGroup& group) {
    at::Tensor big = at::zeros({kHalf}, at::kInt), small = at::zeros({3}, at::kInt);
    for (int i = 0; i < 3; ++i) {  // Rank 0 has several rounds, rank 1 has one, rank 2 sends nothing.
      transfer(group, [&] {
        Transfer plan(3, at::kInt);
        if (group.rank() == 0) plan.to[2] = {letter({kHalf}, 0, i)};
        if (group.rank() == 1) plan.to[2] = {letter({3}, 1, i)};
        if (group.rank() == 2) plan.from[0] = {big}, plan.from[1] = {small};
        return plan;
      });
      if (group.rank() != 2) continue;
      EXPECT_TRUE(big.equal(letter({kHalf}, 0, i)));
      EXPECT_TRUE(small.equal(letter({3}, 1, i)));
    }
  });
}

TEST(HostLink, ARoundMayEndInsideOfAnyTensor) {
  constexpr std::int64_t kMost = 3 * kHalf / 16;  // Half of it; with one receiver, three quarters.
  over_gloo(2, [](const ProcessGroup& group) {
    const auto other = static_cast<std::size_t>(1 - group.rank());
    const int own = group.rank(), theirs = 1 - own;
    const at::Tensor first = at::zeros({kMost}, at::kInt), second = at::zeros({kMost / 6, 6}, at::kInt);
    transfer(group, [&] {
      Transfer plan(2, at::kInt);
      plan.to[other] = {letter({kMost}, own, 0), letter({kMost / 6, 6}, own, 1)};
      plan.from[other] = {first, second};
      return plan;
    });
    EXPECT_TRUE(first.equal(letter({kMost}, theirs, 0)));
    EXPECT_TRUE(second.equal(letter({kMost / 6, 6}, theirs, 1)));
  });
}

TEST(HostLink, ViewsOfOneMemoryGoToThoseWhoTheyAreFor) {
  over_gloo(5, [](const ProcessGroup& group) {
    const at::Tensor real = at::arange(32.), square = at::complex(real, -real).view({2, 4, 4});
    const std::vector<at::Tensor> views{square[0].t(), square[0], square[1], square[0].conj(), square[0]};
    const at::Tensor arrived = at::zeros({4, 4}, square.options());
    const auto own = static_cast<std::size_t>(group.rank());
    transfer(group, [&] {
      Transfer plan(5, at::kComplexFloat);
      for (std::size_t i = 1; i < 5 && own == 0; ++i) plan.to[i] = {views[i]};
      if (own == 0) plan.to[4] = {views[0]}, plan.to[0] = {square[0]}, plan.from[0] = {arrived};
      if (own != 0) plan.from[0] = {arrived};
      return plan;
    });
    EXPECT_TRUE(arrived.equal(own == 4 ? views[0] : own == 0 ? square[0] : views[own].resolve_conj())) << own;
  });
}

TEST(HostLink, ElementsAreConvertedAndReadAsWhatTheyMean) {
  over_gloo(2, [](const ProcessGroup& group) {
    const at::Tensor sent = at::complex(at::ones({4}), at::arange(4.)).conj();
    const at::Tensor arrived = at::zeros({4}, at::kComplexDouble);
    transfer(group, [&] {
      Transfer plan(2, at::kComplexFloat);
      plan.to[static_cast<std::size_t>(1 - group.rank())] = {sent};
      plan.from[static_cast<std::size_t>(1 - group.rank())] = {arrived};
      return plan;
    });
    EXPECT_TRUE(arrived.equal(at::complex(at::ones({4}), -at::arange(4.)).to(at::kComplexDouble)));
  });
}

TEST(HostLink, WhatFailsInTheFirstRoundFailsOnAllRanksAndTheGroupLives) {
  over_gloo(2, [](const ProcessGroup& group) {
    const at::Tensor arrived = at::zeros({4}, at::kInt);
    const auto move = [&](const at::TensorOptions& of_rank_1) {
      transfer(group, [&] {
        Transfer plan(2, at::kInt);
        if (group.rank() == 1) plan.to[0] = {at::ones({4}, of_rank_1.dtype(at::kInt))};
        if (group.rank() == 0) plan.from[1] = {arrived};
        return plan;
      });
    };
    EXPECT_ANY_THROW(move(at::kMeta));
    EXPECT_TRUE(arrived.eq(0).all().item<bool>());
    move(at::kCPU);
    EXPECT_EQ(arrived.sum().item<int>(), group.rank() == 0 ? 4 : 0);
  });
}

TEST(HostLink, WhatFailsLaterEndsTheMoveOnAllRanks) {
  std::latch ended(2);  // Until then no group is destroyed, because that would also end the other's wait.
  over_gloo(2, [&](const ProcessGroup& group) {
    const auto move = [&] {
      transfer(group, [&] {
        Transfer plan(2, at::kInt);
        if (group.rank() == 1) plan.to[0] = {at::ones({kHalf}, at::kInt), at::ones({4}, at::kMeta)};
        if (group.rank() == 0) plan.from[1] = {at::zeros({kHalf}, at::kInt), at::zeros({4}, at::kInt)};
        return plan;
      });
    };
    const auto begin = std::chrono::steady_clock::now();
    if (group.rank() == 1) {
      EXPECT_ANY_THROW(move());
    } else {
      expect_error(ErrorCode::kPeer, "not respond", move);
    }
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 15s) << "nobody waits for the timeout";
    ended.arrive_and_wait();
  });
}

TEST(HostLink, RanksThatDisagreeOnWhatIsMovedAreToldSo) {
  over_gloo(2, [](const ProcessGroup& group) {
    const auto move = [&] {
      transfer(group, [&] {
        Transfer plan(2, at::kInt);
        if (group.rank() == 1) plan.to[0] = {at::ones({kHalf}, at::kInt)};
        if (group.rank() == 0) plan.from[1] = {at::zeros({5}, at::kInt)};
        return plan;
      });
    };
    expect_error(ErrorCode::kPeer, group.rank() == 0 ? "rank 1 sends a different number" : "not respond", move);
  });
}

TEST(HostLink, SharedMemoryIsWhatItsOwnerMadeAndOfItsSize) {
  const SharedMemory memory(8192);
  memory.reserve(0, 8192);
  EXPECT_NE(::truncate(memory.path().c_str(), 4096), 0) << "others cannot cut it off";
  memory.data()[8191] = std::byte{7};
  EXPECT_EQ(SharedMemory(memory.path(), 8192).data()[8191], std::byte{7});
  for (const std::size_t bytes : {4096, 16384}) {
    expect_error(ErrorCode::kResource, "cannot share memory", [&] { SharedMemory(memory.path(), bytes); });
  }
  expect_error(ErrorCode::kResource, "cannot share memory", [] { SharedMemory("/dev/null", 4096); });
  expect_error(ErrorCode::kResource, "cannot share memory", [&] { memory.reserve(8192, 16384); });
}

/// Rank 1 is killed while the others move its elements.
class RanksOfWhichOneDies : public MultiProcessTestCase {
 protected:
  int world_size() const override { return 3; }
  void set_up() override {
    skip_return_code_checks();
    MultiProcessTestCase::set_up();
  }
};

SHARD_RANKS_TEST(RanksOfWhichOneDies, LeaveTheMoveAndSaySo) {
  const auto store = c10::make_intrusive<c10d::FileStore>(file_name(), world_size());
  init_process_group(make_c10d_world("gloo", store, rank(), world_size(), 20s));
  const ProcessGroupPtr group = default_group();
  EXPECT_NE(group->host_link(), nullptr);
  expect_error(ErrorCode::kPeer, "not respond", [&] {
    for (int i = 0;; ++i) {
      if (i == 3 && rank() == 1) std::raise(SIGKILL);
      const at::Tensor own = at::ones({kHalf}, at::kInt), other = at::zeros({kHalf}, at::kInt);
      transfer(*group, [&] {
        Transfer plan(3, at::kInt);
        plan.to[static_cast<std::size_t>((rank() + 1) % 3)] = {own};
        plan.from[static_cast<std::size_t>((rank() + 2) % 3)] = {other};
        return plan;
      });
      EXPECT_TRUE(other.eq(1).all().item<bool>());
    }
  });
}

}  // namespace
}  // namespace shard::test
