#include "libshard/exec/execute.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "libshard/core/box.h"
#include "libshard/core/digest.h"
#include "libshard/exec/reading_groups.h"
#include "libshard/exec/runs.h"
#include "libshard/exec/tensor_reader.h"
#include "tests/exec/cloning_disk.h"
#include "tests/exec/random_copies.h"
#include "tests/support/copy_rounds.h"
#include "tests/support/expect_error.h"
#include "tests/support/memory_checkpoint.h"

namespace shard {
namespace {

using testing::add_storage;
using testing::add_tensor;
using testing::below;
using testing::check_run;
using testing::CloningDisk;
using testing::CountingFiles;
using testing::expect_like_the_obvious_way;
using testing::MadeChunk;
using testing::MemoryReader;
using testing::Random;
using testing::random_shape;
using testing::seed;
using testing::Sizes;
using Bytes = std::vector<std::byte>;
using Case = testing::RandomCopy;

Plan plan_copy(const Case& the, int threads, bool checksums) {
  return plan_copies(the.source, the.target, {.threads = threads, .checksums = checksums});
}

TEST(Execute, WritesWhatTheObviousWayWrites) {
  expect_like_the_obvious_way(
      {.count = 300,
       .dtypes = {DType::kUint8, DType::kBfloat16, DType::kFloat32, DType::kInt64, DType::kComplex128},
       .is_cast = false,
       .plan = plan_copy});
}

TEST(Execute, WritesTheSameFromAndToMemoryThatNeedsNoCopy) {
  for (const testing::Lent lent : {testing::Lent{.source = true}, {.target = true}, {.source = true, .target = true}}) {
    const std::int64_t lent_bytes =
        expect_like_the_obvious_way({.count = 150,
                                     .dtypes = {DType::kUint8, DType::kBfloat16, DType::kFloat32, DType::kComplex128},
                                     .is_cast = false,
                                     .plan = plan_copy,
                                     .lent = lent});
    EXPECT_GT(lent_bytes, 0);
  }
}

TEST(Execute, CastsFromMemoryThatNeedsNoCopy) {
  EXPECT_GT(expect_like_the_obvious_way({.count = 50,
                                         .dtypes = {DType::kBfloat16, DType::kFloat32},
                                         .is_cast = true,
                                         .plan = plan_copy,
                                         .lent = {.source = true, .target = true}}),
            0);
}

/// A tensor of two dimensions, packed on both sides.
Case packed_copy(Random& random) {
  Case the;
  for (Catalog* catalog : {&the.source, &the.target}) {
    const std::uint32_t storage = add_storage(*catalog, 0, 300 * 1000 * 4);
    add_tensor(*catalog, "w", DType::kFloat32, {300, 1000}, {{{0, 0}, {300, 1000}, {1000, 1}, 0, storage, -1}});
  }
  the.fill(random);
  return the;
}

TEST(Execute, LeavesAllOfAPackedTensorWhereItLies) {
  Random random(1);
  const Case the = packed_copy(random);
  const Plan plan = plan_copies(the.source, the.target, {.max_memory_bytes = 1 << 20});
  EXPECT_EQ(check_run(the, plan, {.checksums = true}, {.source = true}), 300 * 1000 * 4);
  EXPECT_EQ(check_run(the, plan, {}, {.target = true}), 300 * 1000 * 4);
  // Storages with a checksum are written from a tile.
  EXPECT_EQ(check_run(the, plan, {.checksums = true}, {.target = true}), 0);
}

TEST(Execute, CastsWhatTheObviousWayCasts) {
  expect_like_the_obvious_way({.count = 100,
                               .dtypes = {DType::kBfloat16, DType::kFloat16, DType::kFloat32},
                               .is_cast = true,
                               .plan = plan_copy});
}

TEST(Execute, WritesTheSameBytesForAnyThreadsAndMemory) {
  const std::uint64_t first = seed();
  for (std::uint64_t round = 0; round < 4; ++round) {
    SCOPED_TRACE(fmt::format("SHARD_SEED={} round {}", first, round));
    Random random(first + round);
    Case the;
    the.add(random, DType::kBfloat16, DType::kBfloat16, {700 + below(random, 300), 3, 1 + below(random, 700)});
    the.add(random, DType::kInt64, DType::kInt64, {1 + below(random, 400), 1 + below(random, 900)});
    the.fill(random);
    for (const int threads : {1, 2, 5}) {
      for (const std::int64_t mebibytes : {1, 8, 64}) {
        SCOPED_TRACE(fmt::format("-j {} --max-memory {}MiB", threads, mebibytes));
        const Plan plan =
            plan_copies(the.source, the.target, {.max_memory_bytes = mebibytes << 20, .threads = threads});
        EXPECT_LE(plan.memory_bytes, mebibytes << 20);
        check_run(the, plan, {.threads = threads, .max_memory_bytes = mebibytes << 20});
      }
    }
    if (HasFailure()) return;
  }
}

/// One tensor of `rows` of 1 KiB, in one piece on either side.
Case one_tensor(Random& random, std::int64_t rows) {
  Case the;
  for (Catalog* catalog : {&the.source, &the.target}) {
    const std::uint32_t storage = add_storage(*catalog, 0, rows << 10, 100);
    add_tensor(*catalog, "w", DType::kUint8, {rows, 1024}, {{{0, 0}, {rows, 1024}, {1024, 1}, 0, storage, 0}});
  }
  the.fill(random);
  return the;
}

TEST(Execute, StopsAtTheFirstError) {
  Random random(1);
  const Case the = one_tensor(random, 8 << 10);
  const MemoryReader reader(the.source, the.source_files);
  CountingFiles files(the.target.files);
  files.owned[0]->room_for_writes = 2;
  Progress progress;
  const Plan plan = plan_copies(the.source, the.target, {.threads = 2});
  try {
    execute(plan, the.source, reader, the.target, files.writers, {.threads = 2}, progress);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kResource);
  }
  EXPECT_EQ(progress.write_calls, 2);
  EXPECT_LE(files.owned[0]->refused, 2) << "a thread went on after its error";
}

TEST(Execute, NamesTheTensorThatCannotBeRead) {
  Random random(1);
  Case the = one_tensor(random, 4 << 10);
  the.source_files[0].resize(the.source_files[0].size() - 1);
  const MemoryReader reader(the.source, the.source_files);
  CountingFiles files(the.target.files);
  Progress progress;
  const Plan plan = plan_copies(the.source, the.target, {});
  try {
    execute(plan, the.source, reader, the.target, files.writers, {}, progress);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCorruption);
    EXPECT_EQ(error.tensor(), "w");
  }
}

