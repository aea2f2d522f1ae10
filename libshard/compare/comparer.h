/// \file Compares the elements of two tensors of one dtype: how many differ, by how much, and which element is the
///   first.
///
/// Values are compared as numbers: 0 equals -0, and NaN equals nothing unless the tolerance accepts it. Floats and
/// complex numbers are compared as float64, which represents all of them exactly. Integers are compared in their own
/// type. Other dtypes (float4, float6, bits, quantized) are compared by their bits, without distances.
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
/// The non-empty bins, sorted by exponent. No bin counts distances that are NaN or infinite.
using Histogram = std::vector<HistogramBin>;

/// The differences between two tensors. Distances cover only the differing elements, and are absent if the dtype has
/// none.
struct ValueDifference {
  std::int64_t elements = 0, differing = 0;
  std::int64_t first = -1;  ///< The row-major index of the first differing element.
  std::optional<double> max_abs, max_rel;
  std::optional<std::uint64_t> max_ulp;
  Histogram abs;  ///< Distances |a - b|. The base is 10.
  Histogram ulp;  ///< Counts of representable numbers between a and b. The base is 2.
};

/// Receives a tensor block by block, in order. Blocks of equal bytes cost a memcmp and a search for NaN. Memory: 1,000
/// counts.
class Comparer {
 public:
  Comparer(DType dtype, const Tolerance& tolerance);
  /// \pre a and b are the packed elements [begin, begin + count).
  void add(std::int64_t begin, std::int64_t count, std::span<const std::byte> a, std::span<const std::byte> b);
  /// The differences in all blocks so far.
  ValueDifference result() const;

 private:
  enum class Kind { kFloat, kInteger, kBits };
  void add_floats(std::int64_t begin, std::span<const std::byte> a, std::span<const std::byte> b);
  void add_integers(std::int64_t begin, std::span<const std::byte> a, std::span<const std::byte> b);
  void add_bits(std::int64_t begin, std::int64_t count, std::span<const std::byte> a, std::span<const std::byte> b);
  void differs(std::int64_t element);
  void differs_by(std::int64_t element, double abs, double rel);
  std::uint64_t ulps_apart(const std::byte* a, const std::byte* b) const;

  DType dtype_, part_;  ///< part_ is the dtype of a complex number's halves, or the dtype itself.
  int parts_ = 1;
  Kind kind_;
  Tolerance tolerance_;
  ValueDifference result_;                             ///< Has no histograms; result() builds them from the counts.
  std::vector<std::int64_t> abs_counts_, ulp_counts_;  ///< Counts by exponent, from the lowest one. Empty until
                                                       ///< something is counted.
  std::vector<double> a_, b_;
};

}  // namespace shard
