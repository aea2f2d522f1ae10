#include "libshard/exec/runs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "tests/plan/pieces.h"

namespace shard {
namespace {

using testing::below;
using testing::Random;
using testing::Sizes;
using testing::strides_in;

Sizes random_sizes(Random& random) {
  Sizes sizes(random() % 4);
  for (std::int64_t& n : sizes) n = 1 + below(random, 5);
  return sizes;
}

Sizes random_strides(Random& random, const Sizes& sizes) {
  std::vector<std::size_t> order(sizes.size());
  for (std::size_t d = 0; d < order.size(); ++d) order[d] = d;
  std::ranges::shuffle(order, random);
  return strides_in(sizes, order, 1 + below(random, 2));
}

/// The address of each element on either side, by plain loops: address in `b` by address in `a`.
std::map<std::int64_t, std::int64_t> addresses(const Sizes& sizes, const Sizes& a, const Sizes& b) {
  std::int64_t count = 1;
  for (const std::int64_t n : sizes) count *= n;
  std::map<std::int64_t, std::int64_t> at;
  for (std::int64_t i = 0; i < count; ++i) {
    std::int64_t rest = i, in_a = 0, in_b = 0;
    for (std::size_t d = sizes.size(); d-- > 0; rest /= sizes[d]) {
      in_a += rest % sizes[d] * a[d];
      in_b += rest % sizes[d] * b[d];
    }
    at[in_a] = in_b;
  }
  return at;
}

TEST(WalkRuns, PassesOverEveryElementOnceInTheOrderOfTheFirstSide) {
  Random random(1);
  for (int round = 0; round < 3000; ++round) {
    const Sizes sizes = random_sizes(random);
    const Sizes a = random_strides(random, sizes), b = random_strides(random, sizes);
    std::map<std::int64_t, std::int64_t> walked;
    std::int64_t runs = 0, last = -1;
    walk_runs(sizes, a, b, [&](std::int64_t in_a, std::int64_t in_b, std::int64_t elements) {
      ASSERT_GT(in_a, last);
      ++runs;
      for (std::int64_t i = 0; i < elements; ++i) ASSERT_TRUE(walked.emplace(in_a + i, in_b + i).second);
      last = in_a;
    });
    const std::map<std::int64_t, std::int64_t> expected = addresses(sizes, a, b);
    ASSERT_EQ(walked, expected) << "round " << round;
    std::int64_t breaks = 0;
    for (auto it = expected.begin(); it != expected.end(); ++it) {
      const auto before = expected.find(it->first - 1);
      breaks += before == expected.end() || before->second != it->second - 1 ? 1 : 0;
    }
    ASSERT_GE(runs, breaks) << "round " << round;
  }
}

TEST(WalkRuns, OfAMatrixThatIsContiguousOnBothSidesAreOne) {
  const Sizes sizes = {3, 4}, strides = {4, 1};
  int runs = 0;
  walk_runs(sizes, strides, strides, [&](std::int64_t, std::int64_t, std::int64_t elements) {
    ++runs;
    EXPECT_EQ(elements, 12);
  });
  EXPECT_EQ(runs, 1);
}

TEST(WalkRuns, OfRowsWithGapsAreTheRows) {
  const Sizes sizes = {3, 4}, a = {10, 1}, b = {4, 1};
  std::vector<Sizes> runs;
  walk_runs(sizes, a, b, [&](std::int64_t x, std::int64_t y, std::int64_t n) { runs.push_back({x, y, n}); });
  EXPECT_EQ(runs, (std::vector<Sizes>{{0, 0, 4}, {10, 4, 4}, {20, 8, 4}}));
}

TEST(SpanOf, CountsGaps) {
  EXPECT_EQ(span_of(Sizes{3, 4}, Sizes{10, 1}), 24);
  EXPECT_EQ(span_of(Sizes{}, Sizes{}), 1);
  EXPECT_EQ(span_of(Sizes{1, 1}, Sizes{99, 99}), 1);
}

TEST(Distance, IsBetweenTwoPoints) {
  const Sizes from = {1, 2}, to = {3, 1}, strides = {10, 1};
  EXPECT_EQ(distance(from.data(), to.data(), strides), 19);
}

TEST(Pack, KeepsTheOrderOfTheStridesWithoutGaps) {
  Numbers packed;
  pack(Sizes{3, 4, 5}, Sizes{1, 100, 7}, packed);
  EXPECT_EQ(Sizes(packed.begin(), packed.begin() + 3), (Sizes{1, 15, 3}));
}

}  // namespace
}  // namespace shard
