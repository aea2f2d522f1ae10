#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "libshard/compute/operand.h"
#include "libshard/compute/products.h"
#include "libshard/compute/unpack.h"
#include "libshard/compute/values.h"
#include "libshard/core/checked.h"

namespace shard {

namespace {

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
      compute_products(part_of(begin, 1, count), out.first(static_cast<std::size_t>(count)));
      out = out.subspan(static_cast<std::size_t>(count));
      begin += count;
    }
  }

  void add_to(const RowRange& range, float weight, std::span<float> sums) override {
    if (!are_rows(range)) return Values::add_to(range, weight, sums);
    add_products(part_of(range.begin, range.rows, range.columns), weight, sums);
  }

  bool add_to_bfloat16(const RowRange& range, float weight, const std::byte* numbers, std::byte* sums) override {
    if (!are_rows(range)) return false;
    add_products_to_bfloat16(part_of(range.begin, range.rows, range.columns), weight, numbers, sums, range.stride);
    return true;
  }

 private:
  /// Whether a range is parts of consecutive rows of the product.
  bool are_rows(const RowRange& range) const {
    const bool is_row = range.begin % product_.columns + range.columns <= product_.columns;
    return is_row && (range.rows == 1 || range.stride == product_.columns);
  }

  ProductPart part_of(std::int64_t begin, std::int64_t rows, std::int64_t columns) const {
    const float* const left = left_rows_.data() + (begin / product_.columns - first_row_) * product_.rank;
    return {left, rows, product_.rank, packed_.data(), begin % product_.columns, columns};
  }

  /// Packs the right factor of a slice. Columns of the last strip that do not exist are 0.
  void pack(std::int64_t slice) {
    packed_slice_ = -1;  // Nothing is kept if a read fails.
    const std::int64_t columns = product_.columns, rank = product_.rank;
    packed_.resize(static_cast<std::size_t>(ceil_div(columns, kProductStrip) * kProductStrip * rank));
    for (std::int64_t k = 0; k < rank; ++k) {
      const std::span<const float> row = right_.load(slice, k, k + 1);
      for (std::int64_t at = 0; at < columns; at += kProductStrip) {
        std::copy_n(row.data() + at, std::min(kProductStrip, columns - at),
                    packed_.data() + at * rank + k * kProductStrip);
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
    scale(begin, out);
  }

  void compute_range(std::int64_t begin, std::int64_t end, const TakeElements& each) override {
    value_->compute_range(begin, end, [&](std::int64_t at, std::span<float> values) {
      scale(at, values);
      each(at, values);
    });
  }

 private:
  /// Calls `each` with each row of which `values` contains elements, and with those.
  template <class Each>
  void for_each_row(std::int64_t begin, std::span<float> values, const Each& each) const {
    while (!values.empty()) {
      const std::int64_t row = begin / columns_, count = std::min(std::ssize(values), (row + 1) * columns_ - begin);
      each(row, values.first(static_cast<std::size_t>(count)));
      values = values.subspan(static_cast<std::size_t>(count));
      begin += count;
    }
  }

  void scale(std::int64_t begin, std::span<float> values) const {
    for_each_row(begin, values, [this](std::int64_t row, std::span<float> in_row) {
      multiply(in_row, factors_[static_cast<std::size_t>(row - first_)]);
    });
  }

  /// Reads these rows whole.
  void load_factors(std::int64_t first, std::int64_t last) {
    factors_.clear();  // Nothing is kept if a read fails.
    std::vector<float> magnitudes(static_cast<std::size_t>(last - first));
    magnitude_.read_floats(first, magnitudes);
    std::vector<double> squares(magnitudes.size());
    const auto add_squares = [&](std::int64_t row, std::span<const float> values) {
      double& sum = squares[static_cast<std::size_t>(row - first)];
      for (const float each : values) sum += static_cast<double>(each) * static_cast<double>(each);
    };
    for (std::int64_t at = first * columns_; at < last * columns_;) {
      const std::int64_t taken = value_->take(at, last * columns_);
      value_->compute_range(
          at, taken, [&](std::int64_t begin, std::span<float> values) { for_each_row(begin, values, add_squares); });
      at = taken;
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
