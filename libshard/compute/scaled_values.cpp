#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <optional>
#include <vector>

#include "libshard/compute/operand.h"
#include "libshard/compute/rounded_rows.h"
#include "libshard/compute/unpack.h"
#include "libshard/compute/values.h"
#include "libshard/core/box.h"
#include "libshard/core/checked.h"
#include "libshard/core/error.h"
#include "libshard/exec/cast.h"
#include "libshard/exec/small_float.h"

namespace shard {

namespace {

constexpr std::int64_t kMostPanel = 1 << 20;   ///< The limit in bytes on rows that are read together, see panel_rows.
constexpr std::int64_t kMostGroups = 4 << 20;  ///< The limit on scales in memory if rows have groups in any order.

/// Rows [first, last) and columns [from, to) of consecutive matrices. If there are several rows, they have all columns.
struct Part {
  std::int64_t first = 0, last = 0, from = 0, to = 0;

  bool contains(const Part& other) const {
    return first <= other.first && other.last <= last && from <= other.from && other.to <= to;
  }
  std::int64_t columns() const { return to - from; }
};

/// Packed matrices, with one part of them in memory.
class PackedMatrix {
 public:
  PackedMatrix(const PackedCodes& codes, Readers readers, std::int64_t slices, std::int64_t rows, std::int64_t columns)
      : codes_(codes), operand_(readers, codes.tensor), rows_(rows), columns_(columns) {
    is_down_ = codes.packing == Packing::kDownColumn;
    element_bytes_ = element_bytes(operand_.dtype());
    lines_ = is_down_ ? ceil_div(rows * codes.bits, kPackedWordBits) : rows;
    line_elements_ = operand_.elements() / std::max<std::int64_t>(1, slices * lines_);
  }

  /// The number of rows whose columns fill whole words, or 1 if these words exceed the limit. If these rows are read
  /// together, no word is read twice.
  std::int64_t panel_rows() const {
    if (!is_down_) return 1;
    const std::int64_t period = kPackedWordBits / std::gcd<std::int64_t>(kPackedWordBits, codes_.bits);
    return period * codes_.bits / kPackedWordBits * columns_ * 4 <= kMostPanel ? period : 1;
  }

  /// Reads the elements with the codes of a part.
  void load(const Part& part) {
    if (is_down_) {
      const std::int64_t first = line_of(part.first, 0), last = line_of(part.last - 1, codes_.bits - 1);
      const bool is_one = first == last;
      begin_ = first * line_elements_ + (is_one ? part.from : 0);
      kept_ = operand_.read(begin_, last * line_elements_ + (is_one ? part.to : columns_));
      return;
    }
    begin_ = element_of(part.first, part.from, false);
    kept_ = operand_.read(begin_, element_of(part.last - 1, part.to, true));
  }

  /// Adds a number to each word that was loaded last, modulo 2^32. \pre the tensor consists of words, not down a column
  void add_to_words(std::uint32_t number) {
    sums_.assign(kept_.begin(), kept_.end());
    for (std::size_t i = 0; i + sizeof number <= sums_.size(); i += sizeof number) {
      std::uint32_t word = 0;
      std::memcpy(&word, &sums_[i], sizeof word);
      word += number;
      std::memcpy(&sums_[i], &word, sizeof word);
    }
    kept_ = sums_;
  }

  /// The numbers of a row from column `from` on. \pre they are in the part that was loaded last
  void unpack(std::int64_t row, std::int64_t from, const CodeTable& table, std::span<float> out) const {
    if (is_down_) return unpack_down(row, from, out);
    const std::int64_t bit = from * codes_.bits, unit = unit_bits();
    const std::int64_t bytes = (row * line_elements_ - begin_) * element_bytes_ + bit / unit * (unit / 8);
    const std::span<const std::byte> bits = kept_.subspan(static_cast<std::size_t>(bytes));
    const std::int64_t first = bit % unit / codes_.bits;
    codes_.packing == Packing::kAwq ? unpack_awq(bits, first, table, out)
                                    : unpack_bits(bits, first, codes_.bits, table, out);
  }

