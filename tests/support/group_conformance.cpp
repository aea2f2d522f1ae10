#include "tests/support/group_conformance.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <functional>
#include <span>
#include <stdexcept>
#include <thread>

#include "libshard/core/error.h"

namespace shard::testing {

namespace {

void require(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error(what);
}

/// Bytes that encode sender, receiver and position. After a period they are copied, because a loop over gigabytes takes
/// seconds.
Bytes pattern(int from, int to, std::size_t bytes) {
  constexpr std::size_t kPeriod = 251 * 256;
  Bytes data(bytes);
  for (std::size_t i = 0; i < std::min(bytes, kPeriod); ++i) {
    data[i] = static_cast<std::byte>(static_cast<std::size_t>(from * 31 + to * 7) + i + i / 251);
  }
  for (std::size_t done = kPeriod; done < bytes; done *= 2) {
    std::memcpy(data.data() + done, data.data(), std::min(done, bytes - done));
  }
  return data;
}

bool is_pattern(std::span<const std::byte> data, int from, int to) {
  return data.empty() || std::memcmp(data.data(), pattern(from, to, data.size()).data(), data.size()) == 0;
}

void ranks_are_numbered(Group& group) {
  require(group.size() >= 1 && group.rank() >= 0 && group.rank() < group.size(), "rank outside the group");
  std::vector<int> ranks(static_cast<std::size_t>(group.size()));
  const int own = group.rank();
  group.all_gather(std::as_bytes(std::span(&own, 1)), std::as_writable_bytes(std::span(ranks)));
  for (int i = 0; i < group.size(); ++i) require(ranks[static_cast<std::size_t>(i)] == i, "ranks are not in order");
}

/// Checks that no rank leaves before the last one has arrived, by the clock that the processes of a host share.
void barriers_hold_everybody(Group& group) {
  const auto now = [] { return std::chrono::steady_clock::now().time_since_epoch().count(); };
  if (group.rank() == group.size() - 1) std::this_thread::sleep_for(std::chrono::milliseconds(30));
  const std::int64_t came = now();
  group.barrier();
  const std::array<std::int64_t, 2> own{came, now()};
  std::vector<std::array<std::int64_t, 2>> all(static_cast<std::size_t>(group.size()));
  group.all_gather(std::as_bytes(std::span(own)), std::as_writable_bytes(std::span(all)));
  for (const auto& times : all) require(all.back()[0] <= times[1], "a rank passed the barrier alone");
}

void broadcasts_from_every_root(Group& group) {
  for (int root = 0; root < group.size(); ++root) {
    for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{1000}, std::size_t{1} << 20}) {
      Bytes data = group.rank() == root ? pattern(root, 0, bytes) : Bytes(bytes);
      group.broadcast(data, root);
      require(is_pattern(data, root, 0), fmt::format("{} bytes from root {}", bytes, root));
    }
  }
}

void all_gathers_equal_parts(Group& group) {
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{3}, std::size_t{4096}, std::size_t{300'001}}) {
    const Bytes own = pattern(group.rank(), 0, bytes);
    Bytes all(bytes * static_cast<std::size_t>(group.size()));
    group.all_gather(own, all);
    for (int i = 0; i < group.size(); ++i) {
      const auto part = std::span(all).subspan(static_cast<std::size_t>(i) * bytes, bytes);
      require(is_pattern(part, i, 0), fmt::format("part {} of {} bytes", i, bytes));
    }
  }
}

std::size_t uneven(int from, int to) {
  return (from + to) % 3 == 0 ? 0 : static_cast<std::size_t>(from * 1000 + to * 17 + 1);
}

void exchange_pieces(Group& group, const std::function<std::size_t(int from, int to)>& bytes) {
  const auto ranks = static_cast<std::size_t>(group.size());
  std::vector<Bytes> sent(ranks), received(ranks);
  std::vector<std::span<const std::byte>> to(ranks);
  std::vector<std::span<std::byte>> from(ranks);
  for (int i = 0; i < group.size(); ++i) {
    const auto at = static_cast<std::size_t>(i);
    to[at] = sent[at] = pattern(group.rank(), i, bytes(group.rank(), i));
    received[at].resize(bytes(i, group.rank()));
    from[at] = received[at];
  }
  group.exchange(to, from);
  for (int i = 0; i < group.size(); ++i) {
    require(is_pattern(received[static_cast<std::size_t>(i)], i, group.rank()),
            fmt::format("the piece from rank {}", i));
  }
}

void exchanges_uneven_pieces(Group& group) { exchange_pieces(group, uneven); }
void exchanges_nothing(Group& group) {
  exchange_pieces(group, [](int, int) { return std::size_t{0}; });
}
void exchanges_large_pieces(Group& group) {
  exchange_pieces(group, [](int from, int to) { return from == 0 && to == 0 ? 0 : (std::size_t{5} << 20) + 3; });
}
void exchanges_more_than_two_gib(Group& group) {
  const std::size_t bytes = (std::size_t{2} << 30) + 5;
  const int last = group.size() - 1;
  exchange_pieces(group, [&](int from, int to) { return from == 0 && to == last ? bytes : 0; });
}

