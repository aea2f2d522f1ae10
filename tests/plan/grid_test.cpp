#include "libshard/plan/grid.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "libshard/plan/order.h"
#include "tests/plan/pieces.h"

namespace shard {
namespace {

using testing::below;
using ::testing::ElementsAre;
using testing::make_piece;
using testing::Random;
using testing::random_pieces;
using testing::Sizes;
using testing::strides_in;

constexpr std::int64_t kMiB = 1 << 20;
constexpr std::int64_t kWhole = 63 * kMiB - 64;  // The tile size for 64 MiB, without staging and padding.

Unit unit_of(Arena& arena, const Sizes& shape, DType dtype = DType::kFloat32) {
  Unit unit;
  unit.from = unit.to = dtype;
  unit.shape = arena.dims(shape);
  return unit;
}

Sizes numbers(Dims dims) { return {dims.begin(), dims.end()}; }

/// Column pieces of equal width into one whole target, row-major on both sides.
struct Columns {
  Columns(std::int64_t rows, std::int64_t width, std::int64_t pieces) : unit(unit_of(arena, {rows, width * pieces})) {
    for (std::int64_t i = 0; i < pieces; ++i)
      from.push_back(make_piece(arena, {0, i * width}, {rows, width}, {width, 1}));
    to.push_back(make_piece(arena, {0, 0}, {rows, width * pieces}, {width * pieces, 1}));
  }
  Sizes tile(const TileLimits& limits) { return numbers(choose_tile(arena, unit, from, to, limits)); }

