#include "libshard/compute/products.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "libshard/core/processor.h"
#include "libshard/exec/small_float.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace shard {

namespace {

float load_one(const std::byte* from, float /*type*/) {
  float number = 0;
  std::memcpy(&number, from, sizeof number);
  return number;
}
float load_one(const std::byte* from, Bfloat16 /*type*/) {
  Bfloat16::Bits bits = 0;
  std::memcpy(&bits, from, sizeof bits);
  return Bfloat16::decode(bits);
}
void store_one(std::byte* to, float number, float /*type*/) { std::memcpy(to, &number, sizeof number); }
void store_one(std::byte* to, float number, Bfloat16 /*type*/) {
  const Bfloat16::Bits bits = Bfloat16::encode(number);
  std::memcpy(to, &bits, sizeof bits);
}

/// The use of the elements of a part. They are stored, or added with a weight to numbers. All are of one type, float or
/// Bfloat16.
template <class Number>
struct ProductTarget {
  float weight;
  const std::byte* numbers;  ///< Null: elements are stored.
  std::byte* out;
  std::int64_t stride;  ///< The numbers from a row to the next.

  static constexpr std::int64_t kBytes = std::is_same_v<Number, float> ? sizeof(float) : sizeof(Bfloat16::Bits);

  std::int64_t place(std::int64_t row, std::int64_t column) const { return (row * stride + column) * kBytes; }

  ProductTarget from(std::int64_t row, std::int64_t column) const {
    const std::int64_t at = place(row, column);
    return {weight, numbers == nullptr ? nullptr : numbers + at, out + at, stride};
  }

  void take(std::int64_t row, std::int64_t column, float element) const {
    const std::int64_t at = place(row, column);
    if (numbers != nullptr) element = std::fma(weight, element, load_one(numbers + at, Number()));
    store_one(out + at, element, Number());
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
template <class Rows, int kRows, class Number>
void part_of_strip(const float* left, std::int64_t rank, const float* strip, std::int64_t first, std::int64_t last,
                   const ProductTarget<Number>& target) {
  if (last - first == kProductStrip) return Rows::template compute<kRows>(left, rank, strip, target);
  float whole[kRows * kProductStrip];
  const ProductTarget<float> all{0, nullptr, std::as_writable_bytes(std::span(whole)).data(), kProductStrip};
  Rows::template compute<kRows>(left, rank, strip, all);
  for (std::int64_t r = 0; r < kRows; ++r) {
    for (std::int64_t j = first; j < last; ++j) target.take(r, j - first, whole[r * kProductStrip + j]);
  }
}

/// Elements of a part, strip by strip. `Rows::kTogether` rows are computed together, and the rest one by one.
template <class Rows, class Number>
void products_by(const ProductPart& part, float weight, const std::byte* numbers, std::byte* out, std::int64_t stride) {
  const ProductTarget<Number> all{weight, numbers, out, stride};
  for_each_strip(part, [&](const float* strip, std::int64_t first, std::int64_t last, std::int64_t to) {
    std::int64_t row = 0;
    const auto rows_from = [&](std::int64_t at) { return all.from(at, to); };
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

  template <int kRows, class Number>
  static void compute(const float* left, std::int64_t rank, const float* strip, const ProductTarget<Number>& target) {
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

  template <int kRows, class Number>
  [[gnu::target("avx2,fma")]] static void compute(const float* left, std::int64_t rank, const float* strip,
                                                  const ProductTarget<Number>& target) {
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
          const std::int64_t at = target.place(r, column + v * kLanes);
          __m256 result = sums[r][v];
          if (target.numbers != nullptr)
            result = _mm256_fmadd_ps(_mm256_set1_ps(target.weight), result, load(target.numbers + at, Number()));
          store(target.out + at, result, Number());
        }
      }
    }
  }

 private:
  [[gnu::target("avx2,fma")]] static __m256 load(const std::byte* from, float /*type*/) {
    return _mm256_loadu_ps(reinterpret_cast<const float*>(from));
  }
  [[gnu::target("avx2,fma")]] static __m256 load(const std::byte* from, Bfloat16 /*type*/) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
  [[gnu::target("avx2,fma")]] static void store(std::byte* to, __m256 numbers, float /*type*/) {
    _mm256_storeu_ps(reinterpret_cast<float*>(to), numbers);
  }
  /// Rounds as Bfloat16::encode.
  [[gnu::target("avx2,fma")]] static void store(std::byte* to, __m256 numbers, Bfloat16 /*type*/) {
    const __m256i bits = _mm256_castps_si256(numbers), upper = _mm256_srli_epi32(bits, 16);
    const __m256i half = _mm256_add_epi32(_mm256_and_si256(upper, _mm256_set1_epi32(1)), _mm256_set1_epi32(0x7FFF));
    const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, half), 16);
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(numbers, numbers, _CMP_UNORD_Q));
    const __m256i codes = _mm256_blendv_epi8(rounded, _mm256_set1_epi32(Bfloat16::encode(NAN)), is_nan);
    const __m256i halves = _mm256_permute4x64_epi64(_mm256_packus_epi32(codes, codes), 0b1000);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_castsi256_si128(halves));
  }
};