  DType dtype() const { return float8_of(operand_.dtype()); }
  /// The bytes with the 4-bit codes of a row from an even column on. \pre as unpack
  std::span<const std::byte> halves(std::int64_t row, std::int64_t from) const {
    return kept_.subspan(static_cast<std::size_t>((row * line_elements_ - begin_) * element_bytes_ + from / 2));
  }
  /// The bytes with the 8-bit codes of a row from a column on. \pre as unpack
  std::span<const std::byte> bytes(std::int64_t row, std::int64_t from, std::int64_t count) const {
    return kept_.subspan(static_cast<std::size_t>((row * line_elements_ - begin_) * element_bytes_ + from),
                         static_cast<std::size_t>(count));
  }

 private:
  /// The number of bits after which a code begins at the start of a byte (AWQ: of a word) again.
  std::int64_t unit_bits() const {
    return codes_.packing == Packing::kAwq ? kPackedWordBits : std::lcm<std::int64_t>(8, codes_.bits);
  }
  /// The tensor's element from which a column's bits can be unpacked; for an end, the element after the last bits.
  std::int64_t element_of(std::int64_t row, std::int64_t column, bool is_end) const {
    const std::int64_t bits = 8 * element_bytes_, at = column * codes_.bits;
    return row * line_elements_ + (is_end ? ceil_div(at, bits) : at / unit_bits() * unit_bits() / bits);
  }
  /// The row of words that contains bit `bit` of the codes of a row.
  std::int64_t line_of(std::int64_t row, std::int64_t bit) const {
    return row / rows_ * lines_ + (row % rows_ * codes_.bits + bit) / kPackedWordBits;
  }
  std::span<const std::byte> words(std::int64_t line, std::int64_t from, std::int64_t count) const {
    const std::int64_t at = (line * line_elements_ + from - begin_) * 4;
    return kept_.subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(count * 4));
  }
  /// A code that is packed down a column may begin in one row of words and end in the next.
  void unpack_down(std::int64_t row, std::int64_t from, std::span<float> out) const {
    const std::int64_t low = line_of(row, 0), high = line_of(row, codes_.bits - 1);
    const auto shift = static_cast<int>(row % rows_ * codes_.bits % kPackedWordBits);
    unpack_column(words(low, from, std::ssize(out)), words(high, from, std::ssize(out)), shift, codes_.bits, out);
  }

  PackedCodes codes_;
  Operand operand_;
  std::int64_t rows_, columns_;
  bool is_down_;
  std::int64_t element_bytes_;
  std::int64_t lines_ = 0, line_elements_ = 0;  ///< The stored rows of a slice, and the elements of each.
  std::int64_t begin_ = 0;                      ///< The element with which kept_ begins.
  std::span<const std::byte> kept_;
  std::vector<std::byte> sums_;  ///< kept_ after add_to_words.
};

Error bad_scale(const Operand& operand, std::int64_t index) {
  return operand
      .wrong(fmt::format("scale {} of '{}' is NaN", index, operand.tensor().name), FindingKind::kShapeMismatch)
      .expected("an exponent from 0 to 254")
      .found(255);
}

/// Reads scales of blocks, and computes their final values from exponents, nested code books, or a second level of
/// scales.
class ScaleReader {
 public:
  ScaleReader(const BlockScales& scales, Readers readers, std::int64_t per_slice)
      : scales_(scales), operand_(readers, scales.tensor), per_slice_(std::max<std::int64_t>(1, per_slice)) {
    if (scales.second) second_.emplace(readers, *scales.second);
    if (!scales.nested) return;
    absmax_.emplace(readers, scales.nested->absmax);
    Operand book(readers, scales.nested->book);
    book.read_floats(0, std::span(book_).first(static_cast<std::size_t>(std::min<std::int64_t>(256, book.elements()))));
  }

  /// Reads the scales from number `begin` on.
  void read(std::int64_t begin, std::span<float> out) {
    if (scales_.nested) {
      read_nested(begin, out);
    } else if (scales_.are_exponents) {
      read_exponents(begin, out);
    } else if (scales_.are_float8) {
      unpack_e4m3(operand_.read(begin, begin + std::ssize(out)), out);
    } else {
      operand_.read_floats(begin, out);
    }
    if (second_) apply_second(begin, out);
  }

