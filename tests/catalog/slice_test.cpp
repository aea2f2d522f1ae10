#include "libshard/catalog/selection/slice.h"

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace shard {

namespace {

using Numbers = std::vector<std::int64_t>;

struct SliceOf : ::testing::Test {
  Slice slice(std::string_view text) { return parse_slice(text, arena.dims(Numbers{6, 5, 4}), "w"); }
  std::string box(std::string_view text) { return to_string(slice(text).box); }
  void refuses(std::string_view text, const std::string& words) {
    test::expect_error(ErrorCode::kInvalidArgument, words, [&] { slice(text); });
  }
  Arena arena;
};

TEST_F(SliceOf, RangesAreHalfOpen) { EXPECT_EQ(box("1:3"), "[1:3, 0:5, 0:4]"); }
TEST_F(SliceOf, AbsentBoundsAreTheEnds) { EXPECT_EQ(box(":2,3:,:"), "[0:2, 3:5, 0:4]"); }
TEST_F(SliceOf, NegativeBoundsCountFromTheEnd) { EXPECT_EQ(box("-2:,:-1"), "[4:6, 0:4, 0:4]"); }
TEST_F(SliceOf, BoundsAreClamped) { EXPECT_EQ(box("-100:2,4:100"), "[0:2, 4:5, 0:4]"); }
TEST_F(SliceOf, ARangeThatRunsBackwardsIsEmpty) { EXPECT_EQ(slice("4:2").shape, (Numbers{0, 5, 4})); }
TEST_F(SliceOf, AnIndexDropsItsDimension) {
  EXPECT_EQ(box("-1,2"), "[5:6, 2:3, 0:4]");
  EXPECT_EQ(slice("-1,2").shape, Numbers{4});
}
TEST_F(SliceOf, TheEllipsisStandsForWhatIsNotNamed) {
  EXPECT_EQ(box("...,1"), "[0:6, 0:5, 1:2]");
  EXPECT_EQ(box("0,...,1:2"), "[0:1, 0:5, 1:2]");
  EXPECT_EQ(slice("0,...,1:2").shape, (Numbers{5, 1}));
}
TEST_F(SliceOf, SpacesDoNotMatter) { EXPECT_EQ(box(" 1 : 3 , 2 "), "[1:3, 2:3, 0:4]"); }
TEST_F(SliceOf, RefusesSteps) { refuses("0:4:2", "has a step; steps are not supported"); }
TEST_F(SliceOf, RefusesAnIndexOutOfRange) { refuses("0,5", "index 5 is out of range for dimension 1 of size 5"); }
TEST_F(SliceOf, RefusesTooManyDimensions) { refuses("0,0,0,0", "it has 4 indices, but 'w' has only 3 dimensions"); }
TEST_F(SliceOf, RefusesTwoEllipses) { refuses("...,...", "may appear only once"); }
TEST_F(SliceOf, RefusesWords) { refuses("first", "'first' is not a number"); }
TEST_F(SliceOf, RefusesNothing) { refuses("", "an index is missing"); }
TEST_F(SliceOf, RefusesNumbersPast64Bits) { refuses("99999999999999999999", "is not a number"); }

TEST(SplitSlice, TakesTheLastBrackets) {
  const SlicedName both = split_slice("w[0][1:3]");
  EXPECT_EQ(both.name, "w[0]");
  EXPECT_EQ(both.slice, "1:3");
}
TEST(SplitSlice, ANameNeedsNone) { EXPECT_FALSE(split_slice("w.0").has_slice); }

/// A tensor of 4 x 4 in four boxes of 2 x 2, the last row twice as replicas.
Catalog four_boxes() {
  Catalog catalog;
  catalog.storages.resize(5);
  Tensor tensor;
  tensor.shape = catalog.arena->dims(Numbers{4, 4});
  const auto add = [&](Numbers offsets, std::uint32_t storage) {
    catalog.stored.emplace_back().storage = storage;
    catalog.chunks.push_back({catalog.arena->dims(offsets), catalog.arena->dims(Numbers{2, 2}),
                              catalog.arena->dims(Numbers{2, 1}), 0,
                              static_cast<std::uint32_t>(catalog.stored.size() - 1)});
  };
  add({0, 0}, 0);
  add({0, 2}, 1);
  add({2, 0}, 2);
  add({2, 0}, 3);
  add({2, 2}, 4);
  tensor.chunk_count = 5;
  catalog.tensors.push_back(tensor);
  return catalog;
}

TEST(Sliced, CutsChunksAndLeavesOutThoseOutside) {
  const Catalog catalog = four_boxes();
  const Catalog view = sliced(catalog, 0, Box(Numbers{1, 1}, Numbers{1, 3}));
  ASSERT_EQ(view.chunks.size(), 2U);
  EXPECT_EQ(to_string(view.tensors[0].shape), "[1, 3]");
  EXPECT_EQ(to_string(Box(view.chunks[0].offsets, view.chunks[0].sizes)), "[0:1, 0:1]");
  EXPECT_EQ(view.chunks[0].first, 3);
  EXPECT_EQ(to_string(Box(view.chunks[1].offsets, view.chunks[1].sizes)), "[0:1, 1:3]");
  EXPECT_EQ(view.chunks[1].first, 2);
}

TEST(Sliced, KeepsTheNumbersOfStoragesAndTheOrderOfReplicas) {
  const Catalog catalog = four_boxes();
  const Catalog view = sliced(catalog, 0, Box(Numbers{2, 0}, Numbers{2, 1}));
  ASSERT_EQ(view.chunks.size(), 2U);
  EXPECT_EQ(view.stored[view.chunks[0].stored].storage, 2U);
  EXPECT_EQ(view.stored[view.chunks[1].stored].storage, 3U);
}

}  // namespace
}  // namespace shard