TEST(Execute, EndsWithInterruptedWhenAskedToStop) {
  Random random(1);
  const Case the = one_tensor(random, 4);
  const MemoryReader reader(the.source, the.source_files);
  CountingFiles files(the.target.files);
  Progress progress;
  std::stop_source stop;
  stop.request_stop();
  const Plan plan = plan_copies(the.source, the.target, {});
  try {
    execute(plan, the.source, reader, the.target, files.writers, {.stop = stop.get_token()}, progress);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInterrupted);
  }
  EXPECT_EQ(progress.bytes_written, 0);
}

TEST(Execute, CopiesOneMebibyteInTwoCallsWhereRunsAreLong) {
  Random random(1);
  const Case the = one_tensor(random, 16 << 10);
  const MemoryReader reader(the.source, the.source_files);
  CountingFiles files(the.target.files);
  Progress progress;
  execute(plan_copies(the.source, the.target, {.threads = 2}), the.source, reader, the.target, files.writers,
          {.threads = 2}, progress);
  EXPECT_EQ(progress.read_calls, 16);
  EXPECT_EQ(progress.write_calls, 16);
}

/// Narrow columns, each a separate source piece, need one tile of all 16 MiB: its write takes longer than one call.
TEST(Execute, CutsALongWriteIntoCallsThatFollowOneAnother) {
  constexpr std::int64_t kRows = 4096, kWidth = 16, kColumns = 64, kBytes = kRows * kWidth * kColumns * 4;
  Random random(3);
  Case the;
  std::vector<MadeChunk> columns;
  for (std::int64_t i = 0; i < kColumns; ++i) {
    const std::uint32_t storage = add_storage(the.source, 0, kBytes / kColumns);
    columns.push_back({{0, i * kWidth}, {kRows, kWidth}, {kWidth, 1}, 0, storage, static_cast<std::int32_t>(i)});
  }
  const Sizes shape = {kRows, kWidth * kColumns};
  add_tensor(the.source, "w", DType::kFloat32, shape, columns);
  const std::uint32_t storage = add_storage(the.target, 0, kBytes, 100);
  add_tensor(the.target, "w", DType::kFloat32, shape, {{{0, 0}, shape, {shape[1], 1}, 0, storage, 0}});
  the.fill(random);
  const Plan plan = plan_copies(the.source, the.target, {.checksums = true});
  ASSERT_GT(plan.tile_bytes, 8 << 20);
  check_run(the, plan, {.checksums = true});
}

