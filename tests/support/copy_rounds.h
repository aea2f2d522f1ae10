/// \file
/// Rounds of random copies, for every way to execute a plan. Each copy is planned and executed normally and in random
/// tiles.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "libshard/device/device.h"
#include "libshard/exec/execute.h"
#include "tests/exec/random_copies.h"

namespace shard::testing {

struct CopyRounds {
  std::uint64_t count;
  std::vector<DType> dtypes;  ///< The number of tensors.
  bool is_cast;               ///< Sides differ in dtypes; false: they have the same.
  std::function<Plan(const RandomCopy& the, int threads, bool checksums)> plan;
  std::function<std::unique_ptr<Device>()> make_device{};  ///< One per round; empty: the workers copy tiles.
  Lent lent{};
};

inline RandomCopy random_copy(Random& random, const CopyRounds& rounds) {
  const auto any_dtype = [&] { return rounds.dtypes[random() % rounds.dtypes.size()]; };
  RandomCopy the;
  for (std::uint64_t i = 0, n = rounds.is_cast ? 3 : 1 + random() % 6; i < n; ++i) {
    const DType from = any_dtype(), to = rounds.is_cast ? any_dtype() : from;
    the.add(random, from, to, random_shape(random, 12));
  }
  the.fill(random);
  return the;
}

/// Expects the same bytes and checksums as from plain loops, in every round. Stops at the first difference.
/// \returns the sum of check_run's results over all rounds.
inline std::int64_t expect_like_the_obvious_way(const CopyRounds& rounds) {
  std::int64_t lent_bytes = 0;
  const std::uint64_t first = seed();
  for (std::uint64_t round = 0; round < rounds.count; ++round) {
    SCOPED_TRACE(fmt::format("SHARD_SEED={} round {}", first, round));
    Random random(first + round);
    const RandomCopy the = random_copy(random, rounds);
    const bool checksums = random() % 2 == 0;
    const int threads = std::array{1, 2, 5}[random() % 3];
    const std::unique_ptr<Device> device = rounds.make_device ? rounds.make_device() : nullptr;
    ExecuteOptions options{.threads = threads, .checksums = checksums, .device = device.get()};
    Plan plan = rounds.plan(the, threads, checksums);
    lent_bytes += check_run(the, plan, options, rounds.lent);
    if (device == nullptr) options.max_memory_bytes = 1 << 20;
    retile(random, plan);
    lent_bytes += check_run(the, plan, options, rounds.lent);
    if (::testing::Test::HasFailure()) break;
  }
  return lent_bytes;
}

}  // namespace shard::testing
