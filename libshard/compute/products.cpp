#include "libshard/compute/products.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <vector>

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

/// Elements of kRows rows in columns [first, last) of a strip. If these are not all, they are computed apart.
/// \param left  the first of these rows
template <class Rows, int kRows>
void part_of_strip(const float* left, std::int64_t rank, const float* strip, std::int64_t first, std::int64_t last,
                   const ProductTarget& target) {
  if (last - first == kProductStrip) return Rows::template compute<kRows>(left, rank, strip, target);
  float whole[kRows * kProductStrip];
  Rows::template compute<kRows>(left, rank, strip, {nullptr, whole, kProductStrip});
  for (std::int64_t r = 0; r < kRows; ++r) {
    for (std::int64_t j = first; j < last; ++j) target.take(r, j - first, whole[r * kProductStrip + j]);
  }
}

/// Elements of a part, strip by strip. `Rows::kTogether` rows are computed together, and those beyond whole groups one
/// by one.
template <class Rows>
void products_by(const ProductPart& part, const float* weight, std::span<float> out) {
  for_each_strip(part, [&](const float* strip, std::int64_t first, std::int64_t last, std::int64_t to) {
    std::int64_t row = 0;
    const auto rows_from = [&](std::int64_t at) {
      return ProductTarget{weight, out.data() + at * part.columns + to, part.columns};
    };
    for (; row + Rows::kTogether <= part.rows; row += Rows::kTogether) {
      part_of_strip<Rows, Rows::kTogether>(part.left + row * part.rank, part.rank, strip, first, last, rows_from(row));
    }
    for (; row < part.rows; ++row) {
      part_of_strip<Rows, 1>(part.left + row * part.rank, part.rank, strip, first, last, rows_from(row));
    }
  });
}

/// Any processor.
struct PlainRows {
  static constexpr int kTogether = 1;

  template <int kRows>
  static void compute(const float* left, std::int64_t rank, const float* strip, const ProductTarget& target) {
    std::array<float, static_cast<std::size_t>(kProductStrip)> sums{};
    for (std::int64_t k = 0; k < rank; ++k, strip += kProductStrip) {
      for (std::size_t j = 0; j < sums.size(); ++j) sums[j] = std::fma(left[k], strip[j], sums[j]);
    }
    for (std::int64_t j = 0; j < kProductStrip; ++j) target.take(0, j, sums[static_cast<std::size_t>(j)]);
  }
};

#if defined(__x86_64__)
// Intrinsics, because a compiler is free not to use the instruction for a sum of products. The sums of all rows stay in
// registers, and there are enough of them that none waits for the one before it.

struct Avx2Rows {
  static constexpr int kTogether = 4, kVectors = 3;
  static constexpr std::int64_t kLanes = 8;
  static_assert(kProductStrip % (kVectors * kLanes) == 0);

  template <int kRows>
  [[gnu::target("avx2,fma")]] static void compute(const float* left, std::int64_t rank, const float* strip,
                                                  const ProductTarget& target) {
    for (std::int64_t column = 0; column < kProductStrip; column += kVectors * kLanes) {
      __m256 sums[kRows][kVectors];
      for (auto& in_row : sums) {
        for (__m256& sum : in_row) sum = _mm256_setzero_ps();
      }
      for (std::int64_t k = 0; k < rank; ++k) {
        __m256 from[kVectors];
        for (int v = 0; v < kVectors; ++v) from[v] = _mm256_loadu_ps(strip + k * kProductStrip + column + v * kLanes);
        for (int r = 0; r < kRows; ++r) {
          const __m256 factor = _mm256_set1_ps(left[r * rank + k]);
          for (int v = 0; v < kVectors; ++v) sums[r][v] = _mm256_fmadd_ps(factor, from[v], sums[r][v]);
        }
      }
      for (int r = 0; r < kRows; ++r) {
        for (int v = 0; v < kVectors; ++v) {
          float* const out = target.out + r * target.columns + column + v * kLanes;
          __m256 result = sums[r][v];
          if (target.weight != nullptr)
            result = _mm256_fmadd_ps(_mm256_set1_ps(*target.weight), result, _mm256_loadu_ps(out));
          _mm256_storeu_ps(out, result);
        }
      }
    }
  }
};

/// Loops are unrolled early, because otherwise the compiler keeps the sums in memory as well.
struct Avx512Rows {
  static constexpr int kTogether = 8, kVectors = 3;
  static constexpr std::int64_t kLanes = 16;
  static_assert(kProductStrip == kVectors * kLanes);

  template <int kRows>
  [[gnu::target("avx512f")]] static void compute(const float* left, std::int64_t rank, const float* strip,
                                                 const ProductTarget& target) {
    __m512 sums[kRows][kVectors];
#pragma GCC unroll 8
    for (auto& in_row : sums) {
#pragma GCC unroll 8
      for (__m512& sum : in_row) sum = _mm512_setzero_ps();
    }
    for (std::int64_t k = 0; k < rank; ++k, strip += kProductStrip) {
      __m512 from[kVectors];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) from[v] = _mm512_loadu_ps(strip + v * kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const __m512 factor = _mm512_set1_ps(left[r * rank + k]);
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) sums[r][v] = _mm512_fmadd_ps(factor, from[v], sums[r][v]);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        float* const out = target.out + r * target.columns + v * kLanes;
        __m512 result = sums[r][v];
        if (target.weight != nullptr)
          result = _mm512_fmadd_ps(_mm512_set1_ps(*target.weight), result, _mm512_loadu_ps(out));
        _mm512_storeu_ps(out, result);
      }
    }
  }
};
#endif

}  // namespace

std::vector<ProductLoop> product_loops() {
  std::vector<ProductLoop> loops{products_by<PlainRows>};
#if defined(__x86_64__)
  if (has_fma()) loops.push_back(products_by<Avx2Rows>);
  if (has_avx512()) loops.push_back(products_by<Avx512Rows>);
#endif
  return loops;
}

namespace {

const ProductLoop kProducts = product_loops().back();

}  // namespace

void compute_products(const ProductPart& part, std::span<float> out) { kProducts(part, nullptr, out); }

void add_products(const ProductPart& part, float weight, std::span<float> sums) { kProducts(part, &weight, sums); }

}  // namespace shard