TEST(Execute, CastsMoreThanItsStagingBufferHoldsInBlocksThatFollowOneAnother) {
  constexpr std::int64_t kElements = 1 << 20;
  Random random(4);
  Case the;
  const std::uint32_t from = add_storage(the.source, 0, kElements), to = add_storage(the.target, 0, 4 * kElements);
  add_tensor(the.source, "w", DType::kUint8, {kElements}, {{{0}, {kElements}, {1}, 0, from, 0}});
  add_tensor(the.target, "w", DType::kInt32, {kElements}, {{{0}, {kElements}, {1}, 0, to, 0}});
  the.fill(random);
  const Plan plan = plan_copies(the.source, the.target, {.checksums = true});
  ASSERT_EQ(plan.tile_count, 1);
  check_run(the, plan, {.checksums = true});
}

/// A case, executed on a disk that may be able to clone.
struct CloningRun {
  CloningRun(const Case& the, bool can_clone, bool checksums = false)
      : files(the.target.files), reflink_disk(can_clone) {
    const MemoryReader reader(the.source, the.source_files);
    sums = execute(plan_copies(the.source, the.target, {.checksums = checksums}), the.source, reader, the.target,
                   files.writers, {.checksums = checksums, .reflink_disk = &reflink_disk}, progress);
  }

  CountingFiles files;
  CloningDisk reflink_disk;
  Progress progress;
  std::unique_ptr<Checksums> sums;
};

TEST(Execute, ClonesTheAlignedInsideAndCopiesTheEdges) {
  Random random(1);
  const Case the = one_tensor(random, 4 << 10);
  const CloningRun run(the, true);
  EXPECT_TRUE(run.files.owned[0]->bytes == the.expected[0]);
  EXPECT_TRUE(run.files.owned[0]->writes == the.writes[0]);
  EXPECT_TRUE(run.reflink_disk.is_aligned);
  EXPECT_EQ(run.progress.bytes_cloned, (4 << 20) - 4096);
  EXPECT_EQ(run.progress.bytes_read, 4096);
}

TEST(Execute, ClonesNothingThatNeedsAChecksum) {
  Random random(1);
  const Case the = one_tensor(random, 4 << 10);
  const CloningRun run(the, true, true);
  EXPECT_EQ(run.progress.bytes_cloned, 0);
  EXPECT_EQ(run.sums->crc32_of(0), crc32(std::span(the.expected[0]).subspan(100)));
}

TEST(Execute, AsksALocalDiskThatCannotCloneOnce) {
  Random random(1);
  Case the;
  for (Catalog* catalog : {&the.source, &the.target}) {
    for (const char* name : {"a", "b"}) {
      const std::uint32_t storage = add_storage(*catalog, 0, 2 << 20);
      add_tensor(*catalog, name, DType::kUint8, {2 << 20}, {{{0}, {2 << 20}, {1}, 0, storage, 0}});
    }
  }
  the.fill(random);
  const CloningRun run(the, false);
  EXPECT_TRUE(run.files.owned[0]->bytes == the.expected[0]);
  EXPECT_EQ(run.reflink_disk.asked, 1);
}

