#include "libshard/compute/pack_again.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <span>
#include <utility>

#include "libshard/compute/computed_reader.h"
#include "libshard/compute/find_formulas.h"
#include "libshard/compute/operand.h"
#include "libshard/compute/unpack.h"
#include "libshard/core/checked.h"
#include "libshard/core/error.h"
#include "libshard/core/sort_unique.h"
#include "libshard/exec/cast.h"

namespace shard {

namespace {

constexpr std::int64_t kBlock = 32 << 10;  ///< Elements that are compared at once.

/// The numbers that the codes of a scheme represent.
class CodeNumbers {
 public:
  /// \param book  of CodeKind::kBook
  CodeNumbers(const ScaledCodes& codes, DType dtype, std::span<const float> book)
      : has_zeros_(codes.zeros || codes.added) {
    range_ = static_cast<double>((1 << (codes.range_bits > 0 ? codes.range_bits : codes.codes.bits)) - 1);
    is_sparse_ = codes.kind == CodeKind::kFloat4 || codes.kind == CodeKind::kFloat8;
    if (codes.kind == CodeKind::kFloat4) {
      sorted_.assign(kFloat4Numbers.begin(), kFloat4Numbers.end());
    } else if (codes.kind == CodeKind::kFloat8) {
      take_numbers_of(dtype);
    } else if (codes.kind == CodeKind::kBook) {
      sorted_.assign(book.begin(), book.end());
    } else {
      top_ = std::max(1.0, std::floor(range_ / 2));
      return;
    }
    std::erase_if(sorted_, [](double number) { return !std::isfinite(number); });
    sort_unique(sorted_);
    if (sorted_.empty()) sorted_ = {0};
    top_ = std::max(std::abs(sorted_.front()), std::abs(sorted_.back()));
    // An exponent is rounded up or down, so the largest code of a full block is at least half of the range.
    if (codes.scales.are_exponents || codes.scales.are_powers) top_ /= 2;
  }

  /// The number nearest to `value`. Zero points are not applied, so for integers it may be any integer.
  double nearest(double value) const {
    if (sorted_.empty()) return static_cast<double>(std::llrint(value));
    const auto above = std::ranges::lower_bound(sorted_, value);
    if (above == sorted_.begin()) return sorted_.front();
    if (above == sorted_.end()) return sorted_.back();
    return value - *(above - 1) <= *above - value ? *(above - 1) : *above;
  }

  /// True if adjacent numbers differ by more than 1/16 of their size.
  bool is_sparse() const { return is_sparse_; }

  /// True if a block fills the range of codes. `least` and `largest` are its extreme weights divided by its scale.
  bool fills(double least, double largest) const {
    if (has_zeros_) return nearest(std::max(largest, 0.0)) - nearest(std::min(least, 0.0)) >= range_;
    return std::max(std::abs(nearest(least)), std::abs(nearest(largest))) >= top_;
  }

 private:
  void take_numbers_of(DType dtype) {
    std::vector<std::uint8_t> all(256);
    std::iota(all.begin(), all.end(), std::uint8_t{0});
    std::vector<float> numbers(256);
    cast(dtype, std::as_bytes(std::span(all)), DType::kFloat32, std::as_writable_bytes(std::span(numbers)));
    sorted_.assign(numbers.begin(), numbers.end());
  }

  std::vector<double> sorted_;  ///< Without duplicates. Empty: all integers.
  bool has_zeros_, is_sparse_ = false;
  double range_ = 0, top_ = 0;  ///< The last unsigned code; the least number that the largest code of a full block has.
};

/// Finds the scale of an element. Elements are numbered in row-major order of the weight. Scales are grouped into
/// pages, which the elements visit one after another.
class Cells {
 public:
  Cells(const Formula& formula, const ScaledCodes& codes, std::span<const std::int32_t> groups)
      : codes_(codes), groups_(groups), is_transposed_(is_transposed(formula)) {
    rows_ = codes.row_group ? codes.groups : ceil_div(codes.rows, codes.scales.grid.block_rows);
    columns_ = codes.column_group ? codes.groups : ceil_div(codes.columns, codes.scales.grid.block_columns);
  }

  /// The number of scales in a page, whose elements are in any order: those of a slice, of a row of blocks, or one.
  std::int64_t per_page() const { return is_transposed_ ? checked_mul(rows_, columns_) : is_single() ? 1 : columns_; }

  struct Place {
    std::int64_t page = 0, cell = 0;
    std::int64_t count = 1;  ///< The number of consecutive elements with this scale, including this one.
  };
  Place at(std::int64_t element) const {
    const std::int64_t slice_size = codes_.rows * codes_.columns, slice = element / slice_size,
                       rest = element % slice_size;
    if (is_transposed_) {
      const std::int64_t row = rest % codes_.rows, column = rest / codes_.rows;
      return {slice, row_of(row) * columns_ + column_of(column), 1};
    }
    const std::int64_t row = rest / codes_.columns, column = rest % codes_.columns, block = column_of(column);
    const std::int64_t page = slice * rows_ + row_of(row);
    const std::int64_t end = std::min(codes_.columns, (block + 1) * codes_.scales.grid.block_columns);
    const std::int64_t count = codes_.column_group ? 1 : end - column;
    return is_single() ? Place{page * columns_ + block, 0, count} : Place{page, block, count};
  }

