// Which boxes of source pieces a tile needs.
#include "libshard/exec/tile_feed.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "libshard/exec/execute.h"
#include "tests/support/memory_checkpoint.h"

namespace shard {
namespace {

using testing::add_storage;
using testing::add_tensor;
using ::testing::ElementsAre;
using testing::MemoryReader;

/// An 8 x 4 tensor of bytes in two pieces of rows, each in a separate file.
Catalog two_pieces() {
  Catalog source;
  add_tensor(source, "a", DType::kUint8, {8, 4},
             {{{0, 0}, {4, 4}, {4, 1}, 0, add_storage(source, 0, 16), -1},
              {{4, 0}, {4, 4}, {4, 1}, 0, add_storage(source, 1, 16), -1}});
  validate_catalog(source);
  return source;
}

/// The same tensor in two pieces of columns.
Catalog columns() {
  Catalog target;
  add_tensor(target, "a", DType::kUint8, {8, 4},
             {{{0, 0}, {8, 1}, {1, 1}, 0, add_storage(target, 0, 8), -1},
              {{0, 1}, {8, 3}, {3, 1}, 0, add_storage(target, 1, 24), -1}});
  validate_catalog(target);
  target.tensors[0].source = 0;
  return target;
}

TEST(Needs, AreWhatThePiecesOfTheTargetWant) {
  const Catalog source = two_pieces(), target = columns();
  const std::vector<std::uint8_t> own_storages{0, 1};
  const Plan plan = plan_copies(source, target, {.own_storages = own_storages});
  ASSERT_EQ(plan.tile_count, 1);
  std::vector<std::string> needs;
  for_each_need(plan, plan.units[0], 0, [&](std::uint32_t piece, const Box& box) {
    needs.push_back(std::to_string(piece) + " " + to_string(box));
  });
  EXPECT_THAT(needs, ElementsAre("0 [0:4, 0:3]", "1 [4:8, 0:3]"));  // Counted from the needs of the target.
}

/// Gives out one tile, for which the second piece has arrived.
class OneTile final : public TileFeed {
 public:
  void set_written(std::vector<std::uint8_t>) override {}
  std::optional<std::int64_t> next(const std::function<void()>&) override {
    return is_given_.exchange(true) ? std::nullopt : std::optional<std::int64_t>(0);
  }
  std::optional<ReceivedBox> received(std::int64_t, std::uint32_t piece) override {
    if (piece != 1) return std::nullopt;
    return ReceivedBox{offsets_, sizes_, bytes_.data()};
  }
  void done(std::int64_t) override { ++done_; }
  void abort() override {}
  int done_count() const { return done_; }

 private:
  std::atomic<bool> is_given_{false};
  std::atomic<int> done_{0};
  std::vector<std::int64_t> offsets_{4, 0}, sizes_{4, 3};
  std::vector<std::byte> bytes_ = std::vector<std::byte>(12, std::byte{9});
};

TEST(Feed, TakesWhatHasArrivedAndReadsTheRest) {
  const Catalog source = two_pieces(), target = columns();
  const std::vector<std::uint8_t> own_storages{0, 1};
  const Plan plan = plan_copies(source, target, {.own_storages = own_storages});
  const MemoryReader reader(source,
                            {std::vector<std::byte>(16, std::byte{1}), std::vector<std::byte>(16, std::byte{2})});
  testing::CountingFiles files(target.files);
  Progress progress;
  OneTile feed;
  execute(plan, source, reader, target, files.writers, {.threads = 2, .feed = &feed}, progress);
  std::vector<std::byte> expected(12, std::byte{1});
  expected.resize(24, std::byte{9});
  EXPECT_EQ(files.owned[1]->bytes, expected);
  EXPECT_EQ(feed.done_count(), 1);
  EXPECT_EQ(files.owned[0]->bytes, std::vector<std::byte>(8));
}

}  // namespace
}  // namespace shard