 private:
  void read_exponents(std::int64_t begin, std::span<float> out) {
    const std::span<const std::byte> codes = operand_.read(begin, begin + std::ssize(out));
    const auto nan = std::ranges::find(codes, std::byte{255});
    if (nan != codes.end()) throw bad_scale(operand_, begin + (nan - codes.begin()));
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = Float8E8m0fnu::decode(static_cast<std::uint8_t>(codes[i]));
  }

  void read_nested(std::int64_t begin, std::span<float> out) {
    const std::span<const std::byte> codes = operand_.read(begin, begin + std::ssize(out));
    const std::int64_t group = scales_.nested->group, first = begin / group;
    std::vector<float> absmax(static_cast<std::size_t>((begin + std::ssize(out) - 1) / group - first + 1));
    absmax_->read_floats(first, absmax);
    for (std::size_t i = 0; i < out.size(); ++i) {
      const auto at = static_cast<std::size_t>((begin + static_cast<std::int64_t>(i)) / group - first);
      out[i] = book_[static_cast<std::size_t>(codes[i])] * absmax[at] + scales_.nested->offset;
    }
  }

  void apply_second(std::int64_t begin, std::span<float> out) {
    for (std::size_t i = 0; i < out.size();) {
      const std::int64_t slice = (begin + static_cast<std::int64_t>(i)) / per_slice_;
      const auto end = std::min(out.size(), static_cast<std::size_t>((slice + 1) * per_slice_ - begin));
      float second = 0;
      second_->read_floats(second_->elements() == 1 ? 0 : slice, std::span(&second, 1));
      second /= scales_.second_divisor;
      scales_.divides ? divide(out.subspan(i, end - i), second) : multiply(out.subspan(i, end - i), second);
      i = end;
    }
  }

  BlockScales scales_;
  Operand operand_;
  std::int64_t per_slice_;
  std::optional<Operand> second_, absmax_;
  std::array<float, 256> book_{};
};

/// The number of each code.
CodeTable table_of(const ScaledCodes& codes, Readers readers) {
  CodeTable table;
  const auto bits = static_cast<unsigned>(codes.codes.bits);
  const auto count = std::size_t{1} << bits;
  const DType dtype = float8_of(readers[codes.codes.tensor.reader]->catalog().tensors[codes.codes.tensor.tensor].dtype);
  if (codes.kind == CodeKind::kBook) {
    Operand book(readers, *codes.book);
    book.read_floats(0, std::span(table.numbers).first(count));
  }
  for (std::size_t code = 0; code < count; ++code) {
    float& number = table.numbers[code];
    const auto integer = static_cast<std::int32_t>(code);
    const std::int32_t half = 1 << (bits - 1);
    if (codes.kind == CodeKind::kUnsigned) number = static_cast<float>(integer);
    if (codes.kind == CodeKind::kOffset) number = static_cast<float>(integer - half);
    if (codes.kind == CodeKind::kSigned) number = static_cast<float>(integer < half ? integer : integer - 2 * half);
    if (codes.kind == CodeKind::kFloat4) number = kFloat4Numbers[code];
    if (codes.kind != CodeKind::kFloat8) continue;
    const auto byte = static_cast<std::byte>(code);
    cast(dtype, std::span(&byte, 1), DType::kFloat32, std::as_writable_bytes(std::span(&number, 1)));
  }
  table.fill_pairs(codes.codes.packing == Packing::kHighFirst);
  return table;
}

class ScaledValues final : public Values {
 public:
  ScaledValues(const ScaledCodes& codes, Readers readers)
      : codes_(codes),
        grid_rows_(ceil_div(codes.rows, codes.scales.grid.block_rows)),
        grid_columns_(ceil_div(codes.columns, codes.scales.grid.block_columns)),
        matrix_(codes.codes, readers, codes.slices, codes.rows, codes.columns),
        table_(table_of(codes, readers)) {
    is_e4m3_ = codes.kind == CodeKind::kFloat8 && matrix_.dtype() == DType::kFloat8E4m3fn;
    if (codes.row_group) grid_rows_ = codes.groups;
    if (codes.column_group) grid_columns_ = codes.groups;
    scales_.emplace(codes.scales, readers, checked_mul(grid_rows_, grid_columns_));
    if (codes.row_group) group_.emplace(readers, *codes.row_group);
    if (codes.column_group) group_.emplace(readers, *codes.column_group);
    if (codes.added) added_.emplace(readers, *codes.added);
    if (codes.zeros) {
      zeros_.emplace(codes.zeros->codes, readers, codes.slices, grid_rows_, grid_columns_);
      const Leaf leaf = codes.zeros->codes.tensor;
      const bool is_signed = readers[leaf.reader]->catalog().tensors[leaf.tensor].dtype == DType::kInt8;
      const int bits = codes.zeros->codes.bits, last = (1 << bits) - 1;
      const bool is_in_words = kPackedWordBits % bits == 0;
      if (codes.zeros->are_less_one && is_in_words)
        word_of_ones_ = ~std::uint32_t{0} / static_cast<std::uint32_t>(last);
      const int added = codes.zeros->are_less_one && word_of_ones_ == 0 ? 1 : 0;
      for (int i = 0; i < 256; ++i) {
        const int number = is_signed && i > 127 ? i - 256 : i;
        zero_table_.numbers[static_cast<std::size_t>(i)] = static_cast<float>(added == 0 ? number : (i + added) & last);
      }
      zero_table_.fill_pairs();
    }
    if (codes.stated) check_stated(readers);
    const bool is_in_halves = codes.codes.bits == 4 && codes.scales.grid.block_columns % 2 == 0 &&
                              (codes.codes.packing == Packing::kAlongRow || codes.codes.packing == Packing::kHighFirst);
    const bool is_float8 = is_e4m3_ && !codes.zeros && codes.factor == 1;
    is_rounded_directly_ = !codes.column_group && !codes.added && codes.columns % 2 == 0 && (is_in_halves || is_float8);
  }