 private:
  static bool is_transposed(const Formula& formula) {
    const std::size_t dims = formula.shape.size();
    return dims >= 2 && formula.strides[dims - 1] != 1 && formula.shape[dims - 1] > 1 && formula.shape[dims - 2] > 1;
  }
  bool is_single() const { return codes_.scales.grid.block_rows == 1 && !codes_.row_group && !codes_.column_group; }
  std::int64_t row_of(std::int64_t row) const {
    return codes_.row_group ? groups_[static_cast<std::size_t>(row)] : row / codes_.scales.grid.block_rows;
  }
  std::int64_t column_of(std::int64_t column) const {
    return codes_.column_group ? groups_[static_cast<std::size_t>(column)] : column / codes_.scales.grid.block_columns;
  }

  const ScaledCodes& codes_;
  std::span<const std::int32_t> groups_;
  bool is_transposed_;
  std::int64_t rows_ = 1, columns_ = 1;  ///< Scales of a slice.
};

/// Counts the codes and scales of one weight that come back. Receives its elements in row-major order.
class Counter {
 public:
  Counter(const CodeNumbers& numbers, const Cells& cells) : numbers_(numbers), cells_(cells) {
    page_.resize(static_cast<std::size_t>(cells.per_page()));
    counts_.modules = 1;
  }

  void add(std::int64_t element, std::span<const float> values, std::span<const float> scales,
           std::span<const float> plain) {
    counts_.codes += std::ssize(values);
    for (std::size_t i = 0; i < values.size();) {
      const Cells::Place place = cells_.at(element + static_cast<std::int64_t>(i));
      if (place.page != number_) flush(place.page);
      Cell& cell = page_[static_cast<std::size_t>(place.cell)];
      cell.scale = scales[i];
      const std::size_t end = std::min(values.size(), i + static_cast<std::size_t>(place.count));
      for (; i < end; ++i) {
        counts_.same_codes += comes_back(values[i], scales[i], plain[i]) ? 1 : 0;
        cell.least = std::min(cell.least, plain[i]);
        cell.largest = std::max(cell.largest, plain[i]);
      }
    }
  }

  PackedCounts finish() {
    flush(-1);
    return counts_;
  }

 private:
  struct Cell {
    float scale = 0;
    float least = std::numeric_limits<float>::infinity(), largest = -std::numeric_limits<float>::infinity();
  };

  /// `value` was computed from code and scale in float32. `plain` is the weight to check.
  bool comes_back(float value, float scale, float plain) const {
    if (std::isnan(value) || std::isnan(plain)) return std::isnan(value) && std::isnan(plain);
    if (scale == 0 || !std::isfinite(scale) || value == plain) return value == plain;
    if (numbers_.is_sparse() && std::abs(value) > 1e-30F && std::abs(plain - value) <= std::abs(value) * 0x1p-8F) {
      return true;  // The usual case: rounding to bfloat16 changes less than half of the distance to the next number.
    }
    return numbers_.nearest(static_cast<double>(plain) / static_cast<double>(scale)) ==
           numbers_.nearest(static_cast<double>(value) / static_cast<double>(scale));
  }

  /// Counts the scales of the page, and starts the next one.
  void flush(std::int64_t next) {
    for (Cell& cell : page_) {
      const bool is_known = cell.largest >= cell.least && (cell.least != 0 || cell.largest != 0) &&
                            std::isfinite(cell.scale) && cell.scale != 0;
      if (is_known) {
        const auto scale = static_cast<double>(cell.scale);
        const double first = static_cast<double>(cell.least) / scale, last = static_cast<double>(cell.largest) / scale;
        ++counts_.scales;
        counts_.same_scales += numbers_.fills(std::min(first, last), std::max(first, last)) ? 1 : 0;
      }
      cell = Cell();
    }
    number_ = next;
  }

