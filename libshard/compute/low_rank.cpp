#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <vector>

#include "libshard/compute/operand.h"
#include "libshard/compute/unpack.h"
#include "libshard/compute/values.h"
#include "libshard/core/processor.h"

namespace shard {

namespace {

using Eight [[gnu::vector_size(32)]] = float;
constexpr std::int64_t kLanes = 8;

/// out[r][j] = sum of left[r][k] * right[k][j] over k, in order, for kRows rows of 8 * kVectors columns. The sums stay
/// in registers, and there are enough of them that additions need not wait for each other. Vectors are copied one by
/// one, because the compiler would keep a whole array in memory.
template <std::size_t kRows, std::size_t kVectors>
[[gnu::always_inline]] inline void strip_products(const float* left, std::int64_t rank, const float* right,
                                                  std::int64_t stride, float* out) {
  std::array<std::array<Eight, kVectors>, kRows> sums{};
  for (std::int64_t k = 0; k < rank; ++k) {
    std::array<Eight, kVectors> from;
    for (std::size_t v = 0; v < kVectors; ++v) {
      Eight one;
      std::memcpy(&one, right + k * stride + kLanes * static_cast<std::int64_t>(v), sizeof one);
      from[v] = one;
    }
    for (std::size_t r = 0; r < kRows; ++r) {
      const float factor = left[static_cast<std::int64_t>(r) * rank + k];
      for (std::size_t v = 0; v < kVectors; ++v) sums[r][v] += factor * from[v];
    }
  }
  for (std::size_t r = 0; r < kRows; ++r) {
    for (std::size_t v = 0; v < kVectors; ++v) {
      const Eight one = sums[r][v];
      std::memcpy(out + static_cast<std::int64_t>(r) * stride + kLanes * static_cast<std::int64_t>(v), &one,
                  sizeof one);
    }
  }
}

/// Rows of products: `out` and `right` have `stride` columns, of which `count` are computed.
template <std::size_t kRows, std::size_t kVectors>
[[gnu::always_inline]] inline void row_products(const float* left, std::int64_t rank, const float* right,
                                                std::int64_t stride, float* out, std::int64_t count) {
  constexpr std::int64_t kStrip = kLanes * static_cast<std::int64_t>(kVectors);
  std::int64_t j = 0;
  for (; j + kStrip <= count; j += kStrip) strip_products<kRows, kVectors>(left, rank, right + j, stride, out + j);
  for (; j + kLanes <= count; j += kLanes) strip_products<kRows, 1>(left, rank, right + j, stride, out + j);
  for (; j < count; ++j) {
    for (std::int64_t r = 0; r < static_cast<std::int64_t>(kRows); ++r) {
      float sum = 0;
      for (std::int64_t k = 0; k < rank; ++k) sum += left[r * rank + k] * right[k * stride + j];
      out[r * stride + j] = sum;
    }
  }
}

constexpr std::int64_t kMostRows = 4;  ///< In one call of product_loop.

[[gnu::always_inline]] inline void product_loop(const float* left, std::int64_t rows, std::int64_t rank,
                                                const float* right, std::int64_t stride, float* out,
                                                std::int64_t count) {
  if (rows == kMostRows) return row_products<kMostRows, 3>(left, rank, right, stride, out, count);
  for (std::int64_t r = 0; r < rows; ++r) {
    row_products<1, 8>(left + r * rank, rank, right, stride, out + r * stride, count);
  }
}

void products_any(const float* left, std::int64_t rows, std::int64_t rank, const float* right, std::int64_t stride,
                  float* out, std::int64_t count) {
  product_loop(left, rows, rank, right, stride, out, count);
}
#if defined(__x86_64__)
[[gnu::target("avx2")]] void products_avx2(const float* left, std::int64_t rows, std::int64_t rank, const float* right,
                                           std::int64_t stride, float* out, std::int64_t count) {
  product_loop(left, rows, rank, right, stride, out, count);
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
    end_row_ = (end - 1) / columns + 1;
    left_rows_ = left_.load(slice, row - slice * product_.rows, (end - 1) / columns + 1 - slice * product_.rows);
    right_rows_ = right_.load(slice, 0, product_.rank);
    return end;
  }

  void compute(std::int64_t begin, std::span<float> out) override {
    while (!out.empty()) {
      const std::int64_t row = begin / product_.columns, from = begin % product_.columns;
      const auto count = static_cast<std::size_t>(std::min(std::ssize(out), product_.columns - from));
      if (end_row_ - first_row_ < kMostRows || product_.columns > kWidest) {
        kProducts(left_of(row), 1, product_.rank, right_rows_.data() + from, product_.columns, out.data(),
                  static_cast<std::int64_t>(count));
      } else {
        if (row < panel_row_ || row >= panel_row_ + panel_rows_) fill_panel(row);
        const std::int64_t place = (row - panel_row_) * product_.columns + from;
        std::copy_n(panel_.begin() + place, count, out.begin());
      }
      out = out.subspan(count);
      begin += static_cast<std::int64_t>(count);
    }
  }

 private:
  static constexpr std::int64_t kWidest = 16 << 10;  ///< Columns of which a panel stays in the cache.

  const float* left_of(std::int64_t row) const { return left_rows_.data() + (row - first_row_) * product_.rank; }
  /// Computes a few rows together, so that each number of the right factor is loaded once for all of them.
  void fill_panel(std::int64_t row) {
    panel_row_ = row;
    panel_rows_ = std::min(kMostRows, end_row_ - row);
    panel_.resize(static_cast<std::size_t>(panel_rows_ * product_.columns));
    kProducts(left_of(row), panel_rows_, product_.rank, right_rows_.data(), product_.columns, panel_.data(),
              product_.columns);
  }

  LowRankProduct product_;
  FactorRows left_, right_;
  std::int64_t first_row_ = 0, end_row_ = 0;  ///< The rows of what was taken, counted over all slices.
  std::int64_t panel_row_ = 0, panel_rows_ = 0;
  std::vector<float> panel_;  ///< The products of these rows.
  std::span<const float> left_rows_, right_rows_;
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