  /// Takes whole rows if several fit, otherwise a part of one row; never beyond the slice.
  std::int64_t take(std::int64_t begin, std::int64_t end) override {
    const std::int64_t columns = codes_.columns, row = begin / columns;
    const std::int64_t whole = (begin + kMostTaken) / columns;  // The end of the rows that fit.
    const std::int64_t panel = matrix_.panel_rows();
    std::int64_t last = std::max(whole, row + 1);
    if (panel > 1) {  // A panel is read completely, because its rows share words.
      const bool is_begun = row % panel != 0 || begin % columns != 0;
      const std::int64_t panel_end = row - row % panel + panel;
      last = is_begun ? panel_end : std::max(last - last % panel, panel_end);
    }
    if (whole <= row && panel == 1) end = std::min(end, begin + kMostTaken);
    end = std::min({end, last * columns, (row / codes_.rows + 1) * codes_.rows * columns});
    const bool is_one = (end - 1) / columns == row;
    taken_ = {row, (end - 1) / columns + 1, is_one ? begin % columns : 0, is_one ? (end - 1) % columns + 1 : columns};
    if (codes_.kind != CodeKind::kOne) matrix_.load(taken_);
    load_groups();
    return end;
  }

  bool compute_bfloat16(std::int64_t begin, bool through_float16, std::span<std::byte> out) override {
    if (!is_rounded_directly_ || begin % 2 != 0 || out.size() % 4 != 0) return false;
    if (is_e4m3_ ? through_float16 : codes_.scales.grid.block_columns < least_direct_block(through_float16))
      return false;
    while (!out.empty()) {
      const std::int64_t row = begin / codes_.columns, from = begin % codes_.columns;
      const auto count = std::min(std::ssize(out) / 2, codes_.columns - from);
      round_in_row(row, from, through_float16, out.first(static_cast<std::size_t>(2 * count)));
      out = out.subspan(static_cast<std::size_t>(2 * count));
      begin += count;
    }
    return true;
  }

  void compute(std::int64_t begin, std::span<float> out) override {
    while (!out.empty()) {
      const std::int64_t row = begin / codes_.columns, from = begin % codes_.columns;
      const auto count = std::min(out.size(), static_cast<std::size_t>(codes_.columns - from));
      compute_in_row(row, from, out.first(count));
      out = out.subspan(count);
      begin += static_cast<std::int64_t>(count);
    }
  }

