#include "libshard/ranks/collective_step.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "libshard/core/error.h"
#include "libshard/ranks/thread_group.h"
#include "libshard/ranks/wire.h"

namespace shard {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLong{60'000};  // Never reached, even on a busy machine.

/// A signal that one rank gets.
struct Signal {
  int rank = -1;
  std::stop_token token{};
};

/// Each rank's error from `together`.
std::vector<Error> failures_of(int ranks, const std::function<void(Group&, std::stop_token)>& work,
                               milliseconds timeout = kLong, const Signal& signal = {}) {
  std::vector<Error> failures;
  std::mutex mutex;
  run_as_threads(ranks, [&](Group& group) {
    group.set_timeout(timeout);
    CollectiveStepOptions options{.patience = kLong};
    if (group.rank() == signal.rank) options.stop = signal.token;
    try {
      collective_step(group, options, [&](std::stop_token stop) { work(group, stop); });
    } catch (const Error& error) {
      const std::scoped_lock lock(mutex);
      failures.push_back(error);
    }
  });
  return failures;
}

void wait_for_stop(const std::stop_token& stop) {
  while (!stop.stop_requested()) std::this_thread::sleep_for(milliseconds(1));
  throw Error(ErrorCode::kInterrupted, "interrupted");
}

void expect_interrupted(const std::vector<Error>& failures, std::size_t ranks, int by) {
  EXPECT_EQ(failures.size(), ranks);
  for (const Error& error : failures) {
    EXPECT_EQ(error.code(), ErrorCode::kInterrupted);
    EXPECT_EQ(error.rank(), by);
  }
}

TEST(Together, ReturnsWhenAllAreDone) {
  std::atomic<int> done{0};
  EXPECT_TRUE(failures_of(4, [&](Group& group, std::stop_token) {
                std::this_thread::sleep_for(milliseconds(5 * group.rank()));
                ++done;
              }).empty());
  EXPECT_EQ(done, 4);
}

TEST(Together, ThrowsTheCauseOnAllRanksAndStopsTheirWork) {
  const std::vector<Error> failures = failures_of(4, [](Group& group, std::stop_token stop) {
    if (group.rank() == 2) throw Error(ErrorCode::kResource, "disk full").in_file("out").expected(7).found(3);
    wait_for_stop(stop);
  });
  ASSERT_EQ(failures.size(), 4U);
  for (const Error& error : failures) {
    EXPECT_EQ(error.code(), ErrorCode::kResource);
    EXPECT_STREQ(error.what(), "disk full");
    EXPECT_EQ(error.file(), "out");
    EXPECT_EQ(error.found(), "3");
    EXPECT_EQ(error.rank(), 2);
  }
}

TEST(Together, WhatAllFindTheLowestRankTells) {
  const std::vector<Error> failures = failures_of(3, [](Group& group, const std::stop_token& stop) {
    while (group.rank() < 2 && !stop.stop_requested()) std::this_thread::sleep_for(milliseconds(1));
    throw Error(ErrorCode::kExists, "out exists");
  });
  ASSERT_EQ(failures.size(), 3U);
  for (const Error& error : failures) EXPECT_EQ(error.rank(), 0);
}

TEST(Together, NamesTheRankThatFoundADamagedFileOfAnother) {
  const std::vector<Error> failures = failures_of(3, [](Group& group, const std::stop_token& stop) {
    if (group.rank() == 2) throw Error(ErrorCode::kCorruption, "cut short").in_file("__0_0.distcp").of_rank(0);
    wait_for_stop(stop);
  });
  ASSERT_EQ(failures.size(), 3U);
  for (const Error& error : failures) EXPECT_EQ(error.rank(), 2);
}

TEST(Together, TellsABugFromALostRank) {
  const std::vector<Error> failures = failures_of(2, [](Group& group, const std::stop_token& stop) {
    if (group.rank() == 1) throw std::logic_error("cannot be");
    wait_for_stop(stop);
  });
  ASSERT_EQ(failures.size(), 2U);
  for (const Error& error : failures) {
    EXPECT_EQ(error.code(), ErrorCode::kInternal);
    EXPECT_STREQ(error.what(), "cannot be");
    EXPECT_EQ(error.rank(), 1);
  }
}

TEST(Together, PutsACauseBeforeAnInterruption) {
  const std::vector<Error> failures = failures_of(3, [](Group& group, std::stop_token) {
    throw group.rank() == 2 ? Error(ErrorCode::kCorruption, "damaged") : Error(ErrorCode::kInterrupted, "interrupted");
  });
  // Ranks need not end in one tick; the first observation is the same for all.
  ASSERT_EQ(failures.size(), 3U);
  for (const Error& error : failures) EXPECT_STREQ(error.what(), failures[0].what());
}

TEST(Together, WorkMayTakeLongerThanTheTimeout) {
  EXPECT_TRUE(failures_of(
                  2,
                  [](Group& group, std::stop_token) {
                    if (group.rank() == 1) std::this_thread::sleep_for(milliseconds(2500));
                  },
                  milliseconds(2000))
                  .empty());
}

TEST(Together, MissesARankThatIsSilent) {
  std::atomic<int> lost{0};
  run_as_threads(3, [&](Group& group) {
    group.set_timeout(milliseconds(300));
    while (group.rank() == 1 && lost < 2) std::this_thread::sleep_for(milliseconds(1));
    if (group.rank() == 1) return;
    try {
      collective_step(group, {}, wait_for_stop);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kPeer) ++lost;
    }
  });
  EXPECT_EQ(lost, 2);
}

TEST(Together, ARankThatIsToldToStopDoesNotBlameTheOthers) {
  std::stop_source signal;
  std::atomic<bool> over{false};
  std::optional<Error> told;
  run_as_threads(2, [&](Group& group) {
    group.set_timeout(kLong);
    if (group.rank() == 1) {
      while (!over) std::this_thread::sleep_for(milliseconds(1));
      return;
    }
    signal.request_stop();
    try {
      collective_step(group, {.stop = signal.get_token()}, wait_for_stop);
    } catch (const Error& error) {
      told.emplace(error);
    }
    over = true;
  });
  ASSERT_TRUE(told);
  EXPECT_EQ(told->code(), ErrorCode::kInterrupted);
  EXPECT_EQ(told->rank(), std::nullopt);
}

TEST(Together, SumsWhatIsDoneOnRankZero) {
  std::int64_t last = 0;
  run_as_threads(3, [&](Group& group) {
    CollectiveStepOptions options;
    options.done_bytes = [&] { return std::int64_t{100} + group.rank(); };
    if (group.rank() == 0) options.on_sum = [&](std::int64_t sum) { last = sum; };
    collective_step(group, options, [](std::stop_token) {});
  });
  EXPECT_EQ(last, 303);
}

/// Does not report the rank that an all_gather waits for, like groups of real backends.
class NamelessGroup final : public Group {
 public:
  explicit NamelessGroup(Group& inner) : inner_(inner) {}
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  std::string_view backend() const override { return inner_.backend(); }
  void barrier() override { inner_.barrier(); }
  void broadcast(std::span<std::byte> data, int root) override { inner_.broadcast(data, root); }
  void all_gather(std::span<const std::byte> own, std::span<std::byte> all) override {
    is_nameless_ = true;
    inner_.all_gather(own, all);
    is_nameless_ = false;
  }
  void exchange(std::span<const std::span<const std::byte>> to, std::span<const std::span<std::byte>> from) override {
    inner_.exchange(to, from);
  }
  std::optional<Wait> waits_for() const override { return is_nameless_ ? std::nullopt : inner_.waits_for(); }
  void set_timeout(milliseconds timeout) override { inner_.set_timeout(timeout); }
  void abort() noexcept override { inner_.abort(); }

