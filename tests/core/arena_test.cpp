#include "libshard/core/arena.h"

#include <gtest/gtest.h>

#include <string>

namespace shard {
namespace {

TEST(Dims, DefaultHasNoDimensions) {
  const Dims none;
  EXPECT_EQ(none.size(), 0);
  EXPECT_TRUE(none.empty());
  EXPECT_EQ(none.begin(), none.end());
}

TEST(Dims, EqualWhenNumbersAreEqual) {
  Arena one;
  Arena other;
  const std::int64_t shape[] = {2, 3};
  const std::int64_t longer[] = {2, 3, 1};
  EXPECT_EQ(one.dims(shape), other.dims(shape));
  EXPECT_FALSE(one.dims(shape) == one.dims(longer));
}

TEST(Arena, DimsKeepsNumbersInOrder) {
  Arena arena;
  const std::int64_t shape[] = {7, 0, 9};
  const Dims dims = arena.dims(shape);
  ASSERT_EQ(dims.size(), 3);
  EXPECT_EQ(dims[0], 7);
  EXPECT_EQ(dims[1], 0);
  EXPECT_EQ(dims[2], 9);
}

TEST(Arena, EqualNeighboursShareMemory) {
  Arena arena;
  const std::int64_t shape[] = {4096, 128};
  EXPECT_EQ(arena.dims(shape).begin(), arena.dims(shape).begin());
}

TEST(Arena, ManyShapesStayApart) {
  Arena arena;
  std::vector<Dims> made;
  for (std::int64_t n = 0; n < 1000; ++n) {
    const std::int64_t shape[] = {n, n + 1};
    made.push_back(arena.dims(shape));
  }
  for (std::int64_t n = 0; n < 1000; ++n) {
    EXPECT_EQ(made[static_cast<std::size_t>(n)][0], n);
    EXPECT_EQ(made[static_cast<std::size_t>(n)][1], n + 1);
  }
}

TEST(Arena, ZerosAreZeroForAnyCount) {
  Arena arena;
  for (const int n : {0, 1, 3, 15, 16, 64}) {
    const Dims zeros = arena.zeros(n);
    ASSERT_EQ(zeros.size(), n);
    for (const std::int64_t value : zeros) EXPECT_EQ(value, 0);
  }
}

TEST(Arena, CopyOutlivesTheOriginal) {
  Arena arena;
  std::string_view kept;
  {
    const std::string text = "model.layers.0.mlp.up_proj.weight";
    kept = arena.copy(text);
    EXPECT_NE(kept.data(), text.data());
  }
  EXPECT_EQ(kept, "model.layers.0.mlp.up_proj.weight");
}

TEST(Arena, ArrayIsValueInitialised) {
  Arena arena;
  for (const int value : arena.array<int>(1000)) EXPECT_EQ(value, 0);
}

TEST(Arena, AdoptedOwnerLivesAsLongAsTheArena) {
  std::weak_ptr<const std::string> watched;
  {
    Arena arena;
    auto owner = std::make_shared<const std::string>("text");
    watched = owner;
    arena.adopt(std::move(owner));
    EXPECT_FALSE(watched.expired());
  }
  EXPECT_TRUE(watched.expired());
}

}  // namespace
}  // namespace shard
