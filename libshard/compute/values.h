/// \file
/// Values: computes the elements of an expression in float32. Inside libshard/compute only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "libshard/checkpoint/reader.h"
#include "libshard/compute/formula.h"

namespace shard {

/// The readers of a ComputedReader, by Leaf::reader. Ownership: a view.
using Readers = std::span<const std::unique_ptr<Reader>>;

/// Elements of consecutive rows of a matrix: row r has those from begin + r * stride on. In memory, they are dense.
struct RowRange {
  std::int64_t begin = 0, rows = 1, columns = 0, stride = 0;
};

/// Receives consecutive elements, from number `begin` on. It may change them.
using TakeElements = std::function<void(std::int64_t begin, std::span<float> elements)>;

/// Computes elements range by range. `take(begin, end)` reads the operands of a range and returns its end; `compute`
/// then fills parts of it, in any order. Consecutive ranges read each stored byte once. Threads: one per object.
class Values {
 public:
  /// The largest numbers of elements in a range, and in one call of `compute`.
  static constexpr std::int64_t kMostTaken = 128 << 10, kBlock = 512;

  virtual ~Values() = default;
  /// Reads the operands of elements [begin, n), begin < n <= end. \returns n
  /// \throws Error  as the readers; kCorruption  an operand contradicts the formula
  virtual std::int64_t take(std::int64_t begin, std::int64_t end) = 0;
  /// Fills `out` with elements from `begin` on. \pre they are within the range that was taken last; at most kBlock
  virtual void compute(std::int64_t begin, std::span<float> out) = 0;
  /// Passes elements [begin, end) to `each`, a few at a time, row by row or a few rows together. The elements of a row
  /// come in order. \pre they are within the range that was taken last
  virtual void compute_range(std::int64_t begin, std::int64_t end, const TakeElements& each);
  /// Adds weight * element to the numbers in `sums`. \pre as compute; a row has at most kBlock elements
  virtual void add_to(const RowRange& range, float weight, std::span<float> sums);
  /// Fills `sums` with the sums of `numbers` and weight * element, all in bfloat16 and with rows range.stride numbers
  /// apart, if this is faster than to compute them in float32 and to round them. Results are the same. Alignment: any.
  /// \returns false if no faster way exists; nothing is changed then
  virtual bool add_to_bfloat16(const RowRange& /*range*/, float /*weight*/, const std::byte* /*numbers*/,
                               std::byte* /*sums*/) {
    return false;
  }
  /// The bytes of elements [begin, end), if these are stored in bfloat16 and nothing is computed; otherwise empty.
  /// Valid until the next call. \pre as compute_range
  virtual std::span<const std::byte> stored_bfloat16(std::int64_t /*begin*/, std::int64_t /*end*/) { return {}; }
  /// Fills `out` with elements in bfloat16, if this is faster than `compute` and a conversion. Results are the same.
  /// \pre as compute_range
  /// \param through_float16  see Formula  \returns false if no faster way exists; `out` is then to be filled again
  virtual bool compute_bfloat16(std::int64_t /*begin*/, bool /*through_float16*/, std::span<std::byte> /*out*/) {
    return false;
  }
};

/// Opens the values of an expression. \pre the leaves are located. Memory: at most 2 MiB per leaf, unless a leaf is
/// stored in a permuted order.
std::unique_ptr<Values> open_values(const TensorExpression& expression, Readers readers);
// The same for one kind. The factors of a product are in memory, or one slice of them.
std::unique_ptr<Values> open_values(const ScaledCodes& codes, Readers readers);
std::unique_ptr<Values> open_values(const LowRankProduct& product, Readers readers);
std::unique_ptr<Values> open_values(const NormalizedRows& rows, Readers readers);
std::unique_ptr<Values> open_values(const QuantizedScales& scales, Readers readers);
std::unique_ptr<Values> open_values(const QuantizedCodes& codes, Readers readers);

}  // namespace shard