 private:
  Group& inner_;
  std::atomic<bool> is_nameless_ = false;
};

TEST(Together, NamesARankThatIsSilentFromTheBeginning) {
  std::atomic<bool> is_named = false;
  run_as_threads(3, [&](Group& group) {
    const auto end = std::chrono::steady_clock::now() + kLong;
    const auto pause = [&] { std::this_thread::sleep_for(milliseconds(1)); };
    while (group.rank() == 1 && !is_named && std::chrono::steady_clock::now() < end) pause();
    NamelessGroup nameless(group);
    collective_step(nameless, {}, [&](const std::stop_token& stop) {
      while (group.rank() == 0 && !is_named && !stop.stop_requested()) {
        const auto wait = nameless.waits_for();
        is_named = wait && wait->rank == 1;
        pause();
      }
    });
  });
  EXPECT_TRUE(is_named);
}

TEST(Together, NamesTheRankThatTheOthersWaitFor) {
  LateRanks awaited;
  run_as_threads(3, [&](Group& group) {
    collective_step(group, {.awaited = &awaited}, [&](const std::stop_token&) {
      while (group.rank() == 1 && awaited.for_at_least(milliseconds(20)) != std::vector{1}) {
        std::this_thread::sleep_for(milliseconds(1));
      }
    });
  });
  EXPECT_TRUE(awaited.for_at_least(milliseconds(0)).empty());
}

/// Work that waits for others, on all ranks but one.
class WaitingTraffic final : public StepTraffic {
 public:
  explicit WaitingTraffic(bool waits) : waits_(waits) {}
  void begin(StepHandle&) override {}
  void end() override {}
  void stop() override {}
  std::int64_t word() override { return 0; }
  bool move(Group&, std::span<const std::int64_t>) override { return false; }
  bool waits() const override { return waits_; }