  const CodeNumbers& numbers_;
  const Cells& cells_;
  std::vector<Cell> page_;
  std::int64_t number_ = -1;  ///< The page in page_; -1: none.
  PackedCounts counts_;
};

std::vector<float> floats_of(const Reader& source, const Leaf& leaf) {
  Operand operand(source, leaf.tensor, 1 << 20);
  std::vector<float> all(static_cast<std::size_t>(operand.elements()));
  operand.read_floats(0, all);
  return all;
}

/// The group of each row or column; empty if groups are blocks of the grid.
std::vector<std::int32_t> groups_of(const ScaledCodes& codes, const Reader& source) {
  if (!codes.row_group && !codes.column_group) return {};
  const std::vector<float> stated = floats_of(source, codes.row_group ? *codes.row_group : *codes.column_group);
  std::vector<std::int32_t> groups(stated.size());
  for (std::size_t i = 0; i < groups.size(); ++i) {
    // A group that does not exist is refused when the values are read.
    const bool is_group = stated[i] >= -1 && stated[i] < static_cast<float>(codes.groups);
    groups[i] = is_group ? static_cast<std::int32_t>(stated[i]) : 0;
  }
  // An index that is only partly filled in is refused when the values are read.
  const bool is_unset = std::ranges::find(groups, -1) != groups.end();
  if (is_unset) fill_groups(groups, 0, std::max<std::int64_t>(1, codes.group_size));
  return groups;
}

/// A formula whose values are the scales of the weight, element by element.
Formula scales_of(const Formula& weight) {
  Formula scales = weight;
  scales.name += " (scales)";
  scales.aliases.clear();
  auto& codes = std::get<ScaledCodes>(scales.value.node);
  codes.kind = CodeKind::kOne;
  codes.zeros.reset();
  codes.added.reset();
  return scales;
}

/// A formula whose values are the numbers that are added to products.
Formula added_of(const Formula& weight) {
  Formula added = scales_of(weight);
  added.name = weight.name + " (added)";
  std::get<ScaledCodes>(added.value.node).scales.tensor = *std::get<ScaledCodes>(weight.value.node).added;
  return added;
}

/// A formula whose values are the products to which numbers are added.
Formula without_added(Formula weight) {
  std::get<ScaledCodes>(weight.value.node).added.reset();
  return weight;
}

}  // namespace

PackedCounts& PackedCounts::operator+=(const PackedCounts& other) {
  modules += other.modules;
  codes += other.codes;
  same_codes += other.same_codes;
  scales += other.scales;
  same_scales += other.same_scales;
  return *this;
}

PackAgain::PackAgain(std::unique_ptr<Reader> source, const QuantizationFacts& facts) : source_(source.get()) {
  Computation found = find_formulas(source->catalog(), DType::kFloat32, facts, small_reader(*source));
  if (found.formulas.empty()) {
    throw Error(ErrorCode::kUnsupported, "cannot pack again: no weight is quantized")
        .because("plain checkpoints are compared by their values");
  }
  formulas_ = std::move(found.formulas);
  Computation all;
  all.dropped.resize(source->catalog().tensors.size());
  std::iota(all.dropped.begin(), all.dropped.end(), 0U);
  for (Formula& formula : formulas_) {
    formula.through_float16 = false;
    all.formulas.push_back(without_added(formula));
    all.formulas.push_back(scales_of(formula));
    if (std::get<ScaledCodes>(formula.value.node).added) all.formulas.push_back(added_of(formula));
  }
  std::vector<std::unique_ptr<Reader>> readers;
  readers.push_back(std::move(source));
  computed_ = std::make_unique<ComputedReader>(std::move(readers), std::move(all));
  const Catalog& catalog = computed_->catalog();
  for (const Formula& formula : formulas_) {
    values_.push_back(catalog.index_of(*catalog.find(formula.name)));
    scales_.push_back(catalog.index_of(*catalog.find(scales_of(formula).name)));
    const bool has_added = std::get<ScaledCodes>(formula.value.node).added.has_value();
    added_.push_back(has_added ? catalog.index_of(*catalog.find(added_of(formula).name)) : kNoIndex);
  }
  std::vector<std::uint32_t> located(catalog.tensors.size());
  std::iota(located.begin(), located.end(), 0U);
  computed_->locate(located);
}

PackedCounts PackAgain::compare(std::size_t index, const Reader& plain, std::uint32_t tensor,
                                std::int64_t max_memory_bytes, const std::stop_token& stop) const {
  const Formula& formula = formulas_[index];
  const auto& codes = std::get<ScaledCodes>(formula.value.node);
  const std::int64_t elements = checked_numel(formula.shape);
  if (elements == 0) return {.modules = 1};
  const std::vector<float> book = codes.book ? floats_of(*source_, *codes.book) : std::vector<float>();
  const std::vector<std::int32_t> groups = groups_of(codes, *source_);
  const CodeNumbers numbers(codes, float8_of(source_->catalog().tensors[codes.codes.tensor.tensor].dtype), book);
  const Cells cells(formula, codes, groups);
  Counter counter(numbers, cells);
  const std::int64_t memory = std::max<std::int64_t>(1 << 20, max_memory_bytes / 4);
  Operand values(*computed_, values_[index], memory), scales(*computed_, scales_[index], memory),
      found(plain, tensor, memory);
  std::optional<Operand> added;
  if (added_[index] != kNoIndex) added.emplace(*computed_, added_[index], memory);
  std::vector<float> value, scale, weight, sum;
  for (std::int64_t begin = 0; begin < elements; begin += kBlock) {
    check_stop(stop);
    const auto read = [&](Operand& from, std::vector<float>& to) {
      to.resize(static_cast<std::size_t>(std::min(elements - begin, kBlock)));
      from.read_floats(begin, to);
    };
    read(values, value);
    read(scales, scale);
    read(found, weight);
    if (added) {  // The rest is the product of codes and scales.
      read(*added, sum);
      std::ranges::transform(weight, sum, weight.begin(), std::minus());
    }
    counter.add(begin, value, scale, weight);
  }
  return counter.finish();
}

}  // namespace shard
