#include "libshard/exec/strided_copy.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace shard {
namespace {

using Numbers = std::vector<std::int64_t>;

/// A copy to make: both sides start at `origin` bytes of their buffers, so that strides may be negative.
struct Case {
  Numbers sizes, from_strides, to_strides;
  std::size_t element_bytes = 1;
  std::int64_t from_origin = 0, to_origin = 0;
  std::size_t from_bytes = 0, to_bytes = 0;
};

/// Bytes that strides reach, and where element 0 lies in them.
std::pair<std::int64_t, std::size_t> reach(const Numbers& sizes, const Numbers& strides, std::size_t element_bytes) {
  std::int64_t low = 0;
  std::int64_t high = 0;
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    const std::int64_t last = std::max<std::int64_t>(sizes[d] - 1, 0) * strides[d];
    (last < 0 ? low : high) += last;
  }
  const auto bytes = static_cast<std::int64_t>(element_bytes);
  return {-low * bytes, static_cast<std::size_t>((high - low + 1) * bytes)};
}

Case make_case(Numbers sizes, Numbers from_strides, Numbers to_strides, std::size_t element_bytes) {
  Case made{std::move(sizes), std::move(from_strides), std::move(to_strides), element_bytes};
  std::tie(made.from_origin, made.from_bytes) = reach(made.sizes, made.from_strides, element_bytes);
  std::tie(made.to_origin, made.to_bytes) = reach(made.sizes, made.to_strides, element_bytes);
  return made;
}

std::vector<std::byte> noise(std::size_t bytes, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> made(bytes);
  for (std::byte& byte : made) byte = static_cast<std::byte>(random());
  return made;
}

/// The obvious way: one element at a time.
void copy_elements(const Case& c, const std::byte* from, std::byte* to, std::size_t dim = 0) {
  if (dim == c.sizes.size()) {
    std::memcpy(to, from, c.element_bytes);
    return;
  }
  const auto bytes = static_cast<std::int64_t>(c.element_bytes);
  for (std::int64_t i = 0; i < c.sizes[dim]; ++i) {
    copy_elements(c, from + i * c.from_strides[dim] * bytes, to + i * c.to_strides[dim] * bytes, dim + 1);
  }
}

/// Compares whole buffers, so that a byte written outside the box shows too.
void expect_like_element_copy(const Case& c) {
  const std::vector<std::byte> from = noise(c.from_bytes, 1);
  std::vector<std::byte> expected = noise(c.to_bytes, 2);
  std::vector<std::byte> found = expected;
  copy_elements(c, from.data() + c.from_origin, expected.data() + c.to_origin);
  strided_copy(c.sizes, from.data() + c.from_origin, c.from_strides, found.data() + c.to_origin, c.to_strides,
               c.element_bytes);
  EXPECT_EQ(found, expected) << fmt::format("sizes [{}] from [{}] to [{}] element {}", fmt::join(c.sizes, ", "),
                                            fmt::join(c.from_strides, ", "), fmt::join(c.to_strides, ", "),
                                            c.element_bytes);
}

std::string copied(const Numbers& sizes, std::string_view from, const Numbers& from_strides,
                   const Numbers& to_strides) {
  std::string to(from.size(), '.');
  strided_copy(sizes, reinterpret_cast<const std::byte*>(from.data()), from_strides,
               reinterpret_cast<std::byte*>(to.data()), to_strides, 1);
  return to;
}

TEST(StridedCopy, TransposesASmallMatrix) { EXPECT_EQ(copied({2, 3}, "abcdef", {3, 1}, {1, 2}), "adbecf"); }

TEST(StridedCopy, CopiesOneElementWithoutDimensions) { EXPECT_EQ(copied({}, "ab", {}, {}), "a."); }

TEST(StridedCopy, CopiesNothingWhereASizeIsZero) { EXPECT_EQ(copied({2, 0}, "abcd", {2, 1}, {2, 1}), "...."); }

TEST(StridedCopy, IgnoresStridesOfSizeOne) { EXPECT_EQ(copied({1, 3}, "abc", {77, 1}, {-9, 1}), "abc"); }

TEST(StridedCopy, CutsAColumnBox) { EXPECT_EQ(copied({2, 2}, "abcdefgh", {4, 1}, {2, 1}), "abef...."); }

TEST(StridedCopy, RepeatsASourceStrideOfZero) { EXPECT_EQ(copied({3, 2}, "ab....", {0, 1}, {2, 1}), "ababab"); }

TEST(StridedCopy, TakesEverySecondElement) { EXPECT_EQ(copied({3}, "abcdef", {2}, {1}), "ace..."); }

TEST(StridedCopy, TransposesWholeTilesAndEdgesOfEveryElementSize) {
  for (const std::size_t bytes : {1U, 2U, 3U, 4U, 8U, 12U, 16U, 32U}) {
    for (const auto& [rows, columns] :
         {std::pair<std::int64_t, std::int64_t>{64, 64}, {65, 127}, {300, 70}, {1, 200}, {200, 3}}) {
      expect_like_element_copy(make_case({rows, columns}, {1, rows}, {columns, 1}, bytes));
      expect_like_element_copy(make_case({rows, columns}, {1, rows + 5}, {columns + 3, 1}, bytes));
    }
  }
}

/// Strides of a dense array of `sizes` in a random order of dimensions, some with gaps and some walked backwards.
Numbers random_strides(const Numbers& sizes, bool padded, std::mt19937& random) {
  std::vector<std::size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), 0U);
  if (random() % 2 == 0) std::ranges::shuffle(order, random);
  Numbers strides(sizes.size());
  std::int64_t stride = padded && random() % 4 == 0 ? 2 : 1;
  for (std::size_t i = order.size(); i-- > 0;) {
    const std::size_t d = order[i];
    strides[d] = padded && random() % 8 == 0 ? -stride : stride;
    stride *= sizes[d];
    if (padded && random() % 3 == 0) stride += static_cast<std::int64_t>(random() % 5);
  }
  return strides;
}

TEST(StridedCopy, EqualsCopyingElementByElement) {
  const char* given = std::getenv("SHARD_TEST_SEED");
  const unsigned seed =
      given != nullptr ? static_cast<unsigned>(std::strtoul(given, nullptr, 10)) : std::random_device()();
  SCOPED_TRACE(fmt::format("SHARD_TEST_SEED={}", seed));
  RecordProperty("seed", std::to_string(seed));
  std::mt19937 random(seed);
  const std::size_t element_sizes[] = {1, 2, 4, 8, 16, 3, 24};
  for (int round = 0; round < 2000 && !::testing::Test::HasFailure(); ++round) {
    Numbers sizes;
    std::int64_t numel = 1;
    for (auto d = random() % 6; d > 0; --d) {
      sizes.push_back(1 + static_cast<std::int64_t>(random() % (random() % 4 == 0 ? 90 : 6)));
      numel *= sizes.back();
      if (numel > 20000) break;
    }
    const bool padded = random() % 2 == 0;
    const Numbers from = random_strides(sizes, padded, random);
    expect_like_element_copy(
        make_case(sizes, from, random_strides(sizes, padded, random), element_sizes[random() % 7]));
  }
}

}  // namespace
}  // namespace shard
