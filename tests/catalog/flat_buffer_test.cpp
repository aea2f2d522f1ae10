// Flat buffers of DeepSpeed and Megatron: vectors that were computed by hand, and a walk over every element. All kinds
// are compared with the obvious way in tests/map/flatten_test.cpp.
#include "libshard/catalog/layouts/flat_buffer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "libshard/core/error.h"
#include "tests/support/expect_error.h"

namespace shard {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Optional;
using Numbers = std::vector<std::int64_t>;

Numbers used_lengths(const FlatLayout& layout, std::int64_t parts) {
  Numbers lengths;
  for (std::int64_t part = 0; part < parts; ++part) lengths.push_back(layout.used_by(part));
  return lengths;
}

TEST(Zero12, ThreeParametersOnTwoRanks) {
  const FlatLayout layout = lay_flat(Numbers{6, 5, 4}, {}, FlatRule::zero12(2));
  EXPECT_EQ(layout.part_size(), 8);
  EXPECT_EQ(layout.tail, 1);
  EXPECT_THAT(used_lengths(layout, 2), ElementsAre(8, 7));
  EXPECT_THAT(layout.tensors[0], ElementsAre(FlatPiece{0, 0, 0, 0, 6}));
  EXPECT_THAT(layout.tensors[1], ElementsAre(FlatPiece{0, 0, 6, 0, 2}, FlatPiece{1, 0, 0, 2, 3}));
  EXPECT_THAT(layout.tensors[2], ElementsAre(FlatPiece{1, 0, 3, 0, 4}));
}

TEST(Zero12, ThreeParametersOnFourRanks) {
  const FlatLayout layout = lay_flat(Numbers{6, 5, 4}, {}, FlatRule::zero12(4));
  EXPECT_EQ(layout.part_size(), 4);
  EXPECT_THAT(used_lengths(layout, 4), ElementsAre(4, 4, 4, 3));
  EXPECT_THAT(layout.tensors[0], ElementsAre(FlatPiece{0, 0, 0, 0, 4}, FlatPiece{1, 0, 0, 4, 2}));
  EXPECT_THAT(layout.tensors[2], ElementsAre(FlatPiece{2, 0, 3, 0, 1}, FlatPiece{3, 0, 0, 1, 3}));
}

TEST(Zero12, TheLastRanksMayHoldNothing) {
  EXPECT_THAT(used_lengths(lay_flat(Numbers{3}, {}, FlatRule::zero12(4)), 4), ElementsAre(2, 1, 0, 0));
}

TEST(Zero12, NoParametersNeedNoElements) {
  EXPECT_EQ(lay_flat({}, {}, FlatRule::zero12(4)).part_size(), 0);
  EXPECT_THAT(used_lengths(lay_flat(Numbers{0}, {}, FlatRule::zero12(2)), 2), ElementsAre(0, 0));
}

TEST(Zero12, PiecesCoverEveryElementOnce) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 200; ++round) {
    Numbers numels(1 + random() % 5);
    for (std::int64_t& numel : numels) numel = static_cast<std::int64_t>(random() % 40);
    const auto ranks = static_cast<std::int64_t>(1 + random() % 7);
    const FlatLayout layout = lay_flat(numels, {}, FlatRule::zero12(ranks));
    EXPECT_EQ(layout.part_size() % 2, 0);
    std::int64_t next = 0;  // Position in the group, whose slices are stored in the order of ranks.
    for (std::size_t i = 0; i < numels.size(); ++i) {
      std::int64_t begin = 0;
      for (const FlatPiece& piece : layout.tensors[i]) {
        EXPECT_EQ(piece.begin, begin);
        EXPECT_EQ(piece.part * layout.part_size() + piece.first, next);
        EXPECT_LE(piece.first + piece.count, layout.used_by(piece.part));
        begin += piece.count;
        next += piece.count;
      }
      EXPECT_EQ(begin, numels[i]);
    }
  }
}

TEST(Zero3, OneParameterOnEightRanks) {
  EXPECT_EQ(parted_size(33, 8), 5);
  const std::vector<FlatPiece> pieces = lay_parted(33, 8);
  ASSERT_EQ(pieces.size(), 7U);  // The last rank's part is padding.
  EXPECT_EQ(pieces[6], (FlatPiece{6, 0, 0, 30, 3}));
  EXPECT_EQ(parted_size(6, 8), 1);
  EXPECT_EQ(lay_parted(6, 8, 5).back(), (FlatPiece{5, 0, 5, 5, 1}));
  EXPECT_THAT(lay_parted(1, 8, 6), ElementsAre(FlatPiece{0, 0, 6, 0, 1}));
  EXPECT_THAT(lay_parted(0, 8, 7), IsEmpty());
}

TEST(Zero3, OneParameterOnTwoRanks) {
  EXPECT_THAT(lay_parted(5, 2, 3), ElementsAre(FlatPiece{0, 0, 3, 0, 3}, FlatPiece{1, 0, 3, 3, 2}));
}

TEST(McoreSaved, ParametersAreInReverseOrderFromMultiplesOf64) {
  EXPECT_THAT(begins_in_saved_buffer(Numbers{10, 70, 64}, 64 + 70 + 58 + 10), Optional(ElementsAre(192, 64, 0)));
}

TEST(McoreSaved, AnotherLengthMeansThatPlacesAreNotKnown) {
  EXPECT_EQ(begins_in_saved_buffer(Numbers{10, 70, 64}, 144), std::nullopt);  // Two buckets.
  EXPECT_EQ(begins_in_saved_buffer({}, 1), std::nullopt);
}

TEST(LayFlat, SizesPast63BitsAreRefused) {
  const Numbers vast{INT64_MAX};
  EXPECT_EQ(test::error_of([&] { lay_flat(vast, {}, FlatRule::zero12(4)); }).code(), ErrorCode::kCorruption);
  EXPECT_EQ(test::error_of([&] { lay_flat(vast, {}, FlatRule::mcore(3, {})); }).code(), ErrorCode::kCorruption);
}

TEST(LayFlat, MorePiecesThanTheLimitAreRefused) {
  FlatRule rule = FlatRule::fsdp1(4, 1);
  rule.max_pieces = 3;
  EXPECT_EQ(test::error_of([&] { lay_flat(Numbers{8}, {}, rule); }).code(), ErrorCode::kUnsupported);
  rule.max_pieces = 4;
  EXPECT_EQ(lay_flat(Numbers{8}, {}, rule).tensors[0].size(), 4U);
}

}  // namespace
}  // namespace shard
