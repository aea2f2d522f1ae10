#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <vector>

#include "libshard/compute/operand.h"
#include "libshard/compute/unpack.h"
#include "libshard/compute/values.h"
#include "libshard/core/checked.h"
#include "libshard/core/processor.h"

namespace shard {

namespace {

using Eight [[gnu::vector_size(32)]] = float;
constexpr std::size_t kVectors = 3, kMostRows = 4;  ///< Vectors of columns, and rows, that are computed together.
constexpr std::int64_t kLanes = 8, kStrip = kLanes * static_cast<std::int64_t>(kVectors);

/// A part of a product. The right factor is packed: strips of kStrip columns follow one another, each row by row, so
/// that it is read in the order in which it is stored.
struct ProductPart {
  const float* left;
  std::int64_t rows, rank;
  const float* right;
  std::int64_t from, columns;  ///< The columns of the part.
};

/// out[r][j] = sum of left[r][k] * strip[k][j] over k, in order; or with a weight, out[r][j] += *weight * sum. The sums
/// stay in registers, and there are enough of them that additions need not wait for each other. Vectors are copied one
/// by one, because the compiler would keep a whole array in memory.
template <std::size_t kRows>
[[gnu::always_inline]] inline void strip_products(const float* left, std::int64_t rank, const float* strip,
                                                  const float* weight, float* out, std::int64_t stride) {
  std::array<std::array<Eight, kVectors>, kRows> sums{};
  for (std::int64_t k = 0; k < rank; ++k) {
    std::array<Eight, kVectors> from;
    for (std::size_t v = 0; v < kVectors; ++v) {
      Eight one;
      std::memcpy(&one, strip + k * kStrip + kLanes * static_cast<std::int64_t>(v), sizeof one);
      from[v] = one;
    }
    for (std::size_t r = 0; r < kRows; ++r) {
      const float factor = left[static_cast<std::int64_t>(r) * rank + k];
      for (std::size_t v = 0; v < kVectors; ++v) sums[r][v] += factor * from[v];
    }
  }
  for (std::size_t r = 0; r < kRows; ++r) {
    for (std::size_t v = 0; v < kVectors; ++v) {
      float* const to = out + static_cast<std::int64_t>(r) * stride + kLanes * static_cast<std::int64_t>(v);
      Eight one = sums[r][v];
      if (weight != nullptr) {
        Eight before;
        std::memcpy(&before, to, sizeof before);
        one = before + *weight * one;
      }
      std::memcpy(to, &one, sizeof one);
    }
  }
}

/// The part for kRows rows, strip by strip. A strip that the part does not contain completely is computed beside `out`.
template <std::size_t kRows>
[[gnu::always_inline]] inline void row_products(const ProductPart& part, std::int64_t row, const float* weight,
                                                float* out, std::int64_t stride) {
  const float* const left = part.left + row * part.rank;
  const std::int64_t end = part.from + part.columns;
  for (std::int64_t at = part.from; at < end;) {
    const std::int64_t skipped = at % kStrip, count = std::min(kStrip - skipped, end - at);
    const float* const strip = part.right + (at - skipped) * part.rank;
    float* const to = out + row * stride + at - part.from;
    if (count == kStrip) {
      strip_products<kRows>(left, part.rank, strip, weight, to, stride);
    } else {
      std::array<float, kRows* static_cast<std::size_t>(kStrip)> whole;
      strip_products<kRows>(left, part.rank, strip, nullptr, whole.data(), kStrip);
      for (std::int64_t r = 0; r < static_cast<std::int64_t>(kRows); ++r) {
        for (std::int64_t j = 0; j < count; ++j) {
          const float sum = whole[static_cast<std::size_t>(r * kStrip + skipped + j)];
          float& number = to[r * stride + j];
          number = weight == nullptr ? sum : number + *weight * sum;
        }
      }
    }
    at += count;
  }
}

[[gnu::always_inline]] inline void product_loop(const ProductPart& part, const float* weight, float* out,
                                                std::int64_t stride) {
  constexpr auto kTogether = static_cast<std::int64_t>(kMostRows);
  std::int64_t row = 0;
  for (; row + kTogether <= part.rows; row += kTogether) row_products<kMostRows>(part, row, weight, out, stride);
  for (; row < part.rows; ++row) row_products<1>(part, row, weight, out, stride);
}

void products_any(const ProductPart& part, const float* weight, float* out, std::int64_t stride) {
  product_loop(part, weight, out, stride);
}
#if defined(__x86_64__)
[[gnu::target("avx2")]] void products_avx2(const ProductPart& part, const float* weight, float* out,
                                           std::int64_t stride) {
  product_loop(part, weight, out, stride);
}
const auto kProducts = has_avx2() ? products_avx2 : products_any;
#else
constexpr auto kProducts = products_any;
#endif

/// Rows of a factor in float32. Factors whose rows follow one another are read by rows, all others are kept whole.
class FactorRows {
 public:
  FactorRows(const Factor& factor, Readers readers, std::int64_t slices, std::int64_t rows, std::int64_t columns)
      : factor_(factor), operand_(readers, factor.tensor), columns_(columns) {
    is_dense_ =
        factor.strides[2] == 1 && factor.strides[1] == columns && (slices == 1 || factor.strides[0] == rows * columns);
  }

