#include "libshard/plan/plan.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "libshard/core/error.h"
#include "libshard/plan/overlaps.h"
#include "tests/support/memory_checkpoint.h"

namespace shard {
namespace {

using testing::add_storage;
using testing::add_tensor;
using ::testing::ElementsAre;
using testing::MadeChunk;

/// A row-major piece in a separate storage.
MadeChunk piece(Catalog& catalog, std::uint32_t file, std::vector<std::int64_t> offsets,
                std::vector<std::int64_t> sizes, std::int64_t element_bytes, std::int32_t rank = 0) {
  MadeChunk chunk;
  chunk.strides.resize(sizes.size());
  row_major_strides(sizes, chunk.strides);
  std::int64_t count = 1;
  for (const std::int64_t n : sizes) count *= n;
  chunk.storage = add_storage(catalog, file, count * element_bytes);
  chunk.offsets = std::move(offsets);
  chunk.sizes = std::move(sizes);
  chunk.rank = rank;
  return chunk;
}

/// `parts` pieces of a float32 matrix along a dimension, each in a separate file.
void add_matrix(Catalog& catalog, std::int64_t rows, std::int64_t columns, int dim, std::int64_t parts) {
  std::vector<MadeChunk> chunks;
  for (std::int64_t i = 0; i < parts; ++i) {
    const std::int64_t height = dim == 0 ? rows / parts : rows, width = dim == 1 ? columns / parts : columns;
    chunks.push_back(piece(catalog, static_cast<std::uint32_t>(i),
                           {dim == 0 ? i * height : 0, dim == 1 ? i * width : 0}, {height, width}, 4,
                           static_cast<std::int32_t>(i)));
  }
  add_tensor(catalog, "w", DType::kFloat32, {rows, columns}, chunks);
}

std::vector<std::int64_t> extents(Dims dims) { return {dims.begin(), dims.end()}; }

ErrorCode code_of(const Catalog& source, const Catalog& target, const PlanOptions& options = {}) {
  try {
    plan_copies(source, target, options);
  } catch (const Error& error) {
    return error.code();
  }
  ADD_FAILURE() << "no error";
  return ErrorCode::kPeer;
}

TEST(PlanCopies, MakesALineOfBytesOfRowShards) {
  Catalog source, target;
  add_matrix(source, 6, 4, 0, 3);
  add_matrix(target, 6, 4, 0, 2);
  const Plan plan = plan_copies(source, target, {});
  ASSERT_EQ(plan.units.size(), 1);
  EXPECT_TRUE(plan.units[0].is_line);
  EXPECT_THAT(extents(plan.units[0].shape), ElementsAre(96));
  EXPECT_THAT(extents(plan.from(plan.units[0])[1].offsets), ElementsAre(32));
  EXPECT_THAT(extents(plan.to(plan.units[0])[1].offsets), ElementsAre(48));
  EXPECT_EQ(plan.bytes_to_read, 96);
  EXPECT_EQ(plan.bytes_to_write, 96);
  EXPECT_EQ(plan.copies, 4);
}

TEST(PlanCopies, CountsTheMeetingsOfAGrid) {
  Catalog source, target;
  add_matrix(source, 6, 4, 0, 3);
  add_matrix(target, 6, 4, 1, 4);
  EXPECT_EQ(plan_copies(source, target, {}).copies, 12);
}

TEST(PlanCopies, ReadsReplicasFromTheLowestRank) {
  Catalog source, target;
  std::vector<MadeChunk> chunks;
  for (const int rank : {3, 1, 2}) chunks.push_back(piece(source, static_cast<std::uint32_t>(rank), {0}, {8}, 4, rank));
  add_tensor(source, "w", DType::kFloat32, {8}, chunks);
  add_tensor(target, "w", DType::kFloat32, {8}, {piece(target, 0, {0}, {8}, 4)});
  const Plan plan = plan_copies(source, target, {});
  ASSERT_EQ(plan.from_pieces.size(), 1);
  EXPECT_EQ(source.storages[plan.from_pieces[0].storage].file, 1);
  EXPECT_EQ(plan.bytes_to_read, 32);
}

TEST(PlanCopies, WritesEveryReplica) {
  Catalog source, target;
  add_tensor(source, "w", DType::kFloat32, {8}, {piece(source, 0, {0}, {8}, 4)});
  add_tensor(target, "w", DType::kFloat32, {8}, {piece(target, 0, {0}, {8}, 4, 0), piece(target, 1, {0}, {8}, 4, 1)});
  const Plan plan = plan_copies(source, target, {});
  EXPECT_EQ(plan.bytes_to_read, 32);
  EXPECT_EQ(plan.bytes_to_write, 64);
}

TEST(PlanCopies, LeavesOutEmptyPieces) {
  Catalog source, target;
  add_tensor(source, "w", DType::kFloat32, {8},
             {piece(source, 0, {0}, {0}, 4), piece(source, 1, {0}, {8}, 4, 1), piece(source, 2, {9}, {0}, 4, 2)});
  add_tensor(target, "w", DType::kFloat32, {8}, {piece(target, 0, {0}, {8}, 4)});
  add_tensor(source, "x", DType::kFloat32, {0, 3}, {piece(source, 0, {0, 0}, {0, 3}, 4)});
  add_tensor(target, "x", DType::kFloat32, {0, 3}, {piece(target, 0, {0, 0}, {0, 3}, 4)});
  const Plan plan = plan_copies(source, target, {});
  EXPECT_EQ(plan.units.size(), 1);
  EXPECT_EQ(plan.from_pieces.size(), 1);
}

TEST(PlanCopies, WritesAnAliasOnce) {
  Catalog source, target;
  for (Catalog* catalog : {&source, &target}) {
    const MadeChunk chunk = piece(*catalog, 0, {0}, {8}, 4);
    add_tensor(*catalog, "a", DType::kFloat32, {8}, {chunk});
    add_tensor(*catalog, "b", DType::kFloat32, {8}, {chunk});
    catalog->tensors[1].alias_of = 0;
  }
  EXPECT_EQ(plan_copies(source, target, {}).bytes_to_write, 32);
}

TEST(PlanCopies, WritesAnAliasThatHasAStorageOfItsOwn) {
  Catalog source, target;
  const MadeChunk chunk = piece(source, 0, {0}, {8}, 4);
  for (const char* name : {"a", "b"}) {
    add_tensor(source, name, DType::kFloat32, {8}, {chunk});
    add_tensor(target, name, DType::kFloat32, {8}, {piece(target, 0, {0}, {8}, 4)});
  }
  source.tensors[1].alias_of = target.tensors[1].alias_of = 0;
  EXPECT_EQ(plan_copies(source, target, {}).bytes_to_write, 64);
}

TEST(PlanCopies, CopiesASharedStorageAsBytes) {
  Catalog source, target;
  for (Catalog* catalog : {&source, &target}) {
    MadeChunk whole = piece(*catalog, 0, {0}, {8}, 4), part = whole;
    part.sizes = {3};
    part.first = 2;
    add_tensor(*catalog, "a", DType::kFloat32, {8}, {whole});
    add_tensor(*catalog, "b", DType::kFloat32, {3}, {part});
  }
  target.storages[0].whole_copy = true;
  target.storage_copies.push_back({0, 0, 0, 0, 32});
  const Plan plan = plan_copies(source, target, {});
  ASSERT_EQ(plan.units.size(), 1);
  EXPECT_EQ(plan.units[0].tensor, kNoIndex);
  EXPECT_EQ(plan.bytes_to_write, 32);
}

/// A hundred tensors of 10 bytes, one after another in one file.
void add_small(Catalog& catalog) {
  for (int i = 0; i < 100; ++i) {
    add_tensor(catalog, fmt::format("t{}", i), DType::kUint8, {2, 5}, {piece(catalog, 0, {0, 0}, {2, 5}, 1)});
  }
}

TEST(PlanCopies, JoinsSmallNeighboursIntoOneCopy) {
  Catalog source, target;
  add_small(source);
  add_small(target);
  const Plan plan = plan_copies(source, target, {});
  EXPECT_EQ(plan.tile_count, 1);
  EXPECT_EQ(plan.from_pieces.size(), 1);
  EXPECT_EQ(plan.to_pieces.size(), 1);
  EXPECT_EQ(plan.bytes_to_write, 1000);
}

// The second tensor begins in its file at the offset at which the first ends in a different file.
TEST(PlanCopies, JoinsNoPiecesOfTwoFiles) {
  Catalog source, target;
  add_tensor(source, "a", DType::kUint8, {10}, {{{0}, {10}, {1}, 0, add_storage(source, 0, 10), 0}});
  add_tensor(source, "b", DType::kUint8, {10}, {{{0}, {10}, {1}, 0, add_storage(source, 1, 10, 10), 0}});
  for (const char* name : {"a", "b"}) add_tensor(target, name, DType::kUint8, {10}, {piece(target, 0, {0}, {10}, 1)});
  const Plan plan = plan_copies(source, target, {});
  EXPECT_EQ(plan.units.size(), 1);
  EXPECT_EQ(plan.from_pieces.size(), 2);
}

TEST(PlanCopies, JoinsNoMoreThanOneMebibyte) {
  constexpr std::int64_t kBytes = 400 << 10;
  Catalog source, target;
  for (const char* name : {"a", "b", "c"}) {
    for (Catalog* catalog : {&source, &target}) {
      add_tensor(*catalog, name, DType::kUint8, {kBytes}, {piece(*catalog, 0, {0}, {kBytes}, 1)});
    }
  }
  const Plan plan = plan_copies(source, target, {});
  ASSERT_EQ(plan.units.size(), 2U);
  EXPECT_THAT(extents(plan.units[0].shape), ElementsAre(2 * kBytes));
}

TEST(PlanCopies, KeepsStoragesApartForChecksums) {
  Catalog source, target;
  add_small(source);
  add_small(target);
  const Plan plan = plan_copies(source, target, {.checksums = true});
  EXPECT_EQ(plan.tile_count, 1);
  EXPECT_EQ(plan.from_pieces.size(), 1);
  EXPECT_EQ(plan.to_pieces.size(), 100);
}

/// Two compressed storages of one file: the offsets of both count decoded bytes.
TEST(PlanCopies, JoinsNothingAcrossCompressedStorages) {
  Catalog source, target;
  for (const int i : {0, 1}) {
    MadeChunk chunk = piece(source, 0, {0}, {100}, 1);
    source.storages.back().plain = false;
    source.storages.back().offset = 0;
    chunk.first = i * 10;
    chunk.sizes = {10};
    add_tensor(source, fmt::format("t{}", i), DType::kUint8, {10}, {chunk});
    add_tensor(target, fmt::format("t{}", i), DType::kUint8, {10}, {piece(target, 0, {0}, {10}, 1)});
  }
  const Plan plan = plan_copies(source, target, {});
  ASSERT_EQ(plan.from_pieces.size(), 2U);
  EXPECT_EQ(plan.from_pieces[1].storage, 1U);
  EXPECT_EQ(plan.from_pieces[1].first, 10);
}

/// Views of one stream, in the reverse order of their names.
TEST(PlanCopies, OrdersUnitsFromStreamsAsTheyLieInThem) {
  Catalog source, target;
  MadeChunk whole = piece(source, 0, {0}, {3 << 20}, 1);
  source.storages[0].is_stream = true;
  for (const int i : {0, 1, 2}) {
    whole.first = (2 - i) << 20;
    whole.sizes = {1 << 20};
    add_tensor(source, fmt::format("t{}", i), DType::kUint8, {1 << 20}, {whole});
    add_tensor(target, fmt::format("t{}", i), DType::kUint8, {1 << 20}, {piece(target, 0, {0}, {1 << 20}, 1)});
  }
  add_tensor(source, "plain", DType::kUint8, {1 << 20}, {piece(source, 1, {0}, {1 << 20}, 1)});
  add_tensor(target, "plain", DType::kUint8, {1 << 20}, {piece(target, 1, {0}, {1 << 20}, 1)});
  const Plan plan = plan_copies(source, target, {});
  std::vector<std::int64_t> first;
  for (const Unit& unit : plan.units) first.push_back(plan.from(unit)[0].first >> 20);
  EXPECT_THAT(first, ElementsAre(0, 0, 1, 2));
  EXPECT_EQ(plan.from(plan.units[0])[0].storage, 1U);
}

/// Start and end of each tile in its storage, tile by tile, with the storage.
void expect_front_to_back(const Plan& plan, const Unit& unit) {
  std::int64_t end = 0;
  std::uint32_t storage = plan.from(unit)[0].storage;
  for (std::int64_t number = 0; number < unit.tile_count; ++number) {
    const Box tile = tile_box(unit, number);
    for (const Piece& piece : plan.from(unit)) {
      const Box common = intersect(tile, Box(piece.offsets, piece.sizes));
      if (common.empty()) continue;
      if (piece.storage != storage) end = 0;
      EXPECT_GE(piece.storage, storage);
      storage = piece.storage;
      std::int64_t first = piece.first;
      for (int d = 0; d < common.dims; ++d) {
        first += (common.offset[static_cast<std::size_t>(d)] - piece.offsets[d]) * piece.strides[d];
      }
      EXPECT_GE(first, end) << "tile " << number;
      end = first + 1;
    }
  }
}

TEST(PlanCopies, ReadsATransposedStreamFrontToBack) {
  Catalog source, target;
  MadeChunk chunk = piece(source, 0, {0, 0, 0}, {64, 128, 512}, 4);
  source.storages[0].is_stream = true;
  chunk.strides = {1, 64 * 512, 64};
  add_tensor(source, "w", DType::kFloat32, {64, 128, 512}, {chunk});
  add_tensor(target, "w", DType::kFloat32, {64, 128, 512}, {piece(target, 0, {0, 0, 0}, {64, 128, 512}, 4)});
  const Plan plan = plan_copies(source, target, {.max_memory_bytes = 2 << 20, .threads = 2});
  ASSERT_EQ(plan.units.size(), 1U);
  EXPECT_TRUE(plan.units[0].is_stream);
  EXPECT_GT(plan.tile_count, 8);
  EXPECT_EQ(extents(plan.units[0].shape), (std::vector<std::int64_t>{128, 512, 64}));
  expect_front_to_back(plan, plan.units[0]);
}

TEST(PlanCopies, ReadsOneStreamAfterAnother) {
  Catalog source, target;
  add_matrix(source, 4096, 1024, 1, 4);
  for (Storage& storage : source.storages) storage.is_stream = true;
  add_matrix(target, 4096, 1024, 0, 2);
  const Plan plan = plan_copies(source, target, {.max_memory_bytes = 2 << 20, .threads = 1});
  ASSERT_EQ(plan.units.size(), 1U);
  EXPECT_GT(plan.tile_count, 4);
  expect_front_to_back(plan, plan.units[0]);
}

TEST(PlanCopies, JoinsNothingWithoutPlaces) {
  Catalog source, target;
  add_small(source);
  add_small(target);
  for (Storage& storage : target.storages) storage.offset = -1;
  EXPECT_EQ(plan_copies(source, target, {}).units.size(), 100);
}

TEST(PlanCopies, FollowsThePlacesInTheTarget) {
  Catalog source, target;
  for (const char* name : {"a", "b", "c"}) {
    add_tensor(source, name, DType::kUint8, {2 << 20}, {piece(source, 0, {0}, {2 << 20}, 1)});
    add_tensor(target, name, DType::kUint8, {2 << 20}, {piece(target, 0, {0}, {2 << 20}, 1)});
  }
  std::swap(target.storages[0].offset, target.storages[2].offset);
  const Plan plan = plan_copies(source, target, {});
  EXPECT_EQ(plan.units[0].tensor, 2);
  EXPECT_EQ(plan.units[2].tensor, 0);
}

TEST(PlanCopies, CutsLongRunsIntoTilesOfOneMebibyte) {
  Catalog source, target;
  add_matrix(source, 16 << 10, 1 << 10, 0, 4);
  add_matrix(target, 16 << 10, 1 << 10, 0, 1);
  const Plan plan = plan_copies(source, target, {.threads = 2});
  EXPECT_EQ(plan.tile_count, 64);
  EXPECT_EQ(plan.tile_bytes, 1 << 20);
}

/// A target in memory needs no buffer for them, so many threads do not make them shorter.
TEST(PlanCopies, CutsLongRunsIntoTilesOfAGivenSize) {
  Catalog source, target;
  add_matrix(source, 1024, 65536, 0, 1);
  add_matrix(target, 1024, 65536, 0, 1);
  for (const int threads : {1, 64}) {
    EXPECT_EQ(plan_copies(source, target, {.threads = threads, .line_tile_bytes = 16 << 20}).tile_bytes, 16 << 20);
  }
  const Plan small = plan_copies(source, target, {.max_memory_bytes = 4 << 20, .line_tile_bytes = 16 << 20});
  EXPECT_LE(small.tile_bytes, 4 << 20);
}

TEST(PlanCopies, TakesWholeRowsForInnerPieces) {
  Catalog source, target;
  add_matrix(source, 256 << 10, 256, 1, 4);
  add_matrix(target, 256 << 10, 256, 0, 1);
  const Plan plan = plan_copies(source, target, {.threads = 2});
  ASSERT_EQ(plan.units[0].tile.size(), 2);
  EXPECT_EQ(plan.units[0].tile[1], 256);
  EXPECT_GE(plan.units[0].tile[0], 1024);
}

TEST(PlanCopies, GrowsTilesUntilRunsAreLong) {
  Catalog source, target;
  add_matrix(source, 256 << 10, 256, 1, 64);
  add_matrix(target, 256 << 10, 256, 0, 1);
  const Plan plan = plan_copies(source, target, {.threads = 16});
  EXPECT_GT(plan.tile_bytes, 24 << 20);
  EXPECT_LE(plan.memory_bytes, 64 << 20);
}

TEST(PlanCopies, StaysWithinALittleMemory) {
  Catalog source, target;
  add_matrix(source, 64 << 10, 256, 1, 64);
  add_matrix(target, 64 << 10, 256, 0, 3);
  const Plan plan = plan_copies(source, target, {.max_memory_bytes = 1 << 20, .threads = 8});
  EXPECT_LT(plan.tile_bytes, 1 << 20);
  EXPECT_LE(plan.memory_bytes, 1 << 20);
}

/// `parts` files of ranks 0, 1, ... with a piece of a matrix each.
Catalog of_ranks(std::int64_t rows, std::int64_t columns, int dim, int parts) {
  Catalog catalog;
  add_matrix(catalog, rows, columns, dim, parts);
  for (int rank = 0; rank < parts; ++rank) catalog.files[static_cast<std::size_t>(rank)].rank = rank;
  return catalog;
}

TEST(PlanCopies, TakesOfOneRankWhatItsFilesHold) {
  const Catalog source = of_ranks(6, 4, 0, 3), target = of_ranks(6, 4, 0, 3);
  const Plan plan = plan_copies(source, target, {.only_rank = 1});
  ASSERT_EQ(plan.units.size(), 1);
  EXPECT_THAT(extents(plan.units[0].shape), ElementsAre(32));
  EXPECT_EQ(source.storages[plan.from_pieces[0].storage].file, 1);
  EXPECT_EQ(target.storages[plan.to_pieces[0].storage].file, 1);
  EXPECT_EQ(plan.bytes_to_read, 32);
  EXPECT_EQ(plan.bytes_to_write, 32);
}

// Rank 1 has columns 2 and 3; of each target rank's three rows these are a block in the middle.
TEST(PlanCopies, CutsTargetPiecesToWhatOneRankHas) {
  const Catalog source = of_ranks(6, 6, 1, 3), target = of_ranks(6, 6, 0, 2);
  const Plan plan = plan_copies(source, target, {.only_rank = 1});
  ASSERT_EQ(plan.units.size(), 1);
  EXPECT_THAT(extents(plan.units[0].shape), ElementsAre(6, 2));
  const auto to = plan.to(plan.units[0]);
  ASSERT_EQ(to.size(), 2);
  EXPECT_THAT(extents(to[1].offsets), ElementsAre(3, 0));
  EXPECT_THAT(extents(to[1].sizes), ElementsAre(3, 2));
  EXPECT_EQ(to[1].first, 2);
  EXPECT_EQ(plan.bytes_to_read, 48);
  EXPECT_EQ(plan.bytes_to_write, 48);
}

TEST(PlanCopies, PlansNothingForARankWithoutBytes) {
  const Catalog source = of_ranks(6, 4, 0, 3), target = of_ranks(6, 4, 0, 3);
  EXPECT_EQ(plan_copies(source, target, {.only_rank = 7}).tile_count, 0);
}

TEST(PlanCopies, TakesTheRanksThatReadTheFilesInsteadOfThoseThatWroteThem) {
  const Catalog source = of_ranks(6, 4, 0, 3), target = of_ranks(6, 4, 0, 3);
  const std::vector<int> readers{1, 0, 1};
  const Plan plan = plan_copies(source, target, {.only_rank = 1, .readers = readers});
  EXPECT_EQ(plan.bytes_to_read, 64);
}

// Rank 1 writes rows 3 to 5, of which each source rank has two columns.
TEST(PlanCopies, FillsTheFilesOfOneRankFromAllOthers) {
  const Catalog source = of_ranks(6, 6, 1, 3), target = of_ranks(6, 6, 0, 2);
  const std::vector<std::uint8_t> own_storages{0, 1};
  const Plan plan = plan_copies(source, target, {.own_storages = own_storages});
  ASSERT_EQ(plan.units.size(), 1);
  EXPECT_THAT(extents(plan.units[0].shape), ElementsAre(3, 6));
  ASSERT_EQ(plan.to_pieces.size(), 1);
  EXPECT_EQ(target.storages[plan.to_pieces[0].storage].file, 1);
  EXPECT_EQ(plan.from_pieces.size(), 3);
  EXPECT_EQ(plan.bytes_to_read, 72);
  EXPECT_EQ(plan.bytes_to_write, 72);
}

TEST(PlanCopies, ReadsTheReplicaThatIsChosen) {
  Catalog source, target;
  add_tensor(source, "w", DType::kFloat32, {4, 4},
             {piece(source, 0, {0, 0}, {4, 4}, 4, 0), piece(source, 1, {0, 0}, {4, 4}, 4, 1)});
  add_matrix(target, 4, 4, 0, 1);
  const Plan first = plan_copies(source, target, {});
  const Plan last =
      plan_copies(source, target, {.choose_replica = [](std::span<const Piece> each) { return each.size() - 1; }});
  EXPECT_EQ(source.storages[first.from_pieces[0].storage].file, 0);
  EXPECT_EQ(source.storages[last.from_pieces[0].storage].file, 1);
}

TEST(PlanCopies, LaysNoTilesWhereAPartialTargetWantsNothing) {
  const Catalog source = of_ranks(4096, 1024, 0, 4);
  Catalog target;
  add_tensor(target, "w", DType::kFloat32, {4096, 1024}, {piece(target, 0, {1000, 256}, {100, 512}, 4)});
  const Plan plan = plan_copies(source, target, {});
  EXPECT_EQ(plan.tile_count, 1);
  EXPECT_THAT(extents(plan.units[0].shape), ElementsAre(100, 512));
  EXPECT_EQ(plan.bytes_to_read, 100 * 512 * 4);
  EXPECT_EQ(plan.copies, 2);  // It reaches over the border of two source pieces at row 1024.
}

TEST(PlanCopies, RefusesLessThanOneMebibyte) {
  Catalog source, target;
  add_matrix(source, 4, 4, 0, 1);
  add_matrix(target, 4, 4, 0, 1);
  EXPECT_EQ(code_of(source, target, {.max_memory_bytes = (1 << 20) - 1}), ErrorCode::kInvalidArgument);
}

/// A float6 matrix of 4 x 8 elements (24 bytes), cut along a dimension after `first` elements.
Catalog float6(int dim, std::int64_t first) {
  Catalog catalog;
  std::vector<std::int64_t> sizes = {4, 8}, rest = {4, 8}, offsets = {0, 0};
  const auto d = static_cast<std::size_t>(dim);
  sizes[d] = offsets[d] = first;
  rest[d] -= first;
  add_tensor(catalog, "f", DType::kFloat6E2m3fn, {4, 8},
             {piece(catalog, 0, {0, 0}, sizes, 1), piece(catalog, 0, offsets, rest, 1)});
  return catalog;
}

TEST(PlanCopies, CountsFloat6InBytes) {
  const Plan plan = plan_copies(float6(0, 1), float6(0, 3), {});
  EXPECT_THAT(extents(plan.units[0].shape), ElementsAre(24));
  EXPECT_EQ(plan.bytes_to_write, 24);
}

TEST(PlanCopies, CutsFloat6BetweenGroups) {
  const Plan plan = plan_copies(float6(0, 1), float6(1, 4), {});
  EXPECT_THAT(extents(plan.units[0].shape), ElementsAre(4, 6));
  EXPECT_THAT(extents(plan.to_pieces[1].offsets), ElementsAre(0, 3));
  EXPECT_THAT(extents(plan.to_pieces[1].strides), ElementsAre(3, 1));
}

TEST(PlanCopies, RefusesACutInsideAByte) { EXPECT_EQ(code_of(float6(0, 1), float6(1, 2)), ErrorCode::kUnsupported); }

// The second piece begins at element 2 of its rows, in the middle of a byte.
TEST(PlanCopies, RefusesAPieceOfAPartialTargetThatBeginsInsideAByte) {
  Catalog target;
  add_tensor(target, "f", DType::kFloat6E2m3fn, {4, 8},
             {piece(target, 0, {0, 0}, {1, 8}, 1), piece(target, 0, {1, 2}, {3, 4}, 1)});
  EXPECT_EQ(code_of(float6(0, 1), target), ErrorCode::kUnsupported);
}

TEST(TilesOfRank, ShareTheTilesOfOneUnit) {
  Catalog source, target;
  add_matrix(source, 16 << 10, 1 << 10, 0, 4);
  add_matrix(target, 16 << 10, 1 << 10, 0, 1);
  const Plan plan = plan_copies(source, target, {.threads = 2});
  ASSERT_EQ(plan.tile_count, 64);
  for (int rank = 0; rank < 4; ++rank) {
    const TileRange tiles = tiles_of_rank(plan, rank, 4);
    EXPECT_NEAR(static_cast<double>(tiles.begin), 16 * rank, 1);
    EXPECT_EQ(tiles.end, rank == 3 ? 64 : tiles_of_rank(plan, rank + 1, 4).begin);
  }
}

TEST(Candidates, AreThePiecesThatMayMeetABox) {
  Catalog source, target;
  add_matrix(source, 100, 4, 0, 10);
  add_matrix(target, 100, 4, 1, 2);
  const Plan plan = plan_copies(source, target, {});
  const std::vector<std::int64_t> offsets = {25, 0}, sizes = {15, 4};
  const auto [first, last] = candidates(plan.from(plan.units[0]), Box(offsets, sizes));
  EXPECT_EQ(first, 2);
  EXPECT_EQ(last, 4);
}

TEST(TileBox, CutsTheEdges) {
  Arena arena;
  const std::vector<std::int64_t> shape = {5, 7}, tile = {2, 4};
  Unit unit;
  unit.shape = arena.dims(shape);
  unit.tile = arena.dims(tile);
  EXPECT_EQ(to_string(tile_box(unit, 0)), "[0:2, 0:4]");
  EXPECT_EQ(to_string(tile_box(unit, 5)), "[4:5, 4:7]");
}

}  // namespace
}  // namespace shard