#define SHARD_AVX512 "avx512f,avx512dq,avx512vl,avx512bf16"

/// Loops are unrolled early, because otherwise the compiler keeps the sums in memory as well.
struct Avx512Rows {
  static constexpr int kTogether = 8, kVectors = 3;
  static constexpr std::int64_t kLanes = 16;
  static_assert(kProductStrip == kVectors * kLanes);

  template <int kRows, class Number>
  [[gnu::target(SHARD_AVX512)]] static void compute(const float* left, std::int64_t rank, const float* strip,
                                                    const ProductTarget<Number>& target) {
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
        const std::int64_t at = target.place(r, v * kLanes);
        __m512 result = sums[r][v];
        if (target.numbers != nullptr)
          result = _mm512_fmadd_ps(_mm512_set1_ps(target.weight), result, load(target.numbers + at, Number()));
        store(target.out + at, result, Number());
      }
    }
  }

 private:
  /// All lanes. Operations without a mask begin with a register that is not set, of which g++ 12 warns.
  static constexpr __mmask16 kAll = 0xFFFF;

  [[gnu::target(SHARD_AVX512)]] static __m512 load(const std::byte* from, float /*type*/) {
    return _mm512_loadu_ps(from);
  }
  [[gnu::target(SHARD_AVX512)]] static __m512 load(const std::byte* from, Bfloat16 /*type*/) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    return _mm512_castsi512_ps(_mm512_maskz_slli_epi32(kAll, _mm512_maskz_cvtepu16_epi32(kAll, bits), 16));
  }
  [[gnu::target(SHARD_AVX512)]] static void store(std::byte* to, __m512 numbers, float /*type*/) {
    _mm512_storeu_ps(to, numbers);
  }
  /// Rounds as Bfloat16::encode. The instruction takes subnormal numbers as 0 and keeps the digits of NaN, so that
  /// vectors with such numbers are rounded one by one.
  [[gnu::target(SHARD_AVX512)]] static void store(std::byte* to, __m512 numbers, Bfloat16 type) {
    constexpr int kNanOrSubnormal = 0x01 | 0x80 | 0x20;
    if (_mm512_fpclass_ps_mask(numbers, kNanOrSubnormal) == 0) [[likely]] {
      const auto rounded = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(numbers));
      return _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), rounded);
    }
    for (std::int64_t i = 0; i < kLanes; ++i) store_one(to + i * ProductTarget<Bfloat16>::kBytes, numbers[i], type);
  }
};
#endif

}  // namespace

std::vector<ProductLoops> product_loops() {
  const auto both_by = []<class Rows>(Rows) -> ProductLoops {
    return {products_by<Rows, float>, products_by<Rows, Bfloat16>};
  };
  std::vector<ProductLoops> loops{both_by(PlainRows())};
#if defined(__x86_64__)
  if (has_fma()) loops.push_back(both_by(Avx2Rows()));
  if (has_avx512_bfloat16()) loops.push_back(both_by(Avx512Rows()));
#endif
  return loops;
}

namespace {

const ProductLoops kProducts = product_loops().back();

}  // namespace

void compute_products(const ProductPart& part, std::span<float> out) {
  kProducts.float32(part, 0, nullptr, std::as_writable_bytes(out).data(), part.columns);
}

void add_products(const ProductPart& part, float weight, std::span<float> sums) {
  std::byte* const bytes = std::as_writable_bytes(sums).data();
  kProducts.float32(part, weight, bytes, bytes, part.columns);
}

void add_products_to_bfloat16(const ProductPart& part, float weight, const std::byte* numbers, std::byte* sums,
                              std::int64_t stride) {
  kProducts.bfloat16(part, weight, numbers, sums, stride);
}

}  // namespace shard
