#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "libshard/compute/operand.h"
#include "libshard/compute/values.h"
#include "libshard/core/checked.h"
#include "libshard/exec/cast.h"

namespace shard {

namespace {

/// The numbers of the codes.
struct CodeRange {
  float least, largest;
  float margin;  ///< A value may exceed them by this much, because it is rounded to them anyway.
};

CodeRange range_of(const BlockQuantization& of) {
  if (of.is_float8) return {-448, 448, 16};
  const float half = std::ldexp(1.0F, of.bits - 1);
  return {-half, half - 1, 0.5F};
}

/// The scales of consecutive rows of blocks. A panel is one such row: `block_rows` matrix rows, or fewer at the end.
class BlockPanels {
 public:
  BlockPanels(const BlockQuantization& of, Readers readers)
      : of_(of),
        range_(range_of(of)),
        value_(open_values(*of.value, readers)),
        stored_(readers, of.scales),
        per_slice_(ceil_div(of.rows, of.grid.block_rows)),
        blocks_(ceil_div(of.columns, of.grid.block_columns)) {}

  std::int64_t blocks() const { return blocks_; }  ///< In a panel.
  std::int64_t panel_of(std::int64_t element) const {
    const std::int64_t row = element / of_.columns;
    return row / of_.rows * per_slice_ + row % of_.rows / of_.grid.block_rows;
  }

  /// Computes the scales of panels [first, last).
  void load(std::int64_t first, std::int64_t last) {
    if (first >= first_ && last <= first_ + std::ssize(scales_) / blocks_) return;
    scales_.clear();  // Nothing is kept if a read fails.
    first_ = first;
    std::vector<float> scales(static_cast<std::size_t>((last - first) * blocks_));
    stored_.read_floats(first * blocks_, scales);
    find_extremes(first, last);
    for (std::size_t i = 0; i < scales.size(); ++i) {
      if (!fits(extremes_[i], scales[i])) scales[i] = least_scale(extremes_[i], scales[i]);
    }
    scales_ = std::move(scales);
  }

  /// The scales of a panel. \pre it was loaded last
  std::span<const float> scales(std::int64_t panel) const {
    return std::span(scales_).subspan(static_cast<std::size_t>((panel - first_) * blocks_),
                                      static_cast<std::size_t>(blocks_));
  }
  Values& value() { return *value_; }
  const CodeRange& range() const { return range_; }

 private:
  struct Extremes {
    float least = 0, largest = 0;
  };

  /// The first element of a panel, or the number of all elements after the last one.
  std::int64_t begin_of(std::int64_t panel) const {
    return (panel / per_slice_ * of_.rows + panel % per_slice_ * of_.grid.block_rows) * of_.columns;
  }

  /// Sets the least and the largest value of each block of panels [first, last), and 0 if it is between them. NaN does
  /// not count.
  void find_extremes(std::int64_t first, std::int64_t last) {
    extremes_.assign(static_cast<std::size_t>((last - first) * blocks_), {});
    const std::int64_t end = begin_of(last);
    std::array<float, Values::kBlock> block;
    for (std::int64_t at = begin_of(first); at < end;) {
      const std::int64_t taken = value_->take(at, end);
      while (at < taken) {
        const std::int64_t count = std::min(Values::kBlock, taken - at);
        const std::span<float> values = std::span(block).first(static_cast<std::size_t>(count));
        value_->compute(at, values);
        add_extremes(at, first, values);
        at += count;
      }
    }
  }

  void add_extremes(std::int64_t at, std::int64_t first_panel, std::span<const float> values) {
    while (!values.empty()) {
      const std::int64_t column = at % of_.columns, number = column / of_.grid.block_columns;
      const std::int64_t end = std::min(of_.columns, (number + 1) * of_.grid.block_columns);
      const auto count = static_cast<std::size_t>(std::min(std::ssize(values), end - column));
      Extremes& extremes = extremes_[static_cast<std::size_t>((panel_of(at) - first_panel) * blocks_ + number)];
      for (const float each : values.first(count)) {
        extremes.least = std::min(extremes.least, each);
        extremes.largest = std::max(extremes.largest, each);
      }
      values = values.subspan(count);
      at += static_cast<std::int64_t>(count);
    }
  }

  bool fits(const Extremes& extremes, float scale) const {
    if (!(scale > 0) || !std::isfinite(scale)) return extremes.least == 0 && extremes.largest == 0;
    return extremes.largest / scale <= range_.largest + range_.margin &&
           extremes.least / scale >= range_.least - range_.margin;
  }

