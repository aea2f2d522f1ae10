// Parts of an upload of which as many as possible are within runs of one source.
#include "libshard/stores/part_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "libshard/stores/object_output.h"

namespace shard {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr std::int64_t kMebi = 1 << 20, kLeastOfPart = 5 * kMebi;

std::int64_t copied_bytes(const PartLayout& layout) {
  std::int64_t bytes = 0;
  for (const PartLayout::Copy& each : layout.copies) {
    const auto part = static_cast<std::size_t>(each.part);
    bytes += layout.begins[part + 1] - layout.begins[part];
  }
  return bytes;
}

void expect_sound(const PartLayout& layout, std::int64_t object_bytes, std::int64_t part_bytes,
                  std::span<const SourceRun> runs) {
  const std::vector<std::int64_t>& begins = layout.begins;
  ASSERT_EQ(begins.front(), 0);
  ASSERT_EQ(begins.back(), object_bytes);
  ASSERT_LE(begins.size(), 10'001U);
  for (std::size_t i = 0; i + 1 < begins.size(); ++i) {
    const std::int64_t bytes = begins[i + 1] - begins[i];
    ASSERT_GT(bytes, 0);
    ASSERT_LE(bytes, std::max(part_bytes, 10 * kMebi));
    const bool is_last = i + 2 == begins.size();
    ASSERT_TRUE(is_last || bytes >= kLeastOfPart) << i;
  }
  std::int64_t last = -1;
  for (const PartLayout::Copy& copy : layout.copies) {
    ASSERT_GT(copy.part, last);
    last = copy.part;
    const auto part = static_cast<std::size_t>(copy.part);
    ASSERT_GE(begins[part], runs[copy.run].offset);
    ASSERT_LE(begins[part + 1], runs[copy.run].offset + runs[copy.run].bytes);
  }
}

TEST(PartLayouts, WithoutRunsAreEven) {
  EXPECT_THAT(even_layout(20 * kMebi, 8 * kMebi).begins, ElementsAre(0, 8 * kMebi, 16 * kMebi, 20 * kMebi));
  EXPECT_THAT(even_layout(0, 8 * kMebi).begins, ElementsAre(0));
}

TEST(PartLayouts, PassTheHeaderWithTheLeastBytesBehindIt) {
  const std::vector<SourceRun> runs{{"a", 0, 1000, 20 * kMebi}, {"b", 0, 1000 + 20 * kMebi, 7 * kMebi}};
  const PartLayout layout = layout_of_runs(27 * kMebi + 1000, 8 * kMebi, runs);
  expect_sound(layout, 27 * kMebi + 1000, 8 * kMebi, runs);
  EXPECT_EQ(copied_bytes(layout), 22 * kMebi + 1000);
}

TEST(PartLayouts, DoNotUseRunsThatAreTooShort) {
  const std::vector<SourceRun> runs{{"a", 0, 0, kLeastOfPart - 1}, {"b", 0, kLeastOfPart + 5, 2 * kLeastOfPart - 1}};
  const PartLayout layout = layout_of_runs(30 * kMebi, 8 * kMebi, runs);
  expect_sound(layout, 30 * kMebi, 8 * kMebi, runs);
  EXPECT_EQ(copied_bytes(layout), 2 * kLeastOfPart - 1) << "the bytes before it are a part";
}

TEST(PartLayouts, UseTheLongestRunsIfThereWouldBeTooManyParts) {
  std::vector<SourceRun> runs;
  std::int64_t end = 0;
  for (int i = 0; i < 11'000; ++i) {
    runs.push_back({"a", 0, end, i == 7 ? 100 * kMebi : kLeastOfPart});
    end += runs.back().bytes;
  }
  const PartLayout layout = layout_of_runs(end, part_bytes_of(end), runs);
  expect_sound(layout, end, part_bytes_of(end), runs);
  EXPECT_GE(copied_bytes(layout), 95 * kMebi);
}

TEST(PartLayouts, AreSoundForAnyRuns) {
  std::mt19937_64 random(1);
  const auto below = [&](std::int64_t most) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most));
  };
  for (int round = 0; round < 3000; ++round) {
    std::vector<SourceRun> runs;
    std::int64_t end = 0, possible = 0;
    for (std::int64_t left = below(12); left > 0; --left) {
      end += below(3) == 0 ? 0 : below(below(2) == 0 ? 100 : 13 * kMebi);
      runs.push_back({"a", 0, end, 1 + below(40 * kMebi)});
      end += runs.back().bytes;
      possible += std::max<std::int64_t>(0, runs.back().bytes - 2 * kLeastOfPart);
    }
    end += below(2) == 0 ? 0 : below(20 * kMebi);
    const std::int64_t part_bytes = 8 * kMebi + 4 * kMebi * below(4);
    const PartLayout layout = layout_of_runs(end, part_bytes, runs);
    if (end == 0) {
      EXPECT_THAT(layout.copies, IsEmpty());
      continue;
    }
    expect_sound(layout, end, part_bytes, runs);
    EXPECT_GE(copied_bytes(layout), possible) << round;
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace shard