void gathers_pieces_of_any_size(Group& group) {
  for (int root = 0; root < group.size(); ++root) {
    const std::vector<Bytes> pieces = gather(group, pattern(group.rank(), root, uneven(group.rank(), root)), root);
    require(pieces.size() == (group.rank() == root ? static_cast<std::size_t>(group.size()) : 0), "who has pieces");
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const int from = static_cast<int>(i);
      require(pieces[i] == pattern(from, root, uneven(from, root)), fmt::format("the piece of rank {}", i));
    }
  }
  const std::vector<Bytes> pieces = all_gather(group, pattern(group.rank(), 1, uneven(group.rank(), 1)));
  for (int i = 0; i < group.size(); ++i) {
    require(pieces[static_cast<std::size_t>(i)] == pattern(i, 1, uneven(i, 1)), fmt::format("the piece of rank {}", i));
  }
  std::vector<Bytes> outgoing;
  for (int to = 0; to < group.size(); ++to) outgoing.push_back(pattern(group.rank(), to, uneven(group.rank(), to)));
  const std::vector<Bytes> incoming = all_to_all(group, outgoing);
  for (int from = 0; from < group.size(); ++from) {
    const Bytes expected = from == group.rank() ? Bytes() : pattern(from, group.rank(), uneven(from, group.rank()));
    require(incoming[static_cast<std::size_t>(from)] == expected, fmt::format("the piece that rank {} sent", from));
  }
  const Bytes told = broadcast(group, pattern(group.rank(), 2, 77), group.size() - 1);
  require(told == pattern(group.size() - 1, 2, 77), "what the last rank told");
}

void keeps_order_over_many_operations(Group& group) {
  for (int i = 0; i < 200; ++i) {
    const std::array<int, 2> own{group.rank(), i};
    std::vector<std::array<int, 2>> all(static_cast<std::size_t>(group.size()));
    group.all_gather(std::as_bytes(std::span(own)), std::as_writable_bytes(std::span(all)));
    for (int j = 0; j < group.size(); ++j) {
      require(all[static_cast<std::size_t>(j)] == std::array<int, 2>{j, i}, fmt::format("operation {}", i));
    }
  }
}

/// Whether a barrier fails with Error kPeer, long before `timeout`.
void require_broken(Group& group, std::chrono::seconds timeout, const std::string& what) {
  group.set_timeout(timeout);
  const auto begin = std::chrono::steady_clock::now();
  try {
    group.barrier();
  } catch (const Error& error) {
    require(error.code() == ErrorCode::kPeer, what + ": the wrong code");
    require(std::chrono::steady_clock::now() - begin < timeout / 2, what + ": it took too long");
    return;
  }
  throw std::runtime_error(what + ": the barrier passed");
}

/// With MPI, other ranks notice when the process ends.
void abort_ends_the_others(Group& group) {
  if (group.size() == 1) return;
  if (group.rank() == group.size() - 1) return group.abort();
  require_broken(group, std::chrono::seconds(60), "after a rank gave up");
}

/// The last rank arrives late; meanwhile rank 0 knows that it waits for this rank.
void says_whom_it_waits_for(Group& group) {
  const auto last = static_cast<std::size_t>(group.size() - 1);
  if (last == 0 || group.backend() == "nccl") return;  // NCCL does not report it.
  group.barrier();
  const auto late = std::chrono::steady_clock::now() + std::chrono::milliseconds(800);
  bool has_said = false;
  std::jthread observer([&](const std::stop_token& stop) {
    while (group.rank() == 0 && !has_said && !stop.stop_requested()) {
      const auto wait = group.waits_for();
      has_said = wait && wait->rank == group.size() - 1 && wait->lasts >= std::chrono::milliseconds(200);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  });
  if (group.rank() == group.size() - 1) std::this_thread::sleep_until(late);
  const Bytes own(1);
  Bytes all(last + 1);
  std::vector<std::span<const std::byte>> to(last + 1);
  std::vector<std::span<std::byte>> from(last + 1);
  to[0] = own;
  for (std::size_t i = 0; group.rank() == 0 && i <= last; ++i) from[i] = std::span(all).subspan(i, 1);
  group.exchange(to, from);
  observer = {};  // Stops the thread and waits for it.
  require(group.rank() != 0 || has_said, "rank 0 does not say whom it waits for");
  require(!group.waits_for(), "a rank waits after an operation");
}

void misses_a_silent_rank(Group& group) {
  if (group.size() == 1) return;
  group.set_timeout(std::chrono::milliseconds(1500));
  if (group.rank() == group.size() - 1) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2500));
    return;
  }
  bool passed = true;
  try {
    group.barrier();
  } catch (const Error& error) {
    require(error.code() == ErrorCode::kPeer, "the wrong code");
    passed = false;
  }
  require(!passed, "the barrier passed without a rank");
  require_broken(group, std::chrono::seconds(60), "after a loss");
}

}  // namespace

std::span<const GroupCheck> group_checks() {
  static constexpr std::array kChecks{
      GroupCheck{"RanksAreNumbered", ranks_are_numbered},
      GroupCheck{"BarriersHoldEverybody", barriers_hold_everybody},
      GroupCheck{"BroadcastsFromEveryRoot", broadcasts_from_every_root},
      GroupCheck{"AllGathersEqualParts", all_gathers_equal_parts},
      GroupCheck{"ExchangesUnevenPieces", exchanges_uneven_pieces},
      GroupCheck{"ExchangesNothing", exchanges_nothing},
      GroupCheck{"ExchangesLargePieces", exchanges_large_pieces},
      GroupCheck{"GathersPiecesOfAnySize", gathers_pieces_of_any_size},
      GroupCheck{"KeepsOrderOverManyOperations", keeps_order_over_many_operations},
      GroupCheck{"ExchangesMoreThanTwoGib", exchanges_more_than_two_gib, true},
      GroupCheck{"SaysWhomItWaitsFor", says_whom_it_waits_for},
      GroupCheck{"MissesASilentRank", misses_a_silent_rank, false, true},
      GroupCheck{"AbortEndsTheOthers", abort_ends_the_others, false, true},
  };
  return kChecks;
}

}  // namespace shard::testing
