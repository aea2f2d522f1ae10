#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>

#include "libshard/exec/execute.h"
#include "tests/exec/random_copies.h"
#include "tests/support/copy_rounds.h"
#include "tests/support/device_double.h"
#include "tests/support/expect_error.h"

namespace shard {
namespace {

using testing::add_storage;
using testing::add_tensor;
using testing::check_run;
using testing::DeviceDouble;
using testing::DoubleOptions;
using testing::Random;
using testing::RandomCopy;

/// A plan whose tiles fit a device with this much memory.
Plan plan_for_device(const RandomCopy& the, std::int64_t memory_bytes, int threads, bool checksums) {
  const std::int64_t tiles = tile_memory_on_device(memory_bytes, the.source, the.target);
  return plan_copies(the.source, the.target, {.max_memory_bytes = tiles, .threads = threads, .checksums = checksums});
}

void expect_like_the_obvious_way(std::uint64_t rounds, const std::vector<DType>& dtypes, bool is_cast) {
  testing::expect_like_the_obvious_way(
      {.count = rounds,
       .dtypes = dtypes,
       .is_cast = is_cast,
       .plan = [](const RandomCopy& the, int threads,
                  bool checksums) { return plan_for_device(the, 64 << 20, threads, checksums); },
       .make_device = [] { return std::make_unique<DeviceDouble>(DoubleOptions{}); }});
}

TEST(ExecuteOnDevice, WritesWhatTheObviousWayWrites) {
  expect_like_the_obvious_way(
      150, {DType::kUint8, DType::kBfloat16, DType::kFloat32, DType::kInt64, DType::kComplex128}, false);
}

TEST(ExecuteOnDevice, CastsWhatTheObviousWayCasts) {
  expect_like_the_obvious_way(100, {DType::kBfloat16, DType::kFloat16, DType::kFloat32, DType::kFloat64, DType::kUint8},
                              true);
}

/// A matrix that is stored column after column and written row after row, in a different dtype.
RandomCopy transposed(Random& random, DType from, DType to, std::int64_t rows, std::int64_t columns) {
  RandomCopy the;
  const std::uint32_t source = add_storage(the.source, 0, rows * columns * element_bytes(from));
  const std::uint32_t target = add_storage(the.target, 0, rows * columns * element_bytes(to));
  add_tensor(the.source, "w", from, {rows, columns}, {{{0, 0}, {rows, columns}, {1, rows}, 0, source, 0}});
  add_tensor(the.target, "w", to, {rows, columns}, {{{0, 0}, {rows, columns}, {columns, 1}, 0, target, 0}});
  the.fill(random);
  return the;
}

TEST(ExecuteOnDevice, TakesAtMostTheMemoryOnTheHostAndOnTheDevice) {
  Random random(1);
  for (const auto& [from, to] : {std::pair{DType::kInt16, DType::kInt16}, {DType::kUint8, DType::kInt32}}) {
    const RandomCopy the = transposed(random, from, to, 3000, 700);
    for (const std::int64_t mebibytes : {16, 24, 64}) {
      for (const int threads : {1, 3, 16}) {
        DeviceDouble device({});
        const Plan plan = plan_for_device(the, mebibytes << 20, threads, false);
        check_run(the, plan, {.threads = threads, .max_memory_bytes = mebibytes << 20, .device = &device});
        EXPECT_GT(device.counters().most_bytes, 0);
        EXPECT_LE(device.counters().most_bytes, mebibytes << 20) << threads;
        EXPECT_LE(device.counters().most_pinned, mebibytes << 19) << threads;
        EXPECT_EQ(device.counters().used_bytes, 0);
        EXPECT_EQ(device.counters().pinned_bytes, 0);
      }
    }
  }
}

TEST(ExecuteOnDevice, MovesEachByteInAndOutOnceAndCastsThere) {
  Random random(2);
  const RandomCopy the = transposed(random, DType::kFloat32, DType::kBfloat16, 512, 300);
  DeviceDouble device({});
  const Plan plan = plan_for_device(the, 64 << 20, 1, false);
  check_run(the, plan, {.device = &device});
  constexpr std::int64_t kHeads = 64;
  const auto& counters = device.counters();
  EXPECT_EQ(counters.bytes_in, 512 * 300 * 4 + kHeads * plan.tile_count);
  EXPECT_EQ(counters.bytes_out, 512 * 300 * 2 + kHeads * plan.tile_count);
  EXPECT_EQ(counters.bytes_copied, 512 * 300 * 4);
  EXPECT_EQ(counters.bytes_cast, 512 * 300 * 4);
}

TEST(ExecuteOnDevice, CountsOverflowsAsTheCpuDoes) {
  Random random(3);
  const RandomCopy the = transposed(random, DType::kFloat32, DType::kFloat16, 400, 90);
  std::array<std::int64_t, 2> overflows{};
  DeviceDouble device({});
  for (Device* const where : {static_cast<Device*>(nullptr), static_cast<Device*>(&device)}) {
    const testing::MemoryReader reader(the.source, the.source_files);
    testing::CountingFiles files(the.target.files);
    Progress progress;
    execute(plan_for_device(the, 64 << 20, 2, false), the.source, reader, the.target, files.writers,
            {.threads = 2, .device = where}, progress);
    overflows[where == nullptr ? 0 : 1] = progress.cast_overflows;
  }
  EXPECT_GT(overflows[0], 0);
  EXPECT_EQ(overflows[1], overflows[0]);
}

TEST(ExecuteOnDevice, LeavesLinesOfBytesOnTheHost) {
  Random random(4);
  RandomCopy the;
  for (Catalog* catalog : {&the.source, &the.target}) {
    const std::uint32_t storage = add_storage(*catalog, 0, 3 << 20, 100);
    add_tensor(*catalog, "w", DType::kUint8, {3 << 20}, {{{0}, {3 << 20}, {1}, 0, storage, 0}});
  }
  the.fill(random);
  DeviceDouble device({});
  check_run(the, plan_for_device(the, 64 << 20, 2, false), {.threads = 2, .device = &device});
  EXPECT_EQ(device.counters().bytes_in, 0);
  EXPECT_EQ(device.counters().bytes_out, 0);
  EXPECT_EQ(device.counters().most_bytes, 0) << "memory was taken for nothing";
}

TEST(ExecuteOnDevice, EndsWithBothNumbersWhereTheDeviceHasTooLittle) {
  Random random(5);
  const RandomCopy the = transposed(random, DType::kInt16, DType::kInt16, 1000, 700);
  DeviceDouble device({.memory_bytes = 1 << 20});
  const testing::MemoryReader reader(the.source, the.source_files);
  testing::CountingFiles files(the.target.files);
  Progress progress;
  const Error error = test::error_of([&] {
    execute(plan_for_device(the, 64 << 20, 1, false), the.source, reader, the.target, files.writers,
            {.device = &device}, progress);
  });
  EXPECT_EQ(error.code(), ErrorCode::kResource);
  EXPECT_FALSE(error.expected().empty());
  EXPECT_FALSE(error.found().empty());
  EXPECT_EQ(device.counters().used_bytes, 0);
}

TEST(ExecuteOnDevice, LeavesNothingBehindWhereAWriteFails) {
  Random random(6);
  const RandomCopy the = transposed(random, DType::kInt16, DType::kInt16, 4000, 700);
  DeviceDouble device({});
  const testing::MemoryReader reader(the.source, the.source_files);
  testing::CountingFiles files(the.target.files);
  files.owned[0]->room_for_writes = 1;
  Progress progress;
  const Error error = test::error_of([&] {
    execute(plan_for_device(the, 8 << 20, 2, false), the.source, reader, the.target, files.writers,
            {.threads = 2, .max_memory_bytes = 8 << 20, .device = &device}, progress);
  });
  EXPECT_EQ(error.code(), ErrorCode::kResource);
  EXPECT_EQ(device.counters().used_bytes, 0);
  EXPECT_EQ(device.counters().pinned_bytes, 0);
}

TEST(TileMemoryOnDevice, IsAQuarterOverTheWidestGrowthAndAtLeastAMebibyte) {
  Random random(7);
  const RandomCopy same = transposed(random, DType::kInt16, DType::kInt16, 8, 8);
  EXPECT_EQ(tile_memory_on_device(64 << 20, same.source, same.target), 16 << 20);
  const RandomCopy wider = transposed(random, DType::kUint8, DType::kFloat32, 8, 8);
  EXPECT_EQ(tile_memory_on_device(64 << 20, wider.source, wider.target), 4 << 20);
  const Error error = test::error_of([&] { tile_memory_on_device(15 << 20, wider.source, wider.target); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(error.expected(), "at least 16MiB");
}

}  // namespace
}  // namespace shard