  Arena arena;
  Unit unit;
  std::vector<Piece> from, to;
};

TEST(StagingBytes, AreAnEighthOfTheMemoryInPagesBetween128KiBAndOneMiB) {
  EXPECT_EQ(staging_bytes(kMiB, 2), kMiB / 8);
  EXPECT_EQ(staging_bytes(2 * kMiB, 2), kMiB / 4);
  EXPECT_EQ(staging_bytes(3'000'000, 2), 91 * 4096);
  EXPECT_EQ(staging_bytes(8 * kMiB, 2), kMiB);
  EXPECT_EQ(staging_bytes(std::int64_t{1} << 40, 2), kMiB);
  EXPECT_EQ(staging_bytes(16 * kMiB, 16), kMiB / 4) << "many workers keep most of their share for tiles";
}

TEST(TileLimits, ShareTheMemoryAmongThreadsButLeaveOneAtLeastTwoMebibytes) {
  const auto limits = [](std::int64_t memory, int threads) {
    const TileLimits made = tile_limits({.max_memory_bytes = memory, .threads = threads});
    return Sizes{made.share_bytes, made.full_bytes, made.staging_bytes};
  };
  EXPECT_THAT(limits(64 * kMiB, 1), ElementsAre(63 * kMiB - 64, 63 * kMiB - 64, kMiB));
  EXPECT_THAT(limits(64 * kMiB, 16), ElementsAre(3 * kMiB - 64, 63 * kMiB - 64, kMiB));
  EXPECT_THAT(limits(64 * kMiB, 64), ElementsAre(kMiB / 4 * 7 - 64, kMiB / 4 * 255 - 64, kMiB / 4));
  EXPECT_THAT(limits(64 * kMiB, 0), ElementsAre(63 * kMiB - 64, 63 * kMiB - 64, kMiB));
  EXPECT_THAT(limits(kMiB, 8), ElementsAre(kMiB / 8 * 7 - 64, kMiB / 8 * 7 - 64, kMiB / 8));
}

TEST(ChooseTile, IsTheWholeUnitUpToOneMebibyteOrAWorkersShare) {
  const TileLimits wide{kMiB, kMiB, kMiB}, narrow{kMiB / 2, kMiB / 2, kMiB};
  EXPECT_THAT(Columns(1024, 64, 4).tile(wide), ElementsAre(1024, 256));
  EXPECT_THAT(Columns(1025, 64, 4).tile(wide), ElementsAre(513, 256));
  EXPECT_THAT(Columns(512, 64, 4).tile(narrow), ElementsAre(512, 256));
  EXPECT_THAT(Columns(513, 64, 4).tile(narrow), ElementsAre(257, 256));
}

TEST(ChooseTile, IsOneMebibyteWhereItsRunsAreLongEnough) {
  EXPECT_THAT(Columns(256 << 10, 128, 1).tile({kWhole, kWhole, kMiB}), ElementsAre(2048, 128));
}

// With 6 pieces a tile of T bytes needs 7 calls: 6 reads and a write. 7 / T is below 2.4e-6 from 2.92 MB on.
TEST(ChooseTile, GrowsToTheFirstSizeThatNeedsFewEnoughCalls) {
  EXPECT_THAT(Columns(64 << 10, 48, 6).tile({kWhole, kWhole, kMiB}), ElementsAre(3450, 288)) << "4 MiB in equal parts";
  EXPECT_THAT(Columns(64 << 10, 48, 6).tile({kWhole, 3 * kMiB, kMiB}), ElementsAre(2622, 288)) << "3 MiB";
}

// 64 tiles of 4096 rows would do, but a worker's share is a little less; 65 tiles of 4033 rows need 2 % more calls.
TEST(ChooseTile, StaysWithinAWorkersShareWhereALargerTileSavesLittle) {
  EXPECT_THAT(Columns(256 << 10, 32, 8).tile({4 * kMiB - 64, kWhole, kMiB}), ElementsAre(4033, 256));
}

// The same as above on end: along the first dimension elements are neighbours.
TEST(ChooseTile, CountsRunsOfColumnMajorPieces) {
  Arena arena;
  const Unit unit = unit_of(arena, {288, 64 << 10});
  std::vector<Piece> from;
  for (std::int64_t i = 0; i < 6; ++i) from.push_back(make_piece(arena, {48 * i, 0}, {48, 64 << 10}, {1, 48}));
  const std::vector<Piece> to = {make_piece(arena, {0, 0}, {288, 64 << 10}, {1, 288})};
  EXPECT_THAT(numbers(choose_tile(arena, unit, from, to, {kWhole, kWhole, kMiB})), ElementsAre(288, 3450));
}

TEST(ChooseTile, GrowsToAllTheMemoryWhereNoTileNeedsFewCalls) {
  Columns many(256 << 10, 4, 256);
  const Sizes tile = many.tile({3 * kMiB, 40 * kMiB, kMiB});
  EXPECT_EQ(tile[1], 1024);
  EXPECT_LE(tile[0] * 4096, 40 * kMiB);
  EXPECT_GT(tile[0] * 4096, 36 * kMiB);
}

/// A transposed matrix of 256 MiB in slabs of up to 31 MiB.
TEST(ChooseTile, GivesWorkersThatTakeTurnsEquallyManyLargeTiles) {
  Arena arena;
  const Unit unit = unit_of(arena, {8192, 8192});
  const std::vector<Piece> from = {make_piece(arena, {0, 0}, {8192, 8192}, {1, 8192})};
  const std::vector<Piece> to = {make_piece(arena, {0, 0}, {8192, 8192}, {8192, 1})};
  const auto tile = [&](std::int64_t workers) {
    return numbers(choose_tile(arena, unit, from, to, {31 * kMiB, kWhole, kMiB, workers}));
  };
  EXPECT_THAT(tile(1), ElementsAre(911, 8192)) << "9 tiles";
  EXPECT_THAT(tile(2), ElementsAre(820, 8192)) << "10";
  EXPECT_THAT(tile(3), ElementsAre(911, 8192)) << "9";
  EXPECT_THAT(tile(10), ElementsAre(911, 8192)) << "9: fewer than workers";
}

/// Source elements more than a page apart: each takes a call regardless of the tile.
TEST(ChooseTile, StaysSmallWhereALargerTileSavesNothing) {
  Arena arena;
  const Unit unit = unit_of(arena, {4096, 4096});
  const std::vector<Piece> from = {make_piece(arena, {0, 0}, {4096, 4096}, {4096 * 2000, 2000})};
  const std::vector<Piece> to = {make_piece(arena, {0, 0}, {4096, 4096}, {4096, 1})};
  EXPECT_THAT(numbers(choose_tile(arena, unit, from, to, {kWhole, kWhole, kMiB})), ElementsAre(64, 4096));
}

TEST(ChooseTile, KnowsThatSourcesAreReadOverSmallGaps) {
  Arena arena;
  const Unit unit = unit_of(arena, {4096, 4096});
  const std::vector<Piece> from = {make_piece(arena, {0, 0}, {4096, 4096}, {8192, 2})};
  const std::vector<Piece> to = {make_piece(arena, {0, 0}, {4096, 4096}, {4096, 1})};
  EXPECT_THAT(numbers(choose_tile(arena, unit, from, to, {kMiB, kWhole, kMiB})), ElementsAre(128, 4096))
      << "4 reads and a write for 2 MiB; the calls for 1 MiB are too many";
}

Unit stream_of(Arena& arena, const Sizes& shape) {
  Unit unit = unit_of(arena, shape);
  unit.is_stream = true;
  return unit;
}

TEST(ChooseTile, IsASlabOfOnePieceInItsOrderWhereThatIsAStream) {
  Arena arena;
  const std::vector<Piece> to = {make_piece(arena, {0, 0}, {4096, 4096}, {1, 4096})};
  const std::vector<Piece> whole = {make_piece(arena, {0, 0}, {4096, 4096}, {4096, 1})};
  const TileLimits limits{32 * kMiB, kWhole, kMiB};
  EXPECT_EQ(numbers(choose_tile(arena, stream_of(arena, {4096, 4096}), whole, to, limits))[1], 4096);
  const std::vector<Piece> columns = {make_piece(arena, {0, 0}, {4096, 3000}, {3000, 1}),
                                      make_piece(arena, {0, 3000}, {4096, 1096}, {1096, 1})};
  EXPECT_EQ(numbers(choose_tile(arena, stream_of(arena, {4096, 4096}), columns, to, limits))[1], 3000);
}

/// A grid of compressed chunks of `side` x `side`, into one row-major target.
std::vector<Piece> chunk_grid(Arena& arena, std::int64_t rows, std::int64_t columns, std::int64_t side) {
  std::vector<Piece> pieces;
  for (std::int64_t row = 0; row < rows; row += side) {
    for (std::int64_t column = 0; column < columns; column += side) {
      const Sizes sizes{std::min(side, rows - row), std::min(side, columns - column)};
      pieces.push_back(make_piece(arena, {row, column}, sizes, {side, 1}));
    }
  }
  return pieces;
}

TEST(ChooseTile, HoldsWholeChunksWhereThoseAreCompressed) {
  Arena arena;
  const std::vector<Piece> to = {make_piece(arena, {0, 0}, {10000, 10000}, {10000, 1})};
  const auto tile = [&](std::int64_t side, const TileLimits& limits) {
    return numbers(
        choose_tile(arena, stream_of(arena, {10000, 10000}), chunk_grid(arena, 10000, 10000, side), to, limits));
  };
  const TileLimits limits{31 * kMiB, kWhole, kMiB};
  EXPECT_THAT(tile(64, limits), ElementsAre(64, 10000)) << "a row of chunks is written as one run";
  EXPECT_THAT(tile(1024, limits), ElementsAre(1024, 5120)) << "as many as fit, in equal parts";
  EXPECT_THAT(tile(64, {kMiB, 4 * kMiB, kMiB}), ElementsAre(64, 3392)) << "a third of one";
  EXPECT_THAT(tile(1024, {kMiB, 2 * kMiB, kMiB})[0], ::testing::Lt(1024)) << "not one fits";
}

TEST(ChooseTile, HoldsWholeChunksOfALine) {
  Arena arena;
  std::vector<Piece> from;
  for (std::int64_t begin = 0; begin < 40'000'000; begin += 300'000) {
    from.push_back(make_piece(arena, {begin}, {std::min<std::int64_t>(300'000, 40'000'000 - begin)}, {1}));
  }
  const std::vector<Piece> to = {make_piece(arena, {0}, {40'000'000}, {1})};
  Unit unit = unit_of(arena, {40'000'000}, DType::kUint8);
  unit.is_line = unit.is_stream = true;
  EXPECT_THAT(numbers(choose_tile(arena, unit, from, to, {31 * kMiB, kWhole, kMiB})), ElementsAre(900'000));
}

TEST(ChooseTile, BalancesItsSidesWhereTheOrdersOfTheTwoSidesDiffer) {
  Arena arena;
  const Unit unit = unit_of(arena, {1 << 14, 1 << 14}, DType::kUint8);
  const std::vector<Piece> from = {make_piece(arena, {0, 0}, {1 << 14, 1 << 14}, {1, 1 << 14})};
  const std::vector<Piece> to = {make_piece(arena, {0, 0}, {1 << 14, 1 << 14}, {1 << 14, 1})};
  const Sizes tile = numbers(choose_tile(arena, unit, from, to, {kMiB, 4 * kMiB, kMiB}));
  EXPECT_THAT(tile, ElementsAre(2048, 2048));
}

// The innermost dimension of either side has 4 elements: a balanced tile takes all of them and continues with the
// middle.
TEST(ChooseTile, BalancesItsSidesPastDimensionsThatAreWhole) {
  Arena arena;
  constexpr std::int64_t kMiddle = 1 << 11;
  const Unit unit = unit_of(arena, {4, kMiddle, kMiddle, 4}, DType::kUint8);
  const Sizes shape = numbers(unit.shape);
  const std::vector<Piece> from = {make_piece(arena, {0, 0, 0, 0}, shape, strides_in(shape, {3, 2, 1, 0}))};
  const std::vector<Piece> to = {make_piece(arena, {0, 0, 0, 0}, shape, strides_in(shape, {0, 1, 2, 3}))};
  const Sizes tile = numbers(choose_tile(arena, unit, from, to, {kMiB, kMiB, kMiB}));
  EXPECT_THAT(tile, ElementsAre(4, 256, 256, 4));
}

TEST(ChooseTile, WritesLongRunsOfWhatIsTransposedAndLeavesMemoryToOtherWorkers) {
  Arena arena;
  const Unit unit = unit_of(arena, {8192, 8192});
  const std::vector<Piece> from = {make_piece(arena, {0, 0}, {8192, 8192}, {1, 8192})};
  const std::vector<Piece> to = {make_piece(arena, {0, 0}, {8192, 8192}, {8192, 1})};
  const Sizes tile = numbers(choose_tile(arena, unit, from, to, {31 * kMiB, kWhole, kMiB}));
  EXPECT_THAT(tile, ElementsAre(911, 8192)) << "9 tiles of at most 31 MiB, each written as one run";
}

TEST(ChooseTile, CountsReadsOfWhatIsPermutedAsNoLongerThanTheStagingBuffer) {
  Columns one(64 << 10, 1024, 1);
  EXPECT_THAT(one.tile({kWhole, kWhole, kMiB}), ElementsAre(256, 1024));
  EXPECT_EQ(one.tile({kWhole, kWhole, kMiB / 8})[1], 1024) << "8 reads and a write of a tile of 1 MiB: more than 2,400";
  one.unit.is_line = true;
  EXPECT_THAT(one.tile({kWhole, kWhole, kMiB / 8}), ElementsAre(256, 1024));
}

/// Elements of runs in a piece's storage, counted one by one: the calls that reading or writing `box` takes.
std::int64_t runs_in(const Piece& piece, const Box& box) {
  const Box common = intersect(box, testing::box_of(piece));
  std::set<std::int64_t> addresses;
  for (std::int64_t n = 0; n < common.numel(); ++n) {
    std::int64_t rest = n, address = 0;
    for (int d = common.dims; d-- > 0;) {
      const auto i = static_cast<std::size_t>(d);
      address += (common.offset[i] - piece.offsets[d] + rest % common.size[i]) * piece.strides[d];
      rest /= common.size[i];
    }
    addresses.insert(address);
  }
  std::int64_t runs = 0;
  for (const std::int64_t address : addresses) runs += addresses.contains(address - 1) ? 0 : 1;
  return runs;
}

bool are_permuted(const Piece& from, const Piece& to) {
  const Order from_order = order_of(from.strides.span()), to_order = order_of(to.strides.span());
  return !std::equal(from_order.begin(), from_order.begin() + from.sizes.size(), to_order.begin());
}

/// All calls; a write of permuted elements counts four times.
std::int64_t calls_of(Unit unit, Dims tile, const std::vector<Piece>& from, const std::vector<Piece>& to) {
  unit.tile = tile;
  const bool is_permuted = are_permuted(from[0], to[0]);
  std::int64_t calls = 0;
  for (std::int64_t number = 0; number < count_tiles(unit); ++number) {
    for (const Piece& piece : from) calls += runs_in(piece, tile_box(unit, number));
    for (const Piece& piece : to) calls += (is_permuted ? 4 : 1) * runs_in(piece, tile_box(unit, number));
  }
  return calls;
}

/// A slab of at most `elements` along a piece's strides.
Dims slab_along(Arena& arena, const Unit& unit, const Piece& piece, std::int64_t elements) {
  Numbers sides;
  fill_slab(unit.shape.span(), order_of(piece.strides.span()), elements, sides);
  return arena.dims(std::span(sides).first(static_cast<std::size_t>(unit.shape.size())));
}

TEST(ChooseTile, NeedsAboutAsFewCallsAsTheBetterOfTheLargestSlabsAndFitsInMemory) {
  Random random(9);
  std::int64_t chosen_calls = 0, slab_calls = 0;
  for (int round = 0; round < 300; ++round) {
    Arena arena;
    Sizes shape(2 + random() % 2);
    for (std::int64_t& n : shape) n = 2 + below(random, shape.size() == 2 ? 40 : 14);
    std::vector<std::size_t> order(shape.size());
    for (std::size_t d = 0; d < order.size(); ++d) order[d] = d;
    Unit unit = unit_of(arena, shape);
    const std::vector<Piece> to = random_pieces(random, arena, shape, order);
    std::ranges::shuffle(order, random);
    const std::vector<Piece> from = random_pieces(random, arena, shape, order);
    const TileLimits limits{4 * (4 + below(random, 60)), 4 * (64 + below(random, 192)), kMiB};
    const Dims tile = choose_tile(arena, unit, from, to, limits);
    std::int64_t elements = 1;
    for (const std::int64_t side : tile) elements *= side;
    ASSERT_LE(4 * elements, std::max(limits.share_bytes, limits.full_bytes));
    const std::int64_t calls = calls_of(unit, tile, from, to);
    // Permuted units take the memory of other workers only for a large gain.
    const std::int64_t most = (are_permuted(from[0], to[0]) ? limits.share_bytes : limits.full_bytes) / 4;
    const std::int64_t best = std::min(calls_of(unit, slab_along(arena, unit, from[0], most), from, to),
                                       calls_of(unit, slab_along(arena, unit, to[0], most), from, to));
    ASSERT_LE(static_cast<double>(calls), 2.0 * static_cast<double>(best) + 8) << "round " << round;
    chosen_calls += calls;
    slab_calls += best;
  }
  EXPECT_LE(static_cast<double>(chosen_calls), 1.02 * static_cast<double>(slab_calls));
}

TEST(TileBox, PassesOverEveryElementOnce) {
  Random random(10);
  for (int round = 0; round < 500; ++round) {
    Arena arena;
    Sizes shape(1 + random() % 3), tile;
    for (std::int64_t& n : shape) n = 1 + below(random, 9);
    for (const std::int64_t n : shape) tile.push_back(1 + below(random, n));
    Unit unit = unit_of(arena, shape);
    unit.tile = arena.dims(tile);
    std::set<Sizes> corners;
    std::int64_t covered = 0;
    for (std::int64_t number = 0; number < count_tiles(unit); ++number) {
      const Box box = tile_box(unit, number);
      Sizes corner;
      for (std::size_t d = 0; d < shape.size(); ++d) {
        ASSERT_EQ(box.offset[d] % tile[d], 0);
        ASSERT_EQ(box.size[d], std::min(tile[d], shape[d] - box.offset[d]));
        ASSERT_GT(box.size[d], 0);
        corner.push_back(box.offset[d]);
      }
      corners.insert(corner);
      covered += box.numel();
    }
    ASSERT_EQ(static_cast<std::int64_t>(corners.size()), count_tiles(unit));
    ASSERT_EQ(covered, Box(Sizes(shape.size()), shape).numel());
  }
}

}  // namespace
}  // namespace shard