 private:
  const bool waits_;
};

TEST(Together, NamesTheRankWhoseTrafficDoesNotWait) {
  LateRanks awaited;
  std::atomic<bool> is_named{false};
  run_as_threads(3, [&](Group& group) {
    WaitingTraffic traffic(group.rank() != 2);
    collective_step(group, {.traffic = &traffic, .awaited = &awaited}, [&](const std::stop_token&) {
      while (!is_named) {
        if (group.rank() == 2) is_named = awaited.for_at_least(milliseconds(20)) == std::vector{2};
        std::this_thread::sleep_for(milliseconds(1));
      }
    });
  });
}

TEST(LateRanks, AreNoneWhereMostRanksWork) {
  LateRanks awaited;
  awaited.see({true, false, false});
  EXPECT_TRUE(awaited.for_at_least(milliseconds(0)).empty());
  awaited.see({true, false, false, true});
  EXPECT_EQ(awaited.for_at_least(milliseconds(0)), (std::vector{1, 2}));
}

TEST(LateRanks, CountFromWhenOthersBeganToWait) {
  LateRanks awaited;
  awaited.see({true, false});
  std::this_thread::sleep_for(milliseconds(30));
  awaited.see({true, false});
  EXPECT_EQ(awaited.for_at_least(milliseconds(30)), std::vector{1});
  awaited.see({false, false});
  awaited.see({true, false});
  EXPECT_TRUE(awaited.for_at_least(milliseconds(30)).empty());
}

TEST(Together, AnInterruptionOfOneRankEndsAll) {
  std::stop_source signal;
  const auto work = [&](Group& group, const std::stop_token& stop) {
    if (group.rank() == 0) signal.request_stop();
    wait_for_stop(stop);
  };
  expect_interrupted(failures_of(3, work, kLong, {1, signal.get_token()}), 3, 1);
}

TEST(Together, AnInterruptionOfARankWhoseWorkIsDoneEndsAll) {
  std::stop_source signal;
  const auto work = [&](Group& group, const std::stop_token& stop) {
    if (group.rank() == 1) wait_for_stop(stop);
    signal.request_stop();
  };
  expect_interrupted(failures_of(2, work, kLong, {0, signal.get_token()}), 2, 0);
}

TEST(Together, AloneItRunsOnTheCallersThread) {
  const std::thread::id caller = std::this_thread::get_id();
  std::thread::id worker;
  collective_step(solo_group(), {}, [&](std::stop_token) { worker = std::this_thread::get_id(); });
  EXPECT_EQ(worker, caller);
}

TEST(ExpectSame, NamesTheRankThatDiffers) {
  std::atomic<int> named{0};
  run_as_threads(3, [&](Group& group) {
    try {
      expect_same(group, group.rank() == 2 ? "0.2.0" : "0.1.0", ErrorCode::kPeer, "different versions");
    } catch (const Error& error) {
      named += error.rank() == 2 && error.expected() == "0.1.0" && error.found() == "0.2.0" ? 1 : 0;
    }
  });
  EXPECT_EQ(named, 3);
}

struct Passenger {
  std::string name;
  std::vector<std::int64_t> numbers;
  std::optional<double> weight;
  std::uint32_t seat = 0;
  bool is_late = false;
};

template <class Wire>
void pass(Wire& wire, Passed<Wire, Passenger>& passenger) {
  wire.pass(passenger.name, passenger.numbers, passenger.weight, passenger.is_late);
  wire.pass_below(passenger.seat, 9);
}

TEST(Wire, OneFunctionPassesFieldsInBothDirections) {
  WireWriter writer;
  pass(writer, Passenger{"a", {1, -2}, 0.5, 8, true});
  const Bytes bytes = writer.take();
  WireReader reader(bytes);
  Passenger read;
  pass(reader, read);
  EXPECT_TRUE(reader.at_end());
  EXPECT_EQ(read.name, "a");
  EXPECT_EQ(read.numbers, (std::vector<std::int64_t>{1, -2}));
  EXPECT_EQ(read.weight, 0.5);
  EXPECT_EQ(read.seat, 8U);
  EXPECT_TRUE(read.is_late);
}

TEST(Wire, RefusesNumbersThatTheirFieldsCannotHold) {
  WireWriter writer;
  for (int i = 0; i < 3; ++i) writer.number(i == 0 ? std::int64_t{1} << 32 : 2);
  const Bytes bytes = writer.take();
  WireReader reader(bytes);
  std::uint32_t word = 0;
  bool flag = false;
  EXPECT_THROW(reader.pass(word), Error);
  EXPECT_THROW(reader.pass(flag), Error);
  EXPECT_THROW(reader.pass_below(word, 2), Error);
}

TEST(Wire, RefusesWhatIsCutShort) {
  WireWriter writer;
  writer.error(Error(ErrorCode::kCorruption, "damaged").in_file("a"));
  const Bytes bytes = writer.take();
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_THROW(WireReader(std::span(bytes).first(length)).error(), Error) << length;
  }
  EXPECT_STREQ(WireReader(bytes).error().what(), "damaged");
}

}  // namespace
}  // namespace shard