  /// Rows [first, last) of a slice, row-major. Valid until the next call.
  std::span<const float> load(std::int64_t slice, std::int64_t first, std::int64_t last) {
    if (slice == slice_ && first == first_ && last == last_) return rows_;
    slice_ = -1;  // Nothing is kept if the read fails.
    rows_.resize(static_cast<std::size_t>((last - first) * columns_));
    if (is_dense_) {
      operand_.read_floats(slice * factor_.strides[0] + first * columns_, rows_);
    } else {
      gather(slice, first);
    }
    slice_ = slice, first_ = first, last_ = last;
    return rows_;
  }

 private:
  void gather(std::int64_t slice, std::int64_t first) {
    if (all_.empty()) {
      all_.resize(static_cast<std::size_t>(operand_.elements()));
      operand_.read_floats(0, all_);
    }
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      const std::int64_t row = first + static_cast<std::int64_t>(i) / columns_;
      const std::int64_t column = static_cast<std::int64_t>(i) % columns_;
      rows_[i] = all_[static_cast<std::size_t>(slice * factor_.strides[0] + row * factor_.strides[1] +
                                               column * factor_.strides[2])];
    }
  }

  Factor factor_;
  Operand operand_;
  std::int64_t columns_;
  bool is_dense_;
  std::int64_t slice_ = -1, first_ = 0, last_ = 0;  ///< The rows in rows_.
  std::vector<float> rows_, all_;
};

class ProductValues final : public Values {
 public:
  ProductValues(const LowRankProduct& product, Readers readers)
      : product_(product),
        left_(product.left, readers, product.slices, product.rows, product.rank),
        right_(product.right, readers, product.slices, product.rank, product.columns) {}

  std::int64_t take(std::int64_t begin, std::int64_t end) override {
    const std::int64_t columns = product_.columns, row = begin / columns, slice = row / product_.rows;
    end = std::min({end, begin + kMostTaken, (slice + 1) * product_.rows * columns});
    first_row_ = row;
    left_rows_ = left_.load(slice, row - slice * product_.rows, (end - 1) / columns + 1 - slice * product_.rows);
    if (slice != packed_slice_) pack(slice);
    return end;
  }

  void compute(std::int64_t begin, std::span<float> out) override {
    while (!out.empty()) {
      const auto count = std::min(std::ssize(out), product_.columns - begin % product_.columns);
      kProducts(part_of(begin, 1, count), nullptr, out.data(), 0);
      out = out.subspan(static_cast<std::size_t>(count));
      begin += count;
    }
  }

  void add_to(const RowRange& range, float weight, std::span<float> sums) override {
    const bool is_row = range.begin % product_.columns + range.columns <= product_.columns;
    if (!is_row || range.stride != product_.columns) return Values::add_to(range, weight, sums);
    kProducts(part_of(range.begin, range.rows, range.columns), &weight, sums.data(), range.stride);
  }

