#include "libshard/catalog/coverage.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "tests/catalog/build.h"
#include "tests/support/expect_error.h"

namespace shard {
namespace {

using test::BoxOfRank;
using test::Numbers;

/// The kind that check_coverage finds (none for a good cover) and the message.
struct Finding {
  std::optional<FindingKind> kind;
  std::string message;
};

Finding check(const Numbers& shape, std::vector<BoxOfRank> boxes) {
  std::ranges::stable_sort(boxes, {}, &BoxOfRank::offsets);
  Catalog catalog;
  test::add_chunked(catalog, "w", shape, boxes);
  try {
    check_coverage("w", catalog.tensors[0].shape, catalog.chunks);
  } catch (const Error& error) {
    return {error.kind(), error.what()};
  }
  return {};
}

TEST(Coverage, AcceptsRowsThatFollowOneAnother) {
  EXPECT_EQ(check({5, 3}, {{{0, 0}, {2, 3}}, {{2, 0}, {3, 3}}}).kind, std::nullopt);
}

TEST(Coverage, AcceptsATwoDimensionalGrid) {
  EXPECT_EQ(check({4, 4}, {{{0, 0}, {2, 3}}, {{0, 3}, {2, 1}}, {{2, 0}, {2, 3}}, {{2, 3}, {2, 1}}}).kind, std::nullopt);
}

TEST(Coverage, AcceptsAPinwheel) {  // No straight cut divides it.
  const std::vector<BoxOfRank> boxes = {
      {{0, 0}, {1, 2}}, {{0, 2}, {2, 1}}, {{2, 1}, {1, 2}}, {{1, 0}, {2, 1}}, {{1, 1}, {1, 1}}};
  EXPECT_EQ(check({3, 3}, boxes).kind, std::nullopt);
}

TEST(Coverage, CountsEqualBoxesOnce) {
  EXPECT_EQ(check({4, 2}, {{{0, 0}, {4, 1}, 0}, {{0, 0}, {4, 1}, 1}, {{0, 1}, {4, 1}, 2}, {{0, 1}, {4, 1}, 3}}).kind,
            std::nullopt);
}

TEST(Coverage, PassesEmptyBoxesByWhereverTheyLie) {
  EXPECT_EQ(check({4}, {{{0}, {0}}, {{0}, {4}}, {{2}, {0}}, {{9}, {0}}}).kind, std::nullopt);
}

TEST(Coverage, AcceptsAScalar) { EXPECT_EQ(check({}, {{{}, {}}}).kind, std::nullopt); }

TEST(Coverage, NamesTheFirstElementOfAGapBetweenRows) {
  const Finding found = check({6, 2}, {{{0, 0}, {2, 2}}, {{3, 0}, {3, 2}}});
  EXPECT_EQ(found.kind, FindingKind::kGap);
  EXPECT_EQ(found.message, "tensor 'w': no chunk covers element [2, 0] of [6, 2]");
}

TEST(Coverage, NamesTheFirstElementOfAGapAtTheEnd) {
  EXPECT_EQ(check({6}, {{{0}, {2}}, {{2}, {3}}}).message, "tensor 'w': no chunk covers element [5] of [6]");
}

TEST(Coverage, NamesTheFirstElementOfAGapInAGrid) {
  const Finding found = check({4, 4}, {{{0, 0}, {2, 2}}, {{2, 0}, {2, 2}}, {{2, 2}, {2, 2}}});
  EXPECT_EQ(found.message, "tensor 'w': no chunk covers element [0, 2] of [4, 4]");
}

TEST(Coverage, NamesAGapAtTheOrigin) {
  EXPECT_EQ(check({2, 2}, {{{0, 1}, {1, 1}}, {{1, 0}, {1, 2}}}).message,
            "tensor 'w': no chunk covers element [0, 0] of [2, 2]");
}

TEST(Coverage, NamesAGapAtTheOriginBeforeAnOverlap) {
  EXPECT_EQ(check({3, 3}, {{{0, 1}, {2, 2}}, {{1, 0}, {2, 2}}}).message,
            "tensor 'w': no chunk covers element [0, 0] of [3, 3]");
}

TEST(Coverage, NamesBothBoxesOfAnOverlapBetweenRows) {
  const Finding found = check({6, 2}, {{{0, 0}, {4, 2}}, {{3, 0}, {3, 2}}});
  EXPECT_EQ(found.kind, FindingKind::kOverlap);
  EXPECT_EQ(found.message, "tensor 'w': chunks [0:4, 0:2] and [3:6, 0:2] overlap at element [3, 0]");
}

TEST(Coverage, NamesBothBoxesOfAnOverlapInAGrid) {
  const Finding found = check({4, 4}, {{{0, 0}, {2, 3}}, {{0, 2}, {2, 2}}, {{2, 0}, {2, 4}}});
  EXPECT_EQ(found.message, "tensor 'w': chunks [0:2, 0:3] and [0:2, 2:4] overlap at element [0, 2]");
}

TEST(Coverage, FindsBoxesOfOneOriginAndOtherSizes) {
  EXPECT_EQ(check({4}, {{{0}, {4}}, {{0}, {2}}}).kind, FindingKind::kOverlap);
}

/// 2^dims boxes: every dimension cut in half.
std::vector<BoxOfRank> halves(std::size_t dims) {
  std::vector<BoxOfRank> boxes;
  for (std::uint32_t box = 0; box < 1U << dims; ++box) {
    boxes.push_back({Numbers(dims), Numbers(dims, 1)});
    for (std::size_t d = 0; d < dims; ++d) boxes.back().offsets[d] = box >> d & 1;
  }
  return boxes;
}

TEST(Coverage, AcceptsAGridThatIsCutAlongManyDimensions) {
  EXPECT_EQ(check(Numbers(12, 2), halves(12)).kind, std::nullopt);
}

TEST(Coverage, NamesAGapInAGridOfManyDimensions) {
  std::vector<BoxOfRank> boxes = halves(12);
  std::erase_if(boxes, [](const BoxOfRank& box) { return box.offsets == Numbers{0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}; });
  EXPECT_EQ(
      check(Numbers(12, 2), boxes).message,
      "tensor 'w': no chunk covers element [0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1] of [2, 2, 2, 2, 2, 2, 2, 2, 2, 2, "
      "2, 2]");
}

TEST(Coverage, AcceptsNestedCutsOfAnyDepth) {  // Each box covers a side of the rest; past 32 levels corners decide.
  for (const std::int64_t levels : {10, 100}) {
    std::vector<BoxOfRank> boxes;
    for (std::int64_t i = 0; i < levels; ++i) {
      boxes.push_back({{i, i}, {levels + 1 - i, 1}});
      boxes.push_back({{i, i + 1}, {1, levels - i}});
    }
    boxes.push_back({{levels, levels}, {1, 1}});
    EXPECT_EQ(check({levels + 1, levels + 1}, boxes).kind, std::nullopt);
    boxes.pop_back();
    const Finding found = check({levels + 1, levels + 1}, boxes);
    EXPECT_EQ(found.message,
              fmt::format("tensor 'w': no chunk covers element [{0}, {0}] of [{1}, {1}]", levels, levels + 1));
  }
}

TEST(Coverage, RefusesBoxesInEachOthersWayAlongMoreDimensionsThanItCanCheck) {
  const Numbers shape(7, 3), twos(7, 2), zeros(7, 0), ones(7, 1);
  Catalog catalog;
  test::add_chunked(catalog, "w", shape, {{zeros, twos}, {ones, twos}});
  test::expect_error(ErrorCode::kUnsupported, "no straight cut separates 2 of them, which differ along 7 dimensions",
                     [&] { check_coverage("w", catalog.tensors[0].shape, catalog.chunks); });
}

// --- Against marking every element ---

Finding mark(const Numbers& shape, const std::vector<BoxOfRank>& boxes) {
  std::set<std::pair<Numbers, Numbers>> distinct;
  for (const BoxOfRank& box : boxes) {
    if (std::ranges::find(box.sizes, 0) == box.sizes.end()) distinct.emplace(box.offsets, box.sizes);
  }
  for (std::int64_t number = 0; number < checked_numel(shape); ++number) {
    Numbers element(shape.size());
    for (std::size_t d = shape.size(), rest = static_cast<std::size_t>(number); d-- > 0;) {
      element[d] = static_cast<std::int64_t>(rest) % shape[d];
      rest /= static_cast<std::size_t>(shape[d]);
    }
    const auto holds = [&](const std::pair<Numbers, Numbers>& box) {
      for (std::size_t d = 0; d < shape.size(); ++d) {
        if (element[d] < box.first[d] || element[d] >= box.first[d] + box.second[d]) return false;
      }
      return true;
    };
    const auto holders = std::ranges::count_if(distinct, holds);
    if (holders != 1)
      return {holders == 0 ? FindingKind::kGap : FindingKind::kOverlap,
              to_string(std::span<const std::int64_t>(element))};
  }
  return {};
}

/// Cuts a box again and again; then, in half of all cases, spoils one.
std::vector<BoxOfRank> random_boxes(std::mt19937_64& random, const Numbers& shape) {
  std::vector<BoxOfRank> boxes = {{Numbers(shape.size()), shape}};
  for (std::uint64_t cuts = random() % 8; cuts > 0; --cuts) {
    BoxOfRank& box = boxes[random() % boxes.size()];
    const std::size_t d = random() % shape.size();
    const auto at = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(box.sizes[d] + 1));
    BoxOfRank rest = box;
    rest.offsets[d] += at;
    rest.sizes[d] -= at;
    box.sizes[d] = at;
    boxes.push_back(rest);
  }
  const std::size_t victim = random() % boxes.size(), d = random() % shape.size();
  switch (random() % 6) {
    case 0:
      boxes.erase(boxes.begin() + static_cast<std::ptrdiff_t>(victim));
      break;
    case 1:
      if (boxes[victim].offsets[d] > 0) --boxes[victim].offsets[d];
      break;
    case 2:
      if (boxes[victim].offsets[d] + boxes[victim].sizes[d] < shape[d]) ++boxes[victim].sizes[d];
      break;
    default:
      boxes.push_back(boxes[victim]);  // A replica.
  }
  std::ranges::shuffle(boxes, random);
  return boxes;
}

TEST(Coverage, AgreesWithMarkingEveryElement) {
  const std::uint64_t seed = std::random_device{}();
  std::map<std::optional<FindingKind>, int> kinds;
  for (std::uint64_t round = 0; round < 4000; ++round) {
    SCOPED_TRACE("seed " + std::to_string(seed) + " round " + std::to_string(round));
    std::mt19937_64 random(seed + round);
    Numbers shape(1 + random() % 4);
    for (std::int64_t& n : shape) n = static_cast<std::int64_t>(1 + random() % 5);
    const std::vector<BoxOfRank> boxes = random_boxes(random, shape);
    const Finding expected = mark(shape, boxes), found = check(shape, boxes);
    ASSERT_EQ(found.kind, expected.kind);
    ASSERT_NE(found.message.find(expected.message), std::string::npos) << found.message << " / " << expected.message;
    ++kinds[found.kind];
  }
  EXPECT_GT(kinds[std::nullopt], 100);
  EXPECT_GT(kinds[FindingKind::kGap], 100);
  EXPECT_GT(kinds[FindingKind::kOverlap], 100);
}

}  // namespace
}  // namespace shard