 private:
  /// Checks that the tensor with the stated numbers, such as the shape of the weight, contains those that were derived.
  void check_stated(Readers readers) {
    Operand operand(readers, codes_.stated->first);
    const std::vector<std::int64_t>& wanted = codes_.stated->second;
    std::vector<std::int64_t> found(wanted.size());
    cast(operand.dtype(), operand.read(0, std::ssize(wanted)), DType::kInt64, std::as_writable_bytes(std::span(found)));
    if (found == wanted) return;
    throw operand
        .wrong(fmt::format("'{}' contradicts the shapes of its module", operand.tensor().name),
               FindingKind::kShapeMismatch)
        .expected(to_string(wanted))
        .found(to_string(found));
  }

  /// The row of the scales for a row of codes.
  std::int64_t grid_row_of(std::int64_t row) const {
    if (!codes_.row_group) return row / codes_.rows * grid_rows_ + row % codes_.rows / codes_.scales.grid.block_rows;
    return group_of_row_[static_cast<std::size_t>(row - taken_.first)];
  }

  /// Loads the scales and zero points of the codes that were taken.
  void load_groups() {
    if (codes_.row_group) load_row_groups();
    if (codes_.column_group) load_indices(0, codes_.columns, index_of_column_);
    const bool is_one = taken_.last - taken_.first == 1;
    const std::int64_t block = codes_.scales.grid.block_columns;
    Part part{grid_row_of(taken_.first), grid_row_of(taken_.last - 1) + 1, 0, grid_columns_};
    if (is_one && !codes_.column_group) part.from = taken_.from / block, part.to = (taken_.to - 1) / block + 1;
    if (codes_.row_group) {
      if (checked_mul(grid_rows_, grid_columns_) > kMostGroups) return;  // Then each row loads its own.
      part = {0, grid_rows_, 0, grid_columns_};
    }
    load_grid(part);
  }

  /// Reads the scales and zero points of a part of the grid, unless they are in memory.
  void load_grid(const Part& part) {
    if (loaded_.contains(part)) return;
    loaded_ = {};
    scale_.resize(static_cast<std::size_t>((part.last - part.first) * part.columns()));
    const std::int64_t begin = part.first * grid_columns_ + part.from;
    scales_->read(begin, scale_);
    if (added_) {
      number_.resize(scale_.size());
      added_->read_floats(begin, number_);
    }
    if (zeros_) {
      zero_.resize(scale_.size());
      for (std::int64_t row = part.first; row < part.last; ++row) {
        zeros_->load({row, row + 1, part.from, part.to});
        if (word_of_ones_ != 0) zeros_->add_to_words(word_of_ones_);
        const std::span<float> to = std::span(zero_).subspan(
            static_cast<std::size_t>((row - part.first) * part.columns()), static_cast<std::size_t>(part.columns()));
        zeros_->unpack(row, part.from, zero_table_, to);
      }
    }
    loaded_ = part;
  }

  /// Reads the groups of the rows or columns [begin, end), and checks that they have scales.
  void load_indices(std::int64_t begin, std::int64_t end, std::vector<std::int32_t>& out) {
    std::vector<std::int64_t> read(static_cast<std::size_t>(end - begin));
    cast(group_->dtype(), group_->read(begin, end), DType::kInt64, std::as_writable_bytes(std::span(read)));
    constexpr std::int64_t kUnset = -1;  // In every entry of an index that was never filled in.
    if (!first_index_) first_index_ = begin == 0 ? read.front() : read_index(0);
    const bool is_unset = *first_index_ == kUnset;
    const auto is_group = [&](std::int64_t index) {
      return is_unset ? index == kUnset : index >= 0 && index < codes_.groups;
    };
    const auto wrong = std::ranges::find_if_not(read, is_group);
    if (wrong != read.end()) {
      throw bad_index("names a group that has no scales")
          .expected(is_unset ? "-1, like the first" : fmt::format("less than {}", codes_.groups))
          .found(*wrong);
    }
    out.assign(read.begin(), read.end());
    if (!is_unset) return;
    if (codes_.group_size == 0) throw bad_index("is not filled in, and the size of its groups is unknown");
    fill_groups(out, begin, codes_.group_size);
  }