  /// The least power of two that is not less. \pre scale > 0
  static float power_above(float scale) {
    int exponent = 0;
    const float fraction = std::frexp(scale, &exponent);  // At least 0.5, and less than 1.
    return std::ldexp(1.0F, fraction == 0.5F ? exponent - 1 : exponent);
  }

  /// The largest magnitude in half of the range, as compressed-tensors chooses scales. `stored` if no number would do.
  float least_scale(const Extremes& extremes, float stored) const {
    const float largest = std::max(extremes.largest, -extremes.least);
    const float least = largest / ((range_.largest - range_.least) / 2);
    const float scale = of_.has_powers && std::isfinite(least) && least > 0 ? power_above(least) : least;
    std::array<std::byte, 8> bytes;
    const auto rounded = std::span(bytes).first(static_cast<std::size_t>(element_bytes(stored_.dtype())));
    float result = 0;
    cast(DType::kFloat32, std::as_bytes(std::span(&scale, 1)), stored_.dtype(), rounded);
    cast(stored_.dtype(), rounded, DType::kFloat32, std::as_writable_bytes(std::span(&result, 1)));
    return result > 0 && std::isfinite(result) ? result : stored;
  }

  const BlockQuantization& of_;
  CodeRange range_;
  std::unique_ptr<Values> value_;
  Operand stored_;
  std::int64_t per_slice_, blocks_;
  std::int64_t first_ = 0;  ///< The panel with which scales_ begins.
  std::vector<float> scales_;
  std::vector<Extremes> extremes_;  ///< By block of the panels.
};

class QuantizedScaleValues final : public Values {
 public:
  QuantizedScaleValues(const QuantizedScales& scales, Readers readers) : panels_(*scales.of, readers) {}

  std::int64_t take(std::int64_t begin, std::int64_t end) override {
    panel_ = begin / panels_.blocks();
    panels_.load(panel_, panel_ + 1);
    return std::min(end, (panel_ + 1) * panels_.blocks());
  }
  void compute(std::int64_t begin, std::span<float> out) override {
    const auto first = static_cast<std::size_t>(begin - panel_ * panels_.blocks());
    std::ranges::copy(panels_.scales(panel_).subspan(first, out.size()), out.begin());
  }

 private:
  BlockPanels panels_;
  std::int64_t panel_ = 0;
};

class QuantizedCodeValues final : public Values {
 public:
  QuantizedCodeValues(const QuantizedCodes& codes, Readers readers) : of_(*codes.of), panels_(of_, readers) {}

  std::int64_t take(std::int64_t begin, std::int64_t end) override {
    end = std::min(end, begin + kMostTaken);
    panels_.load(panels_.panel_of(begin), panels_.panel_of(end - 1) + 1);
    return panels_.value().take(begin, end);
  }

  void compute(std::int64_t begin, std::span<float> out) override {
    panels_.value().compute(begin, out);
    while (!out.empty()) {
      const std::int64_t column = begin % of_.columns, number = column / of_.grid.block_columns;
      const std::int64_t end = std::min(of_.columns, (number + 1) * of_.grid.block_columns);
      const auto count = static_cast<std::size_t>(std::min(std::ssize(out), end - column));
      divide(out.first(count), panels_.scales(panels_.panel_of(begin))[static_cast<std::size_t>(number)]);
      out = out.subspan(count);
      begin += static_cast<std::int64_t>(count);
    }
  }

 private:
  /// Replaces values by codes. NaN stays NaN.
  void divide(std::span<float> values, float scale) const {
    const CodeRange& range = panels_.range();
    if (scale == 0) {
      std::ranges::fill(values, 0.0F);
      return;
    }
    for (float& each : values) {
      float code = each / scale;
      code = code > range.largest ? range.largest : code;
      code = code < range.least ? range.least : code;
      each = of_.is_float8 ? code : std::nearbyint(code);
    }
  }

  const BlockQuantization& of_;
  BlockPanels panels_;
};

}  // namespace

std::unique_ptr<Values> open_values(const QuantizedScales& scales, Readers readers) {
  return std::make_unique<QuantizedScaleValues>(scales, readers);
}

std::unique_ptr<Values> open_values(const QuantizedCodes& codes, Readers readers) {
  return std::make_unique<QuantizedCodeValues>(codes, readers);
}

}  // namespace shard