/// Rows of 4 KiB in pieces on the target side, some of them several times, from one source piece.
Case replicated_rows(Random& random, const std::vector<std::pair<std::int64_t, int>>& rows_and_copies) {
  Case the;
  std::int64_t rows = 0;
  std::vector<MadeChunk> chunks;
  for (const auto& [height, copies] : rows_and_copies) {
    for (int copy = 0; copy < copies; ++copy) {
      const std::uint32_t storage = add_storage(the.target, static_cast<std::uint32_t>(copy), height << 12, 7);
      chunks.push_back({{rows, 0}, {height, 4096}, {4096, 1}, 0, storage, copy});
    }
    rows += height;
  }
  const std::uint32_t storage = add_storage(the.source, 0, rows << 12, 100);
  add_tensor(the.source, "w", DType::kUint8, {rows, 4096}, {{{0, 0}, {rows, 4096}, {4096, 1}, 0, storage, 0}});
  add_tensor(the.target, "w", DType::kUint8, {rows, 4096}, chunks);
  the.fill(random);
  return the;
}

/// The bytes for all replicas of a tile are read once, by one call, straight into the write buffer. With a box for each
/// replica the boxes would overlap, and the read would go through the small staging buffer in many calls.
TEST(Execute, ReadsWhatSeveralReplicasWantWithOneCallATile) {
  const std::vector<std::vector<std::pair<std::int64_t, int>>> shapes = {
      {{600, 2}},                                // Replicas only.
      {{200, 3}, {400, 1}},                      // First, and followed by others.
      {{400, 1}, {200, 3}},                      // Last.
      {{100, 1}, {200, 4}, {100, 1}, {200, 2}},  // Several, among others.
      {{1, 1}, {1, 2}, {598, 1}},                // At the edge of a tile.
  };
  Random random(21);
  for (const auto& shape : shapes) {
    const Case the = replicated_rows(random, shape);
    const MemoryReader reader(the.source, the.source_files);
    CountingFiles files(the.target.files);
    Progress progress;
    const Plan plan = plan_copies(the.source, the.target, {.max_memory_bytes = 1 << 20});
    ASSERT_GT(plan.tile_count, 2);
    execute(plan, the.source, reader, the.target, files.writers, {.max_memory_bytes = 1 << 20}, progress);
    EXPECT_EQ(progress.read_calls, plan.tile_count);
    EXPECT_EQ(progress.bytes_read, plan.bytes_to_read);
    for (std::size_t i = 0; i < the.expected.size(); ++i) {
      EXPECT_TRUE(testing::same_bytes(files.owned[i]->bytes, the.expected[i])) << "file " << i;
      EXPECT_TRUE(files.owned[i]->writes == the.writes[i]) << "times written, file " << i;
    }
  }
}

/// Every tile takes one run of each piece that it overlaps, so the calls are the pairs of tiles and pieces.
TEST(Execute, TakesOneCallForEachTileAndPieceThatOverlapOnALine) {
  Random random(22);
  const Case the = replicated_rows(random, {{300, 2}, {300, 1}, {300, 3}});
  const MemoryReader reader(the.source, the.source_files);
  CountingFiles files(the.target.files);
  Progress progress;
  const Plan plan = plan_copies(the.source, the.target, {});
  std::int64_t pairs = 0;
  for (std::int64_t tile = 0; tile < plan.tile_count; ++tile) {
    const Box box = tile_box(plan.units[0], tile);
    for (const Piece& piece : plan.to_pieces) pairs += intersect(box, Box(piece.offsets, piece.sizes)).empty() ? 0 : 1;
  }
  execute(plan, the.source, reader, the.target, files.writers, {}, progress);
  EXPECT_EQ(progress.write_calls, pairs);
  EXPECT_EQ(progress.read_calls, plan.tile_count);
}

/// A matrix of bytes, 16384 x 1024, column after column.
struct Transposed {
  static constexpr std::int64_t kRows = 16384, kColumns = 1024;