  std::int64_t read_index(std::int64_t at) {
    std::int64_t index = 0;
    cast(group_->dtype(), group_->read(at, at + 1), DType::kInt64, std::as_writable_bytes(std::span(&index, 1)));
    return index;
  }

  Error bad_index(std::string_view what) const {
    return group_->wrong(fmt::format("'{}' {}", group_->tensor().name, what), FindingKind::kOutOfBounds);
  }

  void load_row_groups() {
    load_indices(taken_.first % codes_.rows, (taken_.last - 1) % codes_.rows + 1, group_of_row_);
  }

  std::span<const float> in_grid(const std::vector<float>& numbers, std::int64_t row, std::int64_t column) const {
    if (numbers.empty()) return {};
    return std::span(numbers).subspan(
        static_cast<std::size_t>((row - loaded_.first) * loaded_.columns() + column - loaded_.from));
  }

  std::int64_t loaded_grid_row(std::int64_t row) {
    const std::int64_t grid_row = grid_row_of(row);
    if (grid_row < loaded_.first || grid_row >= loaded_.last) load_grid({grid_row, grid_row + 1, 0, grid_columns_});
    return grid_row;
  }

  void round_in_row(std::int64_t row, std::int64_t from, bool through_float16, std::span<std::byte> out) {
    const std::int64_t grid_row = loaded_grid_row(row), block = codes_.scales.grid.block_columns;
    const RowScales scales{.block = block,
                           .scales = in_grid(scale_, grid_row, from / block),
                           .zeros = in_grid(zero_, grid_row, from / block),
                           .factor = codes_.factor,
                           .through_float16 = through_float16};
    if (is_e4m3_) {
      round_e4m3(matrix_.bytes(row, from, std::ssize(out) / 2), from, scales, out);
    } else {
      round_halves(matrix_.halves(row, from), from, table_, scales, out);
    }
  }

  void compute_in_row(std::int64_t row, std::int64_t from, std::span<float> out) {
    if (codes_.kind == CodeKind::kOne) {
      std::ranges::fill(out, 1.0F);
    } else if (is_e4m3_) {
      unpack_e4m3(matrix_.bytes(row, from, std::ssize(out)), out);
    } else {
      matrix_.unpack(row, from, table_, out);
    }
    const std::int64_t grid_row = loaded_grid_row(row), block = codes_.scales.grid.block_columns;
    if (codes_.column_group) {
      apply_indexed(out, std::span<const std::int32_t>(index_of_column_).subspan(static_cast<std::size_t>(from)),
                    in_grid(scale_, grid_row, 0), in_grid(zero_, grid_row, 0));
    } else {
      apply_blocks(out, from, block, in_grid(scale_, grid_row, from / block), in_grid(zero_, grid_row, from / block));
    }
    if (codes_.factor != 1) multiply(out, codes_.factor);
    if (added_) add_blocks(out, from, block, in_grid(number_, grid_row, from / block));
  }

  ScaledCodes codes_;
  std::int64_t grid_rows_, grid_columns_;  ///< The grid of one slice.
  PackedMatrix matrix_;
  CodeTable table_, zero_table_;
  bool is_e4m3_ = false;
  bool is_rounded_directly_ = false;  ///< See compute_bfloat16.
  std::optional<ScaleReader> scales_;
  std::optional<PackedMatrix> zeros_;
  std::uint32_t word_of_ones_ = 0;  ///< A word whose codes are all 1, if it is added to those of `zeros_`.
  std::optional<Operand> group_, added_;
  std::optional<std::int64_t> first_index_;  ///< The first entry of `group_`, once it was read.
  std::vector<std::int32_t> group_of_row_,
      index_of_column_;                       ///< The first for rows that were taken; the second for all columns.
  Part taken_, loaded_;                       ///< Ranges of codes and of the grid.
  std::vector<float> scale_, zero_, number_;  ///< Numbers of the grid; `number_` from `added_`.
};

}  // namespace

std::unique_ptr<Values> open_values(const ScaledCodes& codes, Readers readers) {
  return std::make_unique<ScaledValues>(codes, readers);
}

}  // namespace shard
