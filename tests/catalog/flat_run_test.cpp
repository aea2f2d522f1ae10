// Runs of elements as boxes, against a walk over every element.
#include "libshard/catalog/layouts/flat_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "libshard/core/box.h"
#include "libshard/core/checked.h"

namespace shard {
namespace {

using ::testing::ElementsAre;

/// Row-major numbers of the elements, in the order of the boxes.
std::vector<std::int64_t> elements_of(const std::vector<std::int64_t>& shape, std::int64_t begin, std::int64_t count,
                                      int& boxes) {
  std::vector<std::int64_t> strides(shape.size()), elements;
  row_major_strides(std::span(shape), std::span(strides));
  for_each_box_of_run(shape, begin, count, [&](auto offsets, auto sizes, std::int64_t before) {
    ++boxes;
    EXPECT_EQ(before, std::ssize(elements));
    for (std::int64_t i = 0; i < checked_numel(sizes); ++i) {
      std::int64_t left = i, element = 0;
      for (std::size_t d = shape.size(); d-- > 0;) {
        element += (offsets[d] + left % sizes[d]) * strides[d];
        left /= sizes[d];
      }
      elements.push_back(element);
    }
  });
  return elements;
}

TEST(FlatRun, EveryRunOfManyShapesIsCoveredInOrder) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 400; ++round) {
    std::vector<std::int64_t> shape(random() % 5);
    for (std::int64_t& size : shape) size = static_cast<std::int64_t>(1 + random() % 4);
    const std::int64_t numel = checked_numel(shape);
    const auto begin = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(numel + 1));
    const auto count = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(numel - begin + 1));
    int boxes = 0;
    std::vector<std::int64_t> expected;
    for (std::int64_t i = begin; i < begin + count; ++i) expected.push_back(i);
    EXPECT_EQ(elements_of(shape, begin, count, boxes), expected);
    EXPECT_LE(boxes, std::max(1, 2 * static_cast<int>(shape.size()) - 1));
  }
}

TEST(FlatRun, WholeRowsAreOneBox) {
  std::vector<std::vector<std::int64_t>> sizes;
  for_each_box_of_run(std::vector<std::int64_t>{4, 3}, 3, 6,
                      [&](auto, auto size, std::int64_t) { sizes.emplace_back(size.begin(), size.end()); });
  EXPECT_THAT(sizes, ElementsAre(ElementsAre(2, 3)));
}

}  // namespace
}  // namespace shard
