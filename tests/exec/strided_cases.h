/// \file
/// Strided copies to make, for every function that makes them: the CPU's, and bodies of kernels.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace shard::testing {

/// The signature of strided_copy.
using StridedCopy = std::function<void(std::span<const std::int64_t> sizes, const std::byte* from,
                                       std::span<const std::int64_t> from_strides, std::byte* to,
                                       std::span<const std::int64_t> to_strides, std::size_t element_bytes)>;

using StridedNumbers = std::vector<std::int64_t>;

/// A copy to make: both sides start at `origin` bytes of their buffers, so that strides may be negative.
struct StridedCase {
  StridedNumbers sizes, from_strides, to_strides;
  std::size_t element_bytes = 1;
  std::int64_t from_origin = 0, to_origin = 0;
  std::size_t from_bytes = 0, to_bytes = 0;
};

/// Bytes that strides reach, and the offset of element 0 in them.
inline std::pair<std::int64_t, std::size_t> reach(const StridedNumbers& sizes, const StridedNumbers& strides,
                                                  std::size_t element_bytes) {
  std::int64_t low = 0;
  std::int64_t high = 0;
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    const std::int64_t last = std::max<std::int64_t>(sizes[d] - 1, 0) * strides[d];
    (last < 0 ? low : high) += last;
  }
  const auto bytes = static_cast<std::int64_t>(element_bytes);
  return {-low * bytes, static_cast<std::size_t>((high - low + 1) * bytes)};
}

inline StridedCase make_case(StridedNumbers sizes, StridedNumbers from_strides, StridedNumbers to_strides,
                             std::size_t element_bytes) {
  StridedCase made{std::move(sizes), std::move(from_strides), std::move(to_strides), element_bytes};
  std::tie(made.from_origin, made.from_bytes) = reach(made.sizes, made.from_strides, element_bytes);
  std::tie(made.to_origin, made.to_bytes) = reach(made.sizes, made.to_strides, element_bytes);
  return made;
}

inline std::vector<std::byte> noise(std::size_t bytes, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> made(bytes);
  for (std::size_t done = 0; done < bytes; done += sizeof(std::uint32_t)) {
    const auto drawn = static_cast<std::uint32_t>(random());
    std::memcpy(made.data() + done, &drawn, std::min(sizeof drawn, bytes - done));
  }
  return made;
}

/// The obvious way: one element at a time.
inline void copy_elements(const StridedCase& c, const std::byte* from, std::byte* to, std::size_t dim = 0) {
  if (dim == c.sizes.size()) {
    std::memcpy(to, from, c.element_bytes);
    return;
  }
  const auto bytes = static_cast<std::int64_t>(c.element_bytes);
  for (std::int64_t i = 0; i < c.sizes[dim]; ++i) {
    copy_elements(c, from + i * c.from_strides[dim] * bytes, to + i * c.to_strides[dim] * bytes, dim + 1);
  }
}

/// Compares whole buffers, so that a byte written outside the box is detected.
inline void expect_like_element_copy(const StridedCase& c, const StridedCopy& copy) {
  const std::vector<std::byte> from = noise(c.from_bytes, 1);
  std::vector<std::byte> expected = noise(c.to_bytes, 2);
  std::vector<std::byte> found = expected;
  copy_elements(c, from.data() + c.from_origin, expected.data() + c.to_origin);
  copy(c.sizes, from.data() + c.from_origin, c.from_strides, found.data() + c.to_origin, c.to_strides, c.element_bytes);
  const bool is_same = found.empty() || std::memcmp(found.data(), expected.data(), found.size()) == 0;
  EXPECT_TRUE(is_same) << fmt::format("sizes [{}] from [{}] to [{}] element {}", fmt::join(c.sizes, ", "),
                                      fmt::join(c.from_strides, ", "), fmt::join(c.to_strides, ", "), c.element_bytes);
}

/// Transposes of whole tiles and edges, of every element size.
inline void expect_transposes(const StridedCopy& copy) {
  for (const std::size_t bytes : {1U, 2U, 3U, 4U, 8U, 12U, 16U, 32U}) {
    for (const auto& [rows, columns] :
         {std::pair<std::int64_t, std::int64_t>{64, 64}, {65, 127}, {300, 70}, {1, 200}, {200, 3}}) {
      expect_like_element_copy(make_case({rows, columns}, {1, rows}, {columns, 1}, bytes), copy);
      expect_like_element_copy(make_case({rows, columns}, {1, rows + 5}, {columns + 3, 1}, bytes), copy);
    }
  }
}

/// Strides of a dense array of `sizes` in a random order of dimensions, some with gaps and some walked backwards.
inline StridedNumbers random_strides(const StridedNumbers& sizes, bool padded, std::mt19937& random) {
  std::vector<std::size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), 0U);
  if (random() % 2 == 0) std::ranges::shuffle(order, random);
  StridedNumbers strides(sizes.size());
  std::int64_t stride = padded && random() % 4 == 0 ? 2 : 1;
  for (std::size_t i = order.size(); i-- > 0;) {
    const std::size_t d = order[i];
    strides[d] = padded && random() % 8 == 0 ? -stride : stride;
    stride *= sizes[d];
    if (padded && random() % 3 == 0) stride += static_cast<std::int64_t>(random() % 5);
  }
  return strides;
}

/// Boxes in all kinds of strides, at random (SHARD_TEST_SEED repeats a run).
inline void expect_random_copies(const StridedCopy& copy, int rounds) {
  const char* given = std::getenv("SHARD_TEST_SEED");
  const unsigned seed =
      given != nullptr ? static_cast<unsigned>(std::strtoul(given, nullptr, 10)) : std::random_device()();
  SCOPED_TRACE(fmt::format("SHARD_TEST_SEED={}", seed));
  ::testing::Test::RecordProperty("seed", std::to_string(seed));
  std::mt19937 random(seed);
  const std::size_t element_sizes[] = {1, 2, 4, 8, 16, 3, 24};
  for (int round = 0; round < rounds && !::testing::Test::HasFailure(); ++round) {
    StridedNumbers sizes;
    std::int64_t numel = 1;
    for (auto d = random() % 6; d > 0; --d) {
      sizes.push_back(1 + static_cast<std::int64_t>(random() % (random() % 4 == 0 ? 90 : 6)));
      numel *= sizes.back();
      if (numel > 20000) break;
    }
    const bool padded = random() % 2 == 0;
    const StridedNumbers from = random_strides(sizes, padded, random);
    expect_like_element_copy(make_case(sizes, from, random_strides(sizes, padded, random), element_sizes[random() % 7]),
                             copy);
  }
}

}  // namespace shard::testing
