/// \file
/// Formula: the value of a logical tensor as an expression over stored tensors. Plain data.
///
/// An expression has elements in one order, numbered from 0: the order in which its stored operands hold them, so that
/// reading a range of the result reads a range of each operand. `Formula::strides` maps the tensor's indices onto these
/// numbers. A transposed form therefore costs a stride and no copy.
///
/// Arithmetic is in float32, each operation rounded once, in the order that the fields' comments state. The sums of a
/// LowRankProduct consist of fused multiply-adds. The result is rounded once to the tensor's dtype.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "libshard/core/dtype.h"

namespace shard {

struct Catalog;
struct Object;
struct Tensor;

/// A tensor of one of the readers that a ComputedReader has. Its elements are in row-major order.
struct Leaf {
  std::uint32_t tensor = 0;  ///< Index into that reader's catalog.
  std::uint32_t reader = 0;
  friend bool operator==(const Leaf&, const Leaf&) = default;
};

/// Bits of a word of packed codes.
inline constexpr std::int64_t kPackedWordBits = 32;

/// The order of packed codes in the bits of a tensor's rows.
enum class Packing : std::uint8_t {
  kAlongRow,   ///< A row is a little-endian string of bits; code i has bits [i * bits, (i + 1) * bits).
  kHighFirst,  ///< Codes of 4 bits along a row, the first one of a byte in its upper half.
  kAwq,        ///< Codes of 4 bits along a row; nibble n of a 32-bit word holds column (0, 2, 4, 6, 1, 3, 5, 7)[n].
  kDownColumn  ///< A column of 32-bit words is such a string of bits; code i is the column's element in row i.
};

/// Matrices of codes one after another, `slices` of them with `rows` x `columns` codes each.
struct PackedCodes {
  Leaf tensor;
  int bits = 8;  ///< 1 to 8.
  Packing packing = Packing::kAlongRow;
  friend bool operator==(const PackedCodes&, const PackedCodes&) = default;
};

/// The number of a code, before its zero point.
enum class CodeKind : std::uint8_t {
  kUnsigned,  ///< The code itself.
  kOffset,    ///< The code less 2^(bits - 1).
  kSigned,    ///< Two's complement.
  kFloat4,    ///< E2M1.
  kFloat8,    ///< A number of the tensor's dtype, see float8_of.
  kBook,      ///< An entry of a code book.
  kOne        ///< 1, so that the values are the scales. No code is read.
};

/// The dtype of 8-bit floating-point codes in a tensor of that dtype: words of 32 bits contain float8_e4m3fn.
constexpr DType float8_of(DType stored) { return stored == DType::kUint32 ? DType::kFloat8E4m3fn : stored; }

/// A matrix of numbers, each for a block of codes. The scales of slice s are the s-th of `slices` matrices with
/// ceil(rows / block_rows) x ceil(columns / block_columns) entries.
struct BlockGrid {
  std::int64_t block_rows = 1, block_columns = 1;
  friend bool operator==(const BlockGrid&, const BlockGrid&) = default;
};

struct BlockScales {
  Leaf tensor;
  BlockGrid grid;
  bool are_exponents = false;  ///< Bytes e that mean 2^(e - 127). 255 is NaN, which is refused.
  bool are_powers = false;     ///< Numbers that are powers of two.
  bool are_float8 = false;     ///< Bytes of float8_e4m3fn, with any dtype of the tensor.
  /// Scales that are codes themselves: entry c of `book` times absmax number i / `group` plus `offset`, as bitsandbytes
  /// nests them.
  struct Nested {
    Leaf book, absmax;
    std::int64_t group = 256;
    float offset = 0;
    friend bool operator==(const Nested&, const Nested&) = default;
  };
  std::optional<Nested> nested{};
  /// One number for all scales, or one per slice. The scales are multiplied or divided by it before they are applied.
  std::optional<Leaf> second{};
  bool divides = false;
  float second_divisor = 1;  ///< `second` is divided by it before it is applied.
  friend bool operator==(const BlockScales&, const BlockScales&) = default;
};

/// Numbers on the grid of the scales that are subtracted from the codes' numbers.
struct ZeroPoints {
  PackedCodes codes;
  /// 1 was subtracted before they were stored, from all codes of a word at once, so that a borrow went to the next code
  /// of the word. Codes that may extend over two words have none.
  bool are_less_one = false;
  friend bool operator==(const ZeroPoints&, const ZeroPoints&) = default;
};

/// (number of the code - zero point) * scale * factor + added number.
struct ScaledCodes {
  std::int64_t slices = 1, rows = 0, columns = 0;
  PackedCodes codes;
  CodeKind kind = CodeKind::kUnsigned;
  std::optional<Leaf> book{};  ///< With kBook: 2^bits numbers.
  BlockScales scales;
  std::optional<ZeroPoints> zeros{};
  std::optional<Leaf> added{};  ///< Numbers on the grid of the scales.
  /// The group of each row, or of each column: the row or column of the scales, in place of a division by the block.
  std::optional<Leaf> row_group{}, column_group{};
  std::int64_t groups = 0;      ///< With one of them: how many groups the scales have.
  std::int64_t group_size = 0;  ///< With one of them: the size of groups if all entries are -1. 0: unknown.
  float factor = 1;             ///< 1: no multiplication.
  int range_bits = 0;           ///< Bits of integers that are stored in wider codes. 0: as many as a code has.
  /// Numbers that a stored tensor must contain, such as the shape of the weight. Checked before the first element is
  /// computed.
  std::optional<std::pair<Leaf, std::vector<std::int64_t>>> stated{};
  friend bool operator==(const ScaledCodes&, const ScaledCodes&) = default;
};

struct TensorExpression;

/// The sum of weight * expression over all terms, in their order, beginning with the constant. A constant of 0 is not
/// added, so that -0 stays. The sum is divided by `divisor` unless it is 1. All terms have equally many elements.
struct WeightedSum {
  struct Term {
    float weight = 1;
    std::shared_ptr<const TensorExpression> value;
  };
  std::vector<Term> terms;
  float constant = 0, divisor = 1;
};

/// Matrices as numbers of a leaf: entry (slice, i, j) is its element slice * strides[0] + i * strides[1] + j *
/// strides[2].
struct Factor {
  Leaf tensor;
  std::array<std::int64_t, 3> strides{};
};

/// Products of a `rows` x `rank` and a `rank` x `columns` matrix, `slices` of them one after another. Each element is
/// a sum of `rank` products, in their order, beginning with 0.
struct LowRankProduct {
  std::int64_t slices = 1, rows = 0, columns = 0, rank = 0;
  Factor left, right;
};

/// The rows of a matrix, each multiplied by its magnitude and divided by its Euclidean norm, computed in double.
struct NormalizedRows {
  std::shared_ptr<const TensorExpression> value;
  std::int64_t columns = 0;
  Leaf magnitude;  ///< One number for each row.
};

/// Matrices that are quantized again in the blocks of their stored codes.
struct BlockQuantization {
  std::shared_ptr<const TensorExpression> value;
  std::int64_t slices = 1, rows = 0, columns = 0;
  BlockGrid grid;
  Leaf codes, scales;     ///< The stored ones.
  bool is_float8 = true;  ///< Codes are float8_e4m3fn, or else integers of `bits` bits.
  int bits = 8;
  bool has_powers = false;  ///< Scales are powers of two.
};

/// The scales of blocks, in the order of the stored scales. A block keeps its stored scale if all its values fit the
/// codes. Otherwise it gets the least one that they fit, rounded to the dtype of the stored scales, or up to a power of
/// two.
struct QuantizedScales {
  std::shared_ptr<const BlockQuantization> of;
};

/// Each value divided by the scale of its block (as QuantizedScales has it), at most the largest code. Integers are
/// rounded to nearest even. If a scale is 0, so is the code.
struct QuantizedCodes {
  std::shared_ptr<const BlockQuantization> of;
};

struct TensorExpression {
  std::variant<Leaf, ScaledCodes, WeightedSum, LowRankProduct, NormalizedRows, QuantizedScales, QuantizedCodes> node;
};

/// Owns its data, except that indices of tensors refer to the readers.
struct Formula {
  std::string name;
  std::vector<std::string> aliases{};  ///< Other names of the tensor, which is computed once.
  DType dtype{};
  std::vector<std::int64_t> shape, strides;  ///< Strides in elements of the expression.
  TensorExpression value;
  bool through_float16 = false;  ///< Rounds to float16 before `dtype`, as references that compute in it do.
  /// If it is not 0, elements are 32-bit words of integer codes with this many bits (Packing::kAlongRow) plus
  /// 2^(bits - 1), and the expression has 32 / bits values for each.
  int packed_bits = 0;
};

/// Sets the shape of a formula whose elements are in row-major order.
void set_shape(Formula& formula, std::span<const std::int64_t> shape);

/// A formula with the name, dtype and shape of a stored tensor, in row-major order. Its expression and other names are
/// for the caller.
Formula formula_like(const Tensor& tensor);

/// Tensors to compute, and the tensors of the first reader that are not in the result, such as the operands.
struct Computation {
  std::vector<Formula> formulas;
  std::vector<std::uint32_t> dropped;
  /// Selects the objects of the first reader that are kept. Empty: all.
  std::function<bool(const Object& object)> keeps_object{};
  std::vector<std::string> warnings{};  ///< Added to those of the first reader.
};

/// The tensors that an expression reads.
std::vector<Leaf> leaves_of(const TensorExpression& expression);

/// Turns formulas for codes that `catalog` stores once under several names into one formula with aliases. Cost: linear.
void join_tied(const Catalog& catalog, std::vector<Formula>& formulas);

}  // namespace shard
