#include "libshard/map/arithmetic/dim_runs.h"

#include <gtest/gtest.h>

#include <vector>

#include "libshard/core/error.h"
#include "tests/support/expect_error.h"

namespace shard {
namespace {

/// By local position: segment and logical position, written as segment * 1000 + position; -1 for padding.
std::vector<std::int64_t> expanded(const std::vector<DimRun>& runs, std::int64_t size) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(size), -1);
  for (const DimRun& run : runs) {
    for (std::int64_t i = 0; i < run.length; ++i) {
      all.at(static_cast<std::size_t>(run.local + i * run.step)) =
          static_cast<std::int64_t>(run.segment) * 1000 + run.logical + i;
    }
  }
  return all;
}

std::vector<std::int64_t> part(const std::vector<std::int64_t>& all, std::int64_t begin, std::int64_t size) {
  return {all.begin() + begin, all.begin() + begin + size};
}

TEST(DimRuns, EveryRangeOfInterleavedSegmentsIsThatPartOfTheWhole) {
  const std::vector<std::int64_t> sizes{12, 3, 6};
  for (const std::int64_t groups : {1, 3}) {
    std::vector<std::int64_t> whole;
    for (std::int64_t g = 0; g < groups; ++g) {
      for (std::int64_t s = 0; s < 3; ++s) {
        const std::int64_t width = sizes[static_cast<std::size_t>(s)] / groups;
        for (std::int64_t i = 0; i < width; ++i) whole.push_back(s * 1000 + g * width + i);
      }
    }
    whole.resize(25, -1);  // Padding.
    for (std::int64_t begin = 0; begin <= 25; ++begin) {
      for (std::int64_t size = 0; begin + size <= 25; ++size) {
        EXPECT_EQ(expanded(interleaved_runs(sizes, groups, {begin, size}, "r"), size), part(whole, begin, size))
            << groups << " groups, " << begin << " + " << size;
      }
    }
  }
}

TEST(DimRuns, OneElementAGroupIsOneRun) {
  const std::vector<DimRun> runs = interleaved_runs(std::vector<std::int64_t>{4, 4}, 4, {0, 8}, "r");
  EXPECT_EQ(runs, (std::vector<DimRun>{{0, 0, 0, 2, 4}, {1, 0, 1, 2, 4}}));
}

TEST(DimRuns, EveryRangeOfRotaryRowsIsThatPartOfTheWhole) {
  constexpr std::int64_t kHeads = 3, kHalf = 4, kRows = kHeads * 2 * kHalf;
  std::vector<std::int64_t> pairs, halves(kRows);
  for (std::int64_t h = 0; h < kHeads; ++h) {
    for (std::int64_t k = 0; k < kHalf; ++k) {
      for (std::int64_t j = 0; j < 2; ++j) pairs.push_back(h * 2 * kHalf + j * kHalf + k);
    }
  }
  for (std::int64_t i = 0; i < kRows; ++i) halves[static_cast<std::size_t>(pairs[static_cast<std::size_t>(i)])] = i;
  for (std::int64_t begin = 0; begin < kRows; ++begin) {
    for (std::int64_t size = 1; begin + size <= kRows; ++size) {
      const std::vector<DimRun> run{{0, begin, 0, 1, size}};
      EXPECT_EQ(expanded(without_rotary(run, MapPermute::Rotary::kHalfToPairs, kRows, kHeads, "r"), size),
                part(pairs, begin, size));
      EXPECT_EQ(expanded(without_rotary(run, MapPermute::Rotary::kPairsToHalf, kRows, kHeads, "r"), size),
                part(halves, begin, size));
    }
  }
}

TEST(DimRuns, RunsAreDividedAtTheEndsOfRows) {
  const std::vector<DimRun> runs{{0, 10, 1, 2, 5}, {1, 0, 12, 1, 2}};  // Local positions 1, 3, 5, 7, 9, and 12, 13.
  EXPECT_EQ(within_rows(runs, 4, "r"),
            (std::vector<DimRun>{{0, 10, 1, 2, 2}, {0, 12, 5, 2, 2}, {0, 14, 9, 2, 1}, {1, 0, 12, 1, 2}}));
  EXPECT_EQ(within_rows(std::vector<DimRun>{{0, 0, 3, 1, 3}}, 4, "r"),
            (std::vector<DimRun>{{0, 0, 3, 1, 1}, {0, 1, 4, 1, 2}}));
  EXPECT_EQ(within_rows(runs, 1, "r").size(), 7u);
  EXPECT_EQ(within_rows(runs, 14, "r"), runs);
  test::expect_error(ErrorCode::kUnsupported, "more than 1048576 runs", [] {
    within_rows(std::vector<DimRun>{{0, 0, 0, 1, std::int64_t{1} << 50}}, 2, "r");
  });
}

TEST(DimRuns, ASmallPartOfAVastDimensionCostsLittle) {
  constexpr std::int64_t kVast = std::int64_t{1} << 50;
  for (const std::int64_t begin : {std::int64_t{5}, kVast / 2 - 3, kVast / 2, kVast - 9}) {
    const std::vector<DimRun> run{{0, begin, 0, 1, 8}};
    for (const auto rotary : {MapPermute::Rotary::kHalfToPairs, MapPermute::Rotary::kPairsToHalf}) {
      EXPECT_LE(without_rotary(run, rotary, kVast, 1, "r").size(), 8u);
      EXPECT_LE(without_rotary(run, rotary, kVast, kVast / 4, "r").size(), 8u);
    }
  }
}

TEST(DimRuns, CutsAsEachRuleSays) {
  const auto cut = [](std::int64_t n, CutRule split, std::int64_t parts, std::vector<std::int64_t> widths = {}) {
    std::vector<std::int64_t> sizes;
    std::int64_t next = 0;
    for (std::int64_t i = 0; i < parts; ++i) {
      const DimRange range = cut_range(n, {split, parts, i, ends_of(widths, "r")}, "r");
      EXPECT_EQ(range.begin, next);
      next += range.size;
      sizes.push_back(range.size);
    }
    EXPECT_EQ(next, n);
    return sizes;
  };
  using Sizes = std::vector<std::int64_t>;
  EXPECT_EQ(cut(12, CutRule::kEven, 4), (Sizes{3, 3, 3, 3}));
  EXPECT_EQ(cut(10, CutRule::kChunk, 4), (Sizes{3, 3, 3, 1}));
  EXPECT_EQ(cut(5, CutRule::kChunk, 4), (Sizes{2, 2, 1, 0}));
  EXPECT_EQ(cut(10, CutRule::kFirstExtra, 4), (Sizes{3, 3, 2, 2}));
  EXPECT_EQ(cut(6, CutRule::kWidths, 3, {1, 0, 5}), (Sizes{1, 0, 5}));
  EXPECT_EQ(test::error_of([&] { cut(10, CutRule::kEven, 4); }).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(test::error_of([&] { cut(6, CutRule::kWidths, 3, {1, 1, 5}); }).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(test::error_of([&] {
              cut(INT64_MAX, CutRule::kWidths, 2, {INT64_MAX, 1});
            }).code(),
            ErrorCode::kInvalidArgument);
}

TEST(DimRuns, RefusesHeadsThatDoNotFit) {
  const std::vector<DimRun> run{{0, 0, 0, 1, 6}};
  for (const std::int64_t heads : {0, 4, 6}) {
    EXPECT_EQ(test::error_of([&] { without_rotary(run, MapPermute::Rotary::kHalfToPairs, 6, heads, "r"); }).code(),
              ErrorCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace shard
