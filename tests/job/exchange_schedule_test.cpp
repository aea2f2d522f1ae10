// The order in which pieces travel, without pieces: rounds of up to a thousand ranks, simulated.
#include "libshard/job/exchange_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/support/expect_error.h"

namespace shard {
namespace {

using ::testing::ElementsAre;
using ::testing::Field;

constexpr std::int64_t kMiB = 1 << 20, kUnit = 8 * kMiB;
const auto kAll = [](int) { return true; };

TEST(ExchangeUnit, IsAnEighthOfTheMemory) {
  EXPECT_EQ(exchange_unit(64 * kMiB), 8 * kMiB);
  EXPECT_EQ(exchange_unit(8 * kMiB), kMiB);
  test::expect_error(ErrorCode::kInvalidArgument, "8388607 bytes", [] { exchange_unit(8 * kMiB - 1); });
}

TEST(BatchLimit, TakesTilesUpToTheUnit) {
  BatchLimit batch(100, 2);
  EXPECT_TRUE(batch.takes(std::vector<BoxNeed>{{1, 60}}));
  EXPECT_FALSE(batch.takes(std::vector<BoxNeed>{{1, 41}}));
  EXPECT_TRUE(batch.takes(std::vector<BoxNeed>{{1, 20}, {0, 20}}));
}

TEST(BatchLimit, TakesOneTileInAnyCase) {
  BatchLimit batch(100, 2);
  EXPECT_TRUE(batch.takes(std::vector<BoxNeed>{{1, 101}}));
  EXPECT_FALSE(batch.takes(std::vector<BoxNeed>{{1, 1}}));
}

TEST(BatchLimit, AsksNobodyForTooManyBoxes) {
  BatchLimit batch(kUnit, 1024);
  const std::vector<BoxNeed> boxes(40, BoxNeed{7, 1});
  EXPECT_TRUE(batch.takes(boxes));
  EXPECT_FALSE(batch.takes(boxes));  // 64 are the most among 1,024 ranks.
}

TEST(Outlet, SendsToAllInTurnsByBoxes) {
  Outlet outlet;
  outlet.ask(3, std::vector<std::int64_t>{10, 10, 10});
  outlet.ask(1, std::vector<std::int64_t>{10, 10, 10});
  const auto grants = outlet.next_round(40, kAll);
  ASSERT_EQ(grants.size(), 2U);
  EXPECT_EQ(grants[0].rank, 1);
  EXPECT_EQ(grants[0].boxes, 2);
  EXPECT_EQ(grants[1].boxes, 2);
}

TEST(Outlet, SendsNoMoreThanTheLimitButOneBox) {
  Outlet outlet;
  outlet.ask(0, std::vector<std::int64_t>{50, 60});
  EXPECT_THAT(outlet.next_round(40, kAll), ElementsAre(Field(&Outlet::Grant::bytes, 50)));
  EXPECT_THAT(outlet.next_round(100, kAll), ElementsAre(Field(&Outlet::Grant::bytes, 60)));
  EXPECT_TRUE(outlet.is_empty());
}

TEST(Outlet, SendsNothingOfTheNextBatchInTheSameRound) {
  Outlet outlet;
  outlet.ask(0, std::vector<std::int64_t>{1});
  outlet.ask(0, std::vector<std::int64_t>{1, 1});
  EXPECT_THAT(outlet.next_round(100, kAll), ElementsAre(Field(&Outlet::Grant::boxes, 1)));
  EXPECT_THAT(outlet.next_round(100, kAll), ElementsAre(Field(&Outlet::Grant::boxes, 2)));
}

TEST(Outlet, BeginsEveryRoundWithAnotherRank) {
  Outlet outlet;
  for (const int rank : {0, 1, 2}) outlet.ask(rank, std::vector<std::int64_t>{9, 9});
  std::vector<int> served;
  while (!outlet.is_empty()) served.push_back(outlet.next_round(9, kAll).front().rank);
  EXPECT_THAT(served, ElementsAre(0, 1, 2, 0, 1, 2));
}

TEST(Outlet, KeepsWhatIsForRanksThatItDoesNotMeet) {
  Outlet outlet;
  outlet.ask(0, std::vector<std::int64_t>{1});
  outlet.ask(1, std::vector<std::int64_t>{1});
  EXPECT_THAT(outlet.next_round(9, [](int rank) { return rank == 1; }), ElementsAre(Field(&Outlet::Grant::rank, 1)));
  EXPECT_FALSE(outlet.is_empty());
}

TEST(Meetings, BothSidesAgreeAndNoSenderMeetsManyAtOnce) {
  constexpr int kRanks = 1000;
  const Meetings sender(0, kRanks, kRanks - 1);
  for (std::int64_t round = 0; round < sender.own_period(); ++round) {
    int met = 0;
    for (int rank = 1; rank < kRanks; ++rank) {
      Meetings writer(rank, kRanks, 0);
      writer.set_period(0, sender.own_period());
      EXPECT_EQ(sender.as_sender(round, rank), writer.as_writer(round, 0));
      met += sender.as_sender(round, rank) ? 1 : 0;
    }
    EXPECT_LE(met, 64);
    EXPECT_GE(met, 60);
  }
}

using Tile = std::vector<BoxNeed>;

/// Ranks with tiles to write, whose disks write arriving data at once; Exchange does the same with bytes.
class Simulation {
 public:
  explicit Simulation(std::vector<std::vector<Tile>> tiles) : ranks_(tiles.size()) {
    for (std::size_t rank = 0; rank < tiles.size(); ++rank) {
      ranks_[rank].tiles = std::move(tiles[rank]);
      for (const Tile& tile : ranks_[rank].tiles) {
        for (const BoxNeed& box : tile) {
          ++ranks_[rank].expect[box.sender];
          ++ranks_[static_cast<std::size_t>(box.sender)].owe[static_cast<int>(rank)];
          wanted_bytes += box.bytes;
        }
      }
    }
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      ranks_[rank].meetings.emplace(static_cast<int>(rank), size(), std::ssize(ranks_[rank].owe));
    }
    for (Rank& rank : ranks_) {
      for (const auto& [sender, boxes] : rank.expect) {
        rank.meetings->set_period(sender, ranks_[static_cast<std::size_t>(sender)].meetings->own_period());
      }
    }
  }

