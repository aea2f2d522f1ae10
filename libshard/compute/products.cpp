#include "libshard/compute/products.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

#include "libshard/core/processor.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace shard {

namespace {

/// Stores the elements of a part, or adds them with a weight.
struct ProductTarget {
  const float* weight;  ///< Null: elements are stored.
  float* out;
  std::int64_t columns;

  void take(std::int64_t row, std::int64_t column, float element) const {
    float& number = out[row * columns + column];
    number = weight == nullptr ? element : std::fma(*weight, element, number);
  }
};

/// Elements of one row in one strip: columns [first, last) of the strip, which become those from `to` on.
void strip_row(const ProductPart& part, std::int64_t row, const float* strip, std::int64_t first, std::int64_t last,
               const ProductTarget& target, std::int64_t to) {
  std::array<float, static_cast<std::size_t>(kProductStrip)> sums{};
  const float* const left = part.left + row * part.rank;
  for (std::int64_t k = 0; k < part.rank; ++k) {
    const float* const from = strip + k * kProductStrip;
    for (std::size_t j = 0; j < sums.size(); ++j) sums[j] = std::fma(left[k], from[j], sums[j]);
  }
  for (std::int64_t j = first; j < last; ++j) target.take(row, to + j - first, sums[static_cast<std::size_t>(j)]);
}

/// Calls `each` with every strip of a part: its columns, the range of those that belong to the part, and the column of
/// the part with which this range begins.
template <class Each>
[[gnu::always_inline]] inline void for_each_strip(const ProductPart& part, const Each& each) {
  for (std::int64_t done = 0; done < part.columns;) {
    const std::int64_t at = part.from + done, first = at % kProductStrip;
    const std::int64_t last = std::min(kProductStrip, first + part.columns - done);
    each(part.right + (at - first) * part.rank, first, last, done);
    done += last - first;
  }
}

void products_any(const ProductPart& part, const ProductTarget& target) {
  for_each_strip(part, [&](const float* strip, std::int64_t first, std::int64_t last, std::int64_t to) {
    for (std::int64_t row = 0; row < part.rows; ++row) strip_row(part, row, strip, first, last, target, to);
  });
}

#if defined(__x86_64__)
constexpr std::int64_t kLanes = 8, kRowsTogether = 4;
constexpr int kVectors = 3;  ///< With four rows, the sums stay in registers and need not wait for each other.
static_assert(kVectors * kLanes == kProductStrip);

/// Elements of kRows rows in a whole strip. Intrinsics, because a compiler is free not to use the instruction for a sum
/// of products. \param left  the first of these rows
template <int kRows>
[[gnu::target("avx2,fma")]] void strip_rows(const float* left, std::int64_t rank, const float* strip,
                                            const ProductTarget& target) {
  __m256 sums[kRows][kVectors];
  for (auto& in_row : sums) {
    for (__m256& sum : in_row) sum = _mm256_setzero_ps();
  }
  for (std::int64_t k = 0; k < rank; ++k, strip += kProductStrip) {
    __m256 from[kVectors];
    for (int v = 0; v < kVectors; ++v) from[v] = _mm256_loadu_ps(strip + v * kLanes);
    for (int r = 0; r < kRows; ++r) {
      const __m256 factor = _mm256_set1_ps(left[r * rank + k]);
      for (int v = 0; v < kVectors; ++v) sums[r][v] = _mm256_fmadd_ps(factor, from[v], sums[r][v]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      float* const out = target.out + r * target.columns + v * kLanes;
      __m256 result = sums[r][v];
      if (target.weight != nullptr)
        result = _mm256_fmadd_ps(_mm256_set1_ps(*target.weight), result, _mm256_loadu_ps(out));
      _mm256_storeu_ps(out, result);
    }
  }
}

/// Elements of kRows rows in columns [first, last) of a strip. If these are not all, they are computed apart.
template <int kRows>
void part_of_strip(const float* left, std::int64_t rank, const float* strip, std::int64_t first, std::int64_t last,
                   const ProductTarget& target) {
  if (last - first == kProductStrip) return strip_rows<kRows>(left, rank, strip, target);
  float whole[kRows * kProductStrip];
  strip_rows<kRows>(left, rank, strip, {nullptr, whole, kProductStrip});
  for (std::int64_t r = 0; r < kRows; ++r) {
    for (std::int64_t j = first; j < last; ++j) target.take(r, j - first, whole[r * kProductStrip + j]);
  }
}

void products_fma(const ProductPart& part, const ProductTarget& target) {
  for_each_strip(part, [&](const float* strip, std::int64_t first, std::int64_t last, std::int64_t to) {
    std::int64_t row = 0;
    const auto rows_from = [&](std::int64_t at) {
      return ProductTarget{target.weight, target.out + at * target.columns + to, target.columns};
    };
    for (; row + kRowsTogether <= part.rows; row += kRowsTogether) {
      part_of_strip<kRowsTogether>(part.left + row * part.rank, part.rank, strip, first, last, rows_from(row));
    }
    for (; row < part.rows; ++row) {
      part_of_strip<1>(part.left + row * part.rank, part.rank, strip, first, last, rows_from(row));
    }
  });
}

const auto kProducts = has_fma() ? products_fma : products_any;
#else
constexpr auto kProducts = products_any;
#endif

}  // namespace

void compute_products(const ProductPart& part, std::span<float> out) {
  kProducts(part, {nullptr, out.data(), part.columns});
}

void add_products(const ProductPart& part, float weight, std::span<float> sums) {
  kProducts(part, {&weight, sums.data(), part.columns});
}

}  // namespace shard