 private:
  ProductPart part_of(std::int64_t begin, std::int64_t rows, std::int64_t columns) const {
    const float* const left = left_rows_.data() + (begin / product_.columns - first_row_) * product_.rank;
    return {left, rows, product_.rank, packed_.data(), begin % product_.columns, columns};
  }

  /// Packs the right factor of a slice. Columns of the last strip that do not exist are 0.
  void pack(std::int64_t slice) {
    packed_slice_ = -1;  // Nothing is kept if a read fails.
    const std::int64_t columns = product_.columns, rank = product_.rank;
    packed_.resize(static_cast<std::size_t>(ceil_div(columns, kStrip) * kStrip * rank));
    for (std::int64_t k = 0; k < rank; ++k) {
      const std::span<const float> row = right_.load(slice, k, k + 1);
      for (std::int64_t at = 0; at < columns; at += kStrip) {
        std::copy_n(row.data() + at, std::min(kStrip, columns - at), packed_.data() + at * rank + k * kStrip);
      }
    }
    packed_slice_ = slice;
  }

  LowRankProduct product_;
  FactorRows left_, right_;
  std::int64_t first_row_ = 0;  ///< The first row in left_rows_, counted over all slices.
  std::span<const float> left_rows_;
  std::int64_t packed_slice_ = -1;
  std::vector<float> packed_;  ///< The right factor of this slice, see ProductPart.
};

class NormalizedValues final : public Values {
 public:
  NormalizedValues(const NormalizedRows& rows, Readers readers)
      : columns_(rows.columns), value_(open_values(*rows.value, readers)), magnitude_(readers, rows.magnitude) {}

  std::int64_t take(std::int64_t begin, std::int64_t end) override {
    end = std::min(end, begin + kMostTaken);
    const std::int64_t first = begin / columns_, last = (end - 1) / columns_ + 1;
    if (first < first_ || last > first_ + std::ssize(factors_)) load_factors(first, last);
    return value_->take(begin, end);
  }

  void compute(std::int64_t begin, std::span<float> out) override {
    value_->compute(begin, out);
    while (!out.empty()) {
      const std::int64_t row = begin / columns_;
      const std::int64_t count = std::min(std::ssize(out), (row + 1) * columns_ - begin);
      multiply(out.first(static_cast<std::size_t>(count)), factors_[static_cast<std::size_t>(row - first_)]);
      out = out.subspan(static_cast<std::size_t>(count));
      begin += count;
    }
  }

 private:
  /// Reads these rows whole.
  void load_factors(std::int64_t first, std::int64_t last) {
    factors_.clear();  // Nothing is kept if a read fails.
    std::vector<float> magnitudes(static_cast<std::size_t>(last - first));
    magnitude_.read_floats(first, magnitudes);
    std::vector<double> squares(magnitudes.size());
    std::array<float, kBlock> block;
    for (std::int64_t at = first * columns_; at < last * columns_;) {
      const std::int64_t taken = value_->take(at, last * columns_);
      while (at < taken) {
        const std::int64_t row = at / columns_;
        const std::int64_t count = std::min({kBlock, taken - at, (row + 1) * columns_ - at});
        const std::span<float> values = std::span(block).first(static_cast<std::size_t>(count));
        value_->compute(at, values);
        double& sum = squares[static_cast<std::size_t>(row - first)];
        for (const float each : values) sum += static_cast<double>(each) * static_cast<double>(each);
        at += count;
      }
    }
    for (std::size_t i = 0; i < magnitudes.size(); ++i) {
      factors_.push_back(static_cast<float>(static_cast<double>(magnitudes[i]) / std::sqrt(squares[i])));
    }
    first_ = first;
  }

  std::int64_t columns_;
  std::unique_ptr<Values> value_;
  Operand magnitude_;
  std::int64_t first_ = 0;
  std::vector<float> factors_;  ///< By row, from first_ on: magnitude / norm.
};

}  // namespace

std::unique_ptr<Values> open_values(const LowRankProduct& product, Readers readers) {
  return std::make_unique<ProductValues>(product, readers);
}

std::unique_ptr<Values> open_values(const NormalizedRows& rows, Readers readers) {
  return std::make_unique<NormalizedValues>(rows, readers);
}

}  // namespace shard