  void run() {
    while (delivered_bytes < wanted_bytes) {
      ++rounds;
      ASSERT_LT(rounds, 1'000'000) << "somebody waits for ever";
      for (std::size_t i = 0; i < ranks_.size(); ++i) open_batches(static_cast<int>(i));
      for (std::size_t i = 0; i < ranks_.size(); ++i) count_messages(static_cast<int>(i));
      for (std::size_t i = 0; i < ranks_.size(); ++i) ask(static_cast<int>(i));
      std::vector<std::vector<Outlet::Grant>> sent;
      for (Rank& rank : ranks_) {
        sent.push_back(std::move(rank.grants));
        const auto meets = [&](int writer) { return rank.meetings->as_sender(round_ + 1, writer); };
        rank.grants = rank.outlet.next_round(kUnit, meets);
      }
      for (std::size_t i = 0; i < ranks_.size(); ++i) deliver(static_cast<int>(i), sent[i]);
      ++round_;
    }
  }

  /// The figures that tests/RESULTS.md has; --gtest_output=xml shows them.
  void record() const {
    ::testing::Test::RecordProperty("rounds", std::to_string(rounds));
    ::testing::Test::RecordProperty("bytes", std::to_string(delivered_bytes));
    ::testing::Test::RecordProperty("most_messages", std::to_string(most_messages));
    ::testing::Test::RecordProperty("most_sent", std::to_string(most_sent));
    ::testing::Test::RecordProperty("most_in_batches", std::to_string(most_in_batches));
    ::testing::Test::RecordProperty("most_waiting_boxes", std::to_string(most_waiting_boxes));
  }

  std::int64_t rounds = 0, wanted_bytes = 0, delivered_bytes = 0;
  std::int64_t most_in_batches = 0, most_sent = 0, most_messages = 0, most_waiting_boxes = 0;

