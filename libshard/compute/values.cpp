#include "libshard/compute/values.h"

#include <algorithm>
#include <array>
#include <vector>

#include "libshard/compute/operand.h"
#include "libshard/compute/unpack.h"

namespace shard {

namespace {

std::span<float> row_of(const RowRange& range, std::int64_t row, std::span<float> numbers) {
  return numbers.subspan(static_cast<std::size_t>(row * range.columns), static_cast<std::size_t>(range.columns));
}

class LeafValues final : public Values {
 public:
  LeafValues(const Leaf& leaf, Readers readers) : operand_(readers, leaf) {}
  std::int64_t take(std::int64_t begin, std::int64_t end) override {
    const std::int64_t taken = std::min(end, begin + kMostTaken);
    operand_.read(begin, taken);
    return taken;
  }
  void compute(std::int64_t begin, std::span<float> out) override { operand_.read_floats(begin, out); }
  std::span<const std::byte> stored_bfloat16(std::int64_t begin, std::int64_t end) override {
    return operand_.dtype() == DType::kBfloat16 ? operand_.read(begin, end) : std::span<const std::byte>();
  }

 private:
  Operand operand_;
};

/// A sum with a product computes a few rows of it together, because a product needs less time per row then.
class SumValues final : public Values {
 public:
  SumValues(const WeightedSum& sum, Readers readers) : constant_(sum.constant), divisor_(sum.divisor) {
    for (const WeightedSum::Term& term : sum.terms) {
      terms_.push_back({term.weight, open_values(*term.value, readers)});
      if (const auto* const product = std::get_if<LowRankProduct>(&term.value->node)) columns_ = product->columns;
    }
    const auto terms = std::max<std::int64_t>(1, std::ssize(terms_));
    most_taken_ = std::max(kBlock, std::min(kMostTaken, kMostOfAll / terms));
  }

  std::int64_t take(std::int64_t begin, std::int64_t end) override {
    end = std::min(end, begin + most_taken_);
    for (const Term& term : terms_) end = term.values->take(begin, end);
    for (const Term& term : terms_) term.values->take(begin, end);  // An earlier term may have taken more.
    return end;
  }

  void compute(std::int64_t begin, std::span<float> out) override {
    sum_rows({.begin = begin, .columns = std::ssize(out)}, out);
  }

  /// Computes whole rows together if there is a product, strip by strip.
  void compute_range(std::int64_t begin, std::int64_t end, const TakeElements& each) override {
    if (columns_ == 0) return Values::compute_range(begin, end, each);
    for_each_strip(begin, end, [&](const RowRange& range) { sum_strip(range, each); });
  }

  /// Adds a product to a matrix that is stored in bfloat16, without its copy in float32.
  bool compute_bfloat16(std::int64_t begin, bool through_float16, std::span<std::byte> out) override {
    const bool is_one_product = columns_ > 0 && terms_.size() == 2 && terms_.front().weight == 1;
    if (!is_one_product || !has_first() || divisor_ != 1 || through_float16) return false;
    const std::int64_t end = begin + std::ssize(out) / kBfloat16Bytes;
    const std::span<const std::byte> stored = terms_.front().values->stored_bfloat16(begin, end);
    if (stored.empty()) return false;
    const Term& product = terms_.back();
    bool is_added = true;
    for_each_strip(begin, end, [&](const RowRange& range) {
      const std::int64_t at = (range.begin - begin) * kBfloat16Bytes;
      is_added =
          is_added && product.values->add_to_bfloat16(range, product.weight, stored.data() + at, out.data() + at);
    });
    return is_added;
  }

 private:
  struct Term {
    float weight;
    std::unique_ptr<Values> values;
  };

  static constexpr std::int64_t kMostOfAll = 1 << 20;  ///< Elements of all terms that are in memory.
  static constexpr std::int64_t kPanelRows = 16;
  static constexpr std::int64_t kPanelStrip = 288;  ///< Columns that are computed together, so that they stay in cache.
  static constexpr std::int64_t kBfloat16Bytes = 2;

  /// Whether the first term is not added to anything.
  bool has_first() const { return constant_ == 0 && !terms_.empty(); }

  /// Divides elements [begin, end) into parts of rows, a few rows together, and calls `each` with each part.
  template <class Each>
  void for_each_strip(std::int64_t begin, std::int64_t end, const Each& each) const {
    while (begin < end) {
      const std::int64_t left = end - begin, in_row = begin % columns_;
      const std::int64_t columns = std::min(columns_ - in_row, left);
      const std::int64_t rows = in_row == 0 ? std::clamp<std::int64_t>(left / columns_, 1, kPanelRows) : 1;
      for (std::int64_t from = 0; from < columns; from += kPanelStrip) {
        each(RowRange{begin + from, rows, std::min(kPanelStrip, columns - from), columns_});
      }
      begin += (rows - 1) * columns_ + columns;
    }
  }

  void sum_strip(const RowRange& range, const TakeElements& each) {
    std::array<float, kPanelRows * kPanelStrip> strip;
    sum_rows(range, strip);
    for (std::int64_t r = 0; r < range.rows; ++r) each(range.begin + r * range.stride, row_of(range, r, strip));
  }

  /// Fills the rows of `out` with the sums of a range.
  void sum_rows(const RowRange& range, std::span<float> out) {
    for (std::int64_t r = 0; r < range.rows; ++r) {
      const std::span<float> row = row_of(range, r, out);
      if (!has_first()) {
        std::ranges::fill(row, constant_);
        continue;
      }
      terms_.front().values->compute(range.begin + r * range.stride, row);
      if (terms_.front().weight != 1) multiply(row, terms_.front().weight);
    }
    for (const Term& term : std::span(terms_).subspan(has_first() ? 1 : 0)) {
      term.values->add_to(range, term.weight, out);
    }
    if (divisor_ == 1) return;
    for (std::int64_t r = 0; r < range.rows; ++r) divide(row_of(range, r, out), divisor_);
  }

  std::vector<Term> terms_;
  float constant_, divisor_;
  std::int64_t columns_ = 0;  ///< The columns of the products; 0: there are none.
  std::int64_t most_taken_;
};

std::unique_ptr<Values> open_values(const Leaf& leaf, Readers readers) {
  return std::make_unique<LeafValues>(leaf, readers);
}
std::unique_ptr<Values> open_values(const WeightedSum& sum, Readers readers) {
  return std::make_unique<SumValues>(sum, readers);
}

}  // namespace

void Values::compute_range(std::int64_t begin, std::int64_t end, const TakeElements& each) {
  std::array<float, kBlock> block;
  for (; begin < end; begin += kBlock) {
    const std::span<float> values = std::span(block).first(static_cast<std::size_t>(std::min(kBlock, end - begin)));
    compute(begin, values);
    each(begin, values);
  }
}

void Values::add_to(const RowRange& range, float weight, std::span<float> sums) {
  std::array<float, kBlock> block;
  const std::span<float> values = std::span(block).first(static_cast<std::size_t>(range.columns));
  for (std::int64_t r = 0; r < range.rows; ++r) {
    compute(range.begin + r * range.stride, values);
    add_weighted(row_of(range, r, sums), values, weight);
  }
}

std::unique_ptr<Values> open_values(const TensorExpression& expression, Readers readers) {
  return std::visit([&](const auto& node) { return open_values(node, readers); }, expression.node);
}

}  // namespace shard
