#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <random>
#include <vector>

#include "libshard/exec/cast.h"
#include "tests/device/cast_samples.h"
#include "tests/exec/strided_cases.h"
#include "tests/support/host_grid.h"

namespace shard::kernels {
namespace {

using ::testing::ElementsAre;
using testing::HostGrid;
using Numbers = std::vector<std::int64_t>;

/// The largest unit is aligned at such an address.
const std::byte* const kAligned = reinterpret_cast<const std::byte*>(std::uintptr_t{4096});

CopyShape shape_of(const Numbers& sizes, const Numbers& from, const Numbers& to, std::size_t element_bytes) {
  return copy_shape(sizes, kAligned, from, kAligned, to, element_bytes);
}

std::vector<CopyDim> dims_of(const CopyShape& shape) { return {shape.dims.begin(), shape.dims.begin() + shape.count}; }

TEST(CopyShape, ARunOnBothSidesIsOneDimensionOfTheLongestUnits) {
  const CopyShape shape = shape_of({4, 8, 16}, {128, 16, 1}, {128, 16, 1}, 2);
  EXPECT_EQ(shape.unit_bytes, 16);
  EXPECT_THAT(dims_of(shape), ElementsAre(CopyDim{64, 1, 1}));
  EXPECT_EQ(shape.units, 64);
}

TEST(CopyShape, RowsWithGapsStayTwoDimensions) {
  const CopyShape shape = shape_of({5, 8}, {12, 1}, {8, 1}, 4);
  EXPECT_EQ(shape.unit_bytes, 16);
  EXPECT_THAT(dims_of(shape), ElementsAre(CopyDim{5, 3, 2}, CopyDim{2, 1, 1}));
}

TEST(CopyShape, AnOddGapOrAddressShortensUnits) {
  EXPECT_EQ(shape_of({5, 8}, {13, 1}, {8, 1}, 2).unit_bytes, 2);
  const CopyShape shape = copy_shape(Numbers{64}, kAligned + 4, Numbers{1}, kAligned, Numbers{1}, 1);
  EXPECT_EQ(shape.unit_bytes, 4);
  EXPECT_EQ(shape.units, 16);
}

TEST(CopyShape, ElementsOfOddSizesAreSeveralUnits) {
  const CopyShape shape = shape_of({10, 20}, {1, 10}, {20, 1}, 12);
  EXPECT_EQ(shape.unit_bytes, 4);
  EXPECT_EQ(shape.units, 600);
}

TEST(CopyShape, ATransposeIsTiledWithTheSourcesFastestDimensionFirst) {
  const CopyShape shape = shape_of({3, 64, 100}, {6400, 1, 64}, {6400, 100, 1}, 4);
  EXPECT_TRUE(shape.is_tiled);
  EXPECT_THAT(dims_of(shape), ElementsAre(CopyDim{3, 6400, 6400}, CopyDim{64, 1, 100}, CopyDim{100, 64, 1}));
  EXPECT_EQ(TiledCopy<std::uint32_t>::blocks(shape), 3 * 2 * 4);
}

TEST(CopyShape, TheSourcesFastestDimensionMovesToThePlaneWhereverItIs) {
  const CopyShape shape = shape_of({64, 3, 100}, {1, 6500, 64}, {300, 100, 1}, 4);
  EXPECT_TRUE(shape.is_tiled);
  EXPECT_THAT(dims_of(shape), ElementsAre(CopyDim{3, 6500, 100}, CopyDim{64, 1, 300}, CopyDim{100, 64, 1}));
}

TEST(CopyShape, ANarrowPlaneIsNotTiled) { EXPECT_FALSE(shape_of({4, 1000}, {1, 4}, {1000, 1}, 4).is_tiled); }

TEST(CopyShape, NothingIsCopiedWhereASizeIsZero) { EXPECT_EQ(shape_of({3, 0}, {1, 1}, {1, 1}, 4).units, 0); }

void copy_by_kernels(std::span<const std::int64_t> sizes, const std::byte* from,
                     std::span<const std::int64_t> from_strides, std::byte* to,
                     std::span<const std::int64_t> to_strides, std::size_t element_bytes) {
  launch_copy(copy_shape(sizes, from, from_strides, to, to_strides, element_bytes), from, to, HostGrid());
}

TEST(CopyKernels, TransposeWholeTilesAndEdgesOfEveryElementSize) { testing::expect_transposes(copy_by_kernels); }

TEST(CopyKernels, EqualCopyingElementByElement) { testing::expect_random_copies(copy_by_kernels, 1000); }

TEST(CopyKernels, TransposeLikeThePlainLoopWithGapsOnBothSides) {
  for (const std::size_t unit : {1U, 2U, 4U, 8U, 16U}) {
    for (const std::int64_t rows : {0, 1, 3, 17, 64, 130, 257}) {
      for (const std::int64_t columns : {0, 1, 8, 31, 33, 127}) {
        if (rows == 0 || columns == 0) continue;
        testing::expect_like_element_copy(testing::make_case({rows, columns}, {columns + 3, 1}, {1, rows + 5}, unit),
                                          copy_by_kernels);
      }
    }
  }
}

TEST(CopyKernels, RepeatASourceStrideOfZero) {
  testing::expect_like_element_copy(testing::make_case({30, 40}, {0, 1}, {1, 30}, 1), copy_by_kernels);
  testing::expect_like_element_copy(testing::make_case({30, 40}, {1, 0}, {40, 1}, 2), copy_by_kernels);
}

TEST(CopyKernels, CountMoreUnitsThan32BitsHoldTheSameWay) {
  const CopyShape shape = shape_of({40, 50}, {1, 41}, {51, 1}, 2);
  const std::vector<std::byte> from = testing::noise(50 * 41 * 2, 1);
  std::vector<std::byte> narrow(40 * 51 * 2), wide(narrow);
  HostGrid().flat(FlatCopy<std::uint16_t, std::uint32_t>{shape, from.data(), narrow.data()}, blocks_for(shape.units));
  HostGrid().flat(FlatCopy<std::uint16_t, std::uint64_t>{shape, from.data(), wide.data()}, blocks_for(shape.units));
  EXPECT_EQ(narrow, wide);
}

TEST(CastKernel, GivesTheBitsAndTheCountOfTheCpuForEveryPair) {
  for (const testing::CastSample& sample : testing::cast_samples()) {
    std::vector<std::byte> expected(sample.out_bytes()), found(sample.out_bytes());
    const std::int64_t count = cast(sample.from, sample.in, sample.to, expected);
    std::int64_t overflows = 0;
    launch_cast(cast_shape(sample.from, sample.to, sample.elements()), sample.in.data(), found.data(), &overflows,
                HostGrid());
    EXPECT_TRUE(found == expected) << sample.name();
    EXPECT_EQ(overflows, count) << sample.name();
  }
}

/// Functions that devices use instead of the processor's.
TEST(Convert, FloatAndDoubleConvertAsTheProcessorConvertsThemNanIncluded) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 200'000; ++i) {
    const std::uint64_t exponent = i % 4 == 0 ? std::uint64_t{0x7FF} << 52 : 0;
    volatile double value = std::bit_cast<double>(random() | exponent);
    const float narrow = static_cast<float>(value);
    ASSERT_EQ(std::bit_cast<std::uint32_t>(convert::to_float_by_bits(value)), std::bit_cast<std::uint32_t>(narrow));
    const auto bits = static_cast<std::uint32_t>(random()) | (i % 4 == 0 ? 0x7F800000U : 0U);
    volatile float single = std::bit_cast<float>(bits);
    const double wide = static_cast<double>(single);
    ASSERT_EQ(std::bit_cast<std::uint64_t>(convert::to_double_by_bits(single)), std::bit_cast<std::uint64_t>(wide));
  }
}

}  // namespace
}  // namespace shard::kernels
