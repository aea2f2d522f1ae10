/// \file
/// Compares elements of two tensors of one dtype: how many differ, by how much, and which first.
///
/// Values are compared as numbers: 0 equals -0; NaN equals nothing unless the tolerance says otherwise. Floats and
/// complex numbers are compared as float64, which is exact for all of them, and integers as they are. Other dtypes
/// (float4, float6, bits, quantized) are compared by their bits, without distances.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "libshard/core/dtype.h"

namespace shard {

/// Elements are equal if any of these accepts them.
struct Tolerance {
  double atol = 0, rtol = 0;  ///< |a - b| <= atol + rtol * |b|, for finite numbers.
  std::int64_t ulp = 0;       ///< At most this many representable numbers apart.
  bool equal_nan = false;
};

/// The number of distances in [base^exponent, base^(exponent + 1)).
struct HistogramBin {
  int exponent = 0;
  std::int64_t count = 0;
  friend bool operator==(const HistogramBin&, const HistogramBin&) = default;
};
/// Bins that are not empty, sorted by exponent. Distances that are NaN or infinite are in none.
using Histogram = std::vector<HistogramBin>;

/// Distances are over the differing elements; absent if the dtype has none.
struct ValueDifference {
  std::int64_t elements = 0, differing = 0;
  std::int64_t first = -1;  ///< Row-major number of the first differing element.
  std::optional<double> max_abs, max_rel;
  std::optional<std::uint64_t> max_ulp;
  Histogram abs;  ///< Distances |a - b|; the base is 10.
  Histogram ulp;  ///< Counts of representable numbers between a and b; the base is 2.
};

/// Takes a tensor block by block, in order. Blocks of equal bytes cost a memcmp and a look for NaN. Memory for 1,000
/// counts.
class Comparer {
 public:
  Comparer(DType dtype, const Tolerance& tolerance);
  /// \pre a and b are the packed elements [begin, begin + count).
  void add(std::int64_t begin, std::int64_t count, std::span<const std::byte> a, std::span<const std::byte> b);
  /// The difference in all blocks so far.
  ValueDifference result() const;

 private:
  enum class Kind { kFloat, kInteger, kBits };
  void add_floats(std::int64_t begin, std::span<const std::byte> a, std::span<const std::byte> b);
  void add_integers(std::int64_t begin, std::span<const std::byte> a, std::span<const std::byte> b);
  void add_bits(std::int64_t begin, std::int64_t count, std::span<const std::byte> a, std::span<const std::byte> b);
  void differs(std::int64_t element);
  void differs_by(std::int64_t element, double abs, double rel);
  std::uint64_t ulps_apart(const std::byte* a, const std::byte* b) const;

  DType dtype_, part_;  ///< part_: a complex number's halves, or the dtype itself.
  int parts_ = 1;
  Kind kind_;
  Tolerance tolerance_;
  ValueDifference result_;                             ///< Without histograms, which result() makes of the counts.
  std::vector<std::int64_t> abs_counts_, ulp_counts_;  ///< By exponent from the lowest; empty until one is counted.
  std::vector<double> a_, b_;
};

}  // namespace shard
