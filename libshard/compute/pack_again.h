/// \file
/// Packs plain weights again by the schemes of quantized modules, and counts the codes and scales that come back.
///
/// A code comes back if its number is the one nearest to the weight divided by the stored scale. So all codes of a
/// correct dequantization do. A scale comes back if its block fills the range of codes, as it does if the scale was
/// computed from the block's weights. The largest weight then has the largest code (for integers with zero points, the
/// smallest and the largest weight have the first and the last code). A scale that is a power of two comes back if the
/// largest code in its block is more than half of the range, no matter how its exponent was rounded. Blocks of zeros do
/// not determine their scales, so they are not counted. For a model that was trained quantized, all scales come back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stop_token>
#include <vector>

#include "libshard/catalog/quantized.h"
#include "libshard/checkpoint/reader.h"
#include "libshard/compute/formula.h"

namespace shard {

struct PackedCounts {
  std::int64_t modules = 0;
  std::int64_t codes = 0, same_codes = 0;    ///< Codes, and those that come back.
  std::int64_t scales = 0, same_scales = 0;  ///< Scales, and those that come back.

  PackedCounts& operator+=(const PackedCounts& other);
};

/// The weights of the quantized modules of a checkpoint.
class PackAgain {
 public:
  /// \throws Error  as find_formulas; kUnsupported  no module has a weight
  PackAgain(std::unique_ptr<Reader> source, const QuantizationFacts& facts);

  std::size_t size() const { return formulas_.size(); }
  /// The plain name and shape of a weight.
  const Formula& weight(std::size_t index) const { return formulas_[index]; }
  /// Compares a weight with a plain tensor of its shape. \pre the tensor is located, castable and not damaged
  /// \throws Error  as the readers; kCorruption  an operand contradicts the formula; kInterrupted
  /// Threads: any. Memory: `max_memory_bytes`, and 12 bytes for each scale of a slice if the weight is stored
  /// transposed.
  PackedCounts compare(std::size_t index, const Reader& plain, std::uint32_t tensor, std::int64_t max_memory_bytes,
                       const std::stop_token& stop = {}) const;

 private:
  const Reader* source_;  ///< `computed_` owns it.
  std::vector<Formula> formulas_;
  /// For each formula: its values in float32 and their scales; if numbers are added, these, and its values without
  /// them.
  std::unique_ptr<Reader> computed_;
  std::vector<std::uint32_t> values_, scales_, added_;  ///< Their indices, by formula.
};

}  // namespace shard