 private:
  struct Batch {
    std::int64_t bytes = 0, missing = 0;
    std::map<int, std::vector<std::int64_t>> boxes, arrived;
  };
  struct Rank {
    std::vector<Tile> tiles;
    std::size_t next = 0;
    std::map<int, std::int64_t> expect, owe;
    std::optional<Meetings> meetings;
    Intake intake;
    Outlet outlet;
    std::vector<Outlet::Grant> grants;
    std::deque<Batch> batches;
    std::map<int, std::vector<std::vector<std::int64_t>>> requests;
    std::int64_t waiting_boxes = 0;
  };
  int size() const { return static_cast<int>(ranks_.size()); }
  Rank& at(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }

  void open_batches(int number) {
    Rank& rank = at(number);
    while (rank.next < rank.tiles.size() && rank.intake.wants_batch()) {
      ASSERT_TRUE(rank.intake.has_room());
      Batch batch;
      BatchLimit limit(kUnit, size());
      for (; rank.next < rank.tiles.size() && limit.takes(rank.tiles[rank.next]); ++rank.next) {
        for (const BoxNeed& box : rank.tiles[rank.next]) {
          batch.boxes[box.sender].push_back(box.bytes);
          batch.bytes += box.bytes;
          ++batch.missing;
        }
      }
      for (const auto& [sender, boxes] : batch.boxes) rank.requests[sender].push_back(boxes);
      rank.batches.push_back(std::move(batch));
      rank.intake.open();
    }
    std::int64_t bytes = 0;
    for (const Batch& batch : rank.batches) bytes += batch.bytes;
    most_in_batches = std::max(most_in_batches, bytes);
  }

  void count_messages(int number) {
    const Rank& rank = at(number);
    std::int64_t messages = 0;
    for (const auto& [sender, boxes] : rank.expect) messages += boxes > 0 && rank.meetings->as_writer(round_, sender);
    for (const auto& [writer, boxes] : rank.owe) messages += boxes > 0 && rank.meetings->as_sender(round_, writer);
    most_messages = std::max(most_messages, messages);
  }

  void ask(int number) {
    Rank& rank = at(number);
    std::erase_if(rank.requests, [&](const auto& request) {
      if (!rank.meetings->as_writer(round_, request.first)) return false;
      Rank& sender = at(request.first);
      for (const std::vector<std::int64_t>& boxes : request.second) {
        sender.outlet.ask(number, boxes);
        sender.waiting_boxes += std::ssize(boxes);
      }
      most_waiting_boxes = std::max(most_waiting_boxes, sender.waiting_boxes);
      return true;
    });
  }

  void deliver(int number, const std::vector<Outlet::Grant>& grants) {
    std::int64_t sent = 0;
    for (const Outlet::Grant& grant : grants) {
      EXPECT_TRUE(at(number).meetings->as_sender(round_, grant.rank));
      sent += grant.bytes;
      at(number).owe[grant.rank] -= grant.boxes;
      at(number).waiting_boxes -= grant.boxes;
      receive(grant.rank, number, grant);
    }
    most_sent = std::max(most_sent, sent);
    delivered_bytes += sent;
  }

  void receive(int number, int sender, const Outlet::Grant& grant) {
    Rank& rank = at(number);
    rank.expect[sender] -= grant.boxes;
    const auto batch = std::ranges::find_if(rank.batches, [&](const Batch& each) {
      const auto boxes = each.boxes.find(sender);
      return boxes != each.boxes.end() &&
             (!each.arrived.contains(sender) || each.arrived.at(sender).size() < boxes->second.size());
    });
    ASSERT_NE(batch, rank.batches.end());
    std::vector<std::int64_t>& arrived = batch->arrived[sender];
    std::int64_t bytes = 0;
    for (std::int64_t i = 0; i < grant.boxes; ++i) {
      ASSERT_LT(arrived.size(), batch->boxes[sender].size()) << "a grant reaches over the end of a batch";
      arrived.push_back(batch->boxes[sender][arrived.size()]);
      bytes += arrived.back();
    }
    EXPECT_EQ(bytes, grant.bytes);
    batch->missing -= grant.boxes;
    if (batch->missing != 0) return;
    rank.intake.receive();
    rank.intake.write();
    rank.batches.erase(batch);
  }

