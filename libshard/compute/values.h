/// \file
/// Values: computes the elements of an expression in float32. Inside libshard/compute only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "libshard/checkpoint/reader.h"
#include "libshard/compute/formula.h"

namespace shard {

/// The readers of a ComputedReader, by Leaf::reader. Ownership: a view.
using Readers = std::span<const std::unique_ptr<Reader>>;

/// A caller takes ranges: `take(begin, end)` returns where a range that reads well ends, then `compute` fills parts of
/// it in any order. Ranges that follow one another read each stored byte once. Threads: one each.
class Values {
 public:
  /// Elements of a range at most, and of one call of `compute`.
  static constexpr std::int64_t kMostTaken = 128 << 10, kBlock = 2048;

  virtual ~Values() = default;
  /// Reads the operands of elements [begin, n), begin < n <= end. \returns n
  /// \throws Error  as the readers; kCorruption  an operand contradicts the formula
  virtual std::int64_t take(std::int64_t begin, std::int64_t end) = 0;
  /// Fills `out` with elements from `begin` on. \pre they are within the range that was taken last; at most kBlock
  virtual void compute(std::int64_t begin, std::span<float> out) = 0;
  /// The same in bfloat16, two bytes each, if there is a faster way than by `compute`. Results are the same.
  /// \param through_float16  see Formula  \returns false if there is none for these elements; nothing is filled then
  virtual bool compute_bfloat16(std::int64_t /*begin*/, bool /*through_float16*/, std::span<std::byte> /*out*/) {
    return false;
  }
};

/// \pre the leaves are located. Memory: 2 MiB for each leaf at most, unless a leaf is stored in a permuted order.
std::unique_ptr<Values> open_values(const TensorExpression& expression, Readers readers);
// The same for one kind. The factors of a product are in memory, or one slice of them.
std::unique_ptr<Values> open_values(const ScaledCodes& codes, Readers readers);
std::unique_ptr<Values> open_values(const LowRankProduct& product, Readers readers);
std::unique_ptr<Values> open_values(const NormalizedRows& rows, Readers readers);

}  // namespace shard