  Transposed() {
    Random random(5);
    const std::uint32_t storage = testing::add_storage(source, 0, kRows * kColumns);
    testing::add_tensor(source, "w", DType::kUint8, {kRows, kColumns},
                        {{{0, 0}, {kRows, kColumns}, {1, kRows}, 0, storage}});
    content.resize(static_cast<std::size_t>(kRows * kColumns));
    for (std::byte& each : content) each = static_cast<std::byte>(random());
  }
  /// Reads everything in blocks of whole rows, within this much memory.
  void expect_read(std::int64_t memory_bytes) {
    const MemoryReader reader(source, {content});
    BufferPool pool(memory_bytes);
    TensorReader tensor(source, reader, 0, progress, throwing_findings(), &pool);
    const std::int64_t step = tensor.block_elements(1 << 20);
    Bytes block(static_cast<std::size_t>(step));
    for (std::int64_t begin = 0; begin < kRows * kColumns; begin += step) {
      const std::int64_t end = std::min(begin + step, kRows * kColumns);
      tensor.read(begin, end, std::span(block).first(static_cast<std::size_t>(end - begin)));
      for (std::int64_t i = begin; i < end; i += 101) {
        const auto at = static_cast<std::size_t>(i % kColumns * kRows + i / kColumns);
        ASSERT_EQ(block[static_cast<std::size_t>(i - begin)], content[at]) << i;
      }
    }
  }

  Catalog source;
  Bytes content;
  Progress progress;
};

TEST(TensorReader, ReadsATransposedTensorInPanelsOfTheMemoryThatItMayTake) {
  for (const auto& [mebibytes, panels] : {std::pair{17, 1}, {5, 4}, {3, 8}}) {
    Transposed matrix;
    matrix.expect_read(std::int64_t{mebibytes} << 20);
    EXPECT_EQ(matrix.progress.read_calls, panels == 1 ? 16 : 1024 * panels) << "a run of each column for each panel";
    EXPECT_EQ(matrix.progress.bytes_read, 16 << 20);
  }
}

TEST(ReadingGroups, FollowStreams) {
  Catalog catalog;
  for (const bool is_stream : {false, true}) {
    catalog.storages.push_back({.offset = 0, .bytes = 100, .is_stream = is_stream});
  }
  catalog.files.push_back({"f", 100, -1});
  int number = 0;
  for (const auto& [storage, first] : {std::pair{1U, 80}, {0U, 80}, {1U, 10}, {0U, 10}, {1U, 40}}) {
    testing::add_tensor(catalog, fmt::format("t{}", number++), DType::kUint8, {10}, {{{0}, {10}, {1}, first, storage}});
  }
  const std::vector<std::uint32_t> tensors = {0, 1, 2, 3, 4};
  EXPECT_EQ(reading_groups(catalog, tensors), (std::vector<std::vector<std::size_t>>{{1}, {3}, {2, 4, 0}}));
}

TEST(TensorReader, ReadsAnyRangeOfAnyChunks) {
  constexpr DType kDtypes[] = {DType::kUint8, DType::kBfloat16, DType::kFloat32, DType::kComplex128};
  const std::uint64_t first = seed();
  for (std::uint64_t round = 0; round < 200; ++round) {
    SCOPED_TRACE(fmt::format("SHARD_SEED={} round {}", first, round));
    Random random(first + round);
    Case the;
    const DType dtype = kDtypes[random() % 4];
    the.add(random, dtype, dtype, random_shape(random, 12));
    the.fill(random);
    // Every other one from streams, in panels of a few rows, so that most go through a temporary file.
    const bool has_panels = round % 2 == 1;
    for (Storage& storage : the.source.storages) storage.is_stream = has_panels;
    const MemoryReader reader(the.source, the.source_files);
    Progress progress;
    BufferPool pool(16 + below(random, 256));
    TensorReader tensor(the.source, reader, 0, progress, throwing_findings(), has_panels ? &pool : nullptr,
                        1 + static_cast<int>(random() % 2));
    const std::int64_t count = checked_numel(the.source.tensors[0].shape.span()), bytes = element_bytes(dtype);
    for (int i = 0; i < 10; ++i) {
      const std::int64_t begin = below(random, count + 1), end = begin + below(random, count - begin + 1);
      Bytes out(static_cast<std::size_t>((end - begin) * bytes));
      tensor.read(begin, end, out);
      const Bytes wanted(the.content[0].begin() + begin * bytes, the.content[0].begin() + end * bytes);
      ASSERT_TRUE(out == wanted) << begin << " to " << end;
    }
  }
}

}  // namespace
}  // namespace shard