  std::vector<Rank> ranks_;
  std::int64_t round_ = 0;
};

std::vector<std::vector<Tile>> random_tiles(std::mt19937_64& random, int ranks) {
  std::vector<std::vector<Tile>> all(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<Tile>& tiles = all[static_cast<std::size_t>(rank)];
    tiles.resize(random() % 30);
    for (Tile& tile : tiles) {
      tile.resize(1 + random() % 8);
      for (BoxNeed& box : tile) {
        box.sender = static_cast<int>(random() % static_cast<std::uint64_t>(ranks - 1));
        if (box.sender >= rank) ++box.sender;
        box.bytes = 1 + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(kMiB));
      }
      std::ranges::sort(tile, {}, &BoxNeed::sender);
    }
  }
  return all;
}

TEST(ExchangeSimulation, EveryBoxArrivesOnceAndNobodyHoldsMoreThanItsShare) {
  std::mt19937_64 random(7);
  for (int ranks = 2; ranks < 40; ++ranks) {
    Simulation simulation(random_tiles(random, ranks));
    simulation.run();
    EXPECT_EQ(simulation.delivered_bytes, simulation.wanted_bytes);
    EXPECT_LE(simulation.most_in_batches, 3 * kUnit);
    EXPECT_LE(simulation.most_sent, kUnit);
  }
}

/// Each of `ranks` needs 16 MiB of 16 others.
std::vector<std::vector<Tile>> of_neighbours(int ranks) {
  std::vector<std::vector<Tile>> all(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    for (int i = 0; i < 16; ++i) {
      Tile tile;
      for (int j = 1; j <= 16; ++j) tile.push_back({(rank + j * 7) % ranks, kMiB / 16});
      std::ranges::sort(tile, {}, &BoxNeed::sender);
      all[static_cast<std::size_t>(rank)].push_back(tile);
    }
  }
  return all;
}

/// Each of `ranks` needs 2 MiB of each other one.
std::vector<std::vector<Tile>> of_all(int ranks) {
  std::vector<std::vector<Tile>> all(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    for (int i = 0; i < 2; ++i) {
      Tile tile;
      for (int other = 0; other < ranks; ++other) {
        if (other != rank) tile.push_back({other, 4 * kMiB / ranks});
      }
      all[static_cast<std::size_t>(rank)].push_back(tile);
    }
  }
  return all;
}

/// One rank has all data: each other one needs 4 MiB of it.
std::vector<std::vector<Tile>> of_one(int ranks) {
  std::vector<std::vector<Tile>> all(static_cast<std::size_t>(ranks));
  for (int rank = 1; rank < ranks; ++rank) {
    for (int i = 0; i < 4; ++i) all[static_cast<std::size_t>(rank)].push_back({{0, kMiB}});
  }
  return all;
}

TEST(ExchangeSimulation, AThousandRanksNeedNoMoreRoundsThanTwoHundred) {
  Simulation few(of_neighbours(200)), many(of_neighbours(1000));
  few.run();
  many.run();
  EXPECT_EQ(many.delivered_bytes, many.wanted_bytes);
  many.record();
  EXPECT_EQ(many.rounds, few.rounds);
  EXPECT_LE(many.rounds, 8);
  EXPECT_EQ(many.most_messages, few.most_messages);
  EXPECT_LE(many.most_in_batches, 3 * kUnit);
}

TEST(ExchangeSimulation, RanksThatAllNeedAllMeetAFewAtATime) {
  Simulation many(of_all(256));
  many.run();
  many.record();
  EXPECT_EQ(many.delivered_bytes, many.wanted_bytes);
  EXPECT_LE(many.most_messages, 2 * 64 + 8);
  EXPECT_LE(many.most_in_batches, 3 * kUnit);
  EXPECT_LE(many.rounds, 64);
}

TEST(ExchangeSimulation, ARankThatHoldsEverythingSendsAFullBufferInNearlyEveryRound) {
  Simulation simulation(of_one(1000));
  simulation.run();
  simulation.record();
  const std::int64_t least = simulation.wanted_bytes / kUnit;
  EXPECT_LE(simulation.rounds, least + least / 4 + 32);
  EXPECT_LE(simulation.most_sent, kUnit);
  EXPECT_LE(simulation.most_messages, 64);
  EXPECT_LE(simulation.most_waiting_boxes, 4 * 999);
}

}  // namespace
}  // namespace shard
