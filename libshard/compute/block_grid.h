/// \file
/// The blocks of a weight that have one scale each, from the numbers of scales. Pure. Inside libshard/compute only.
#pragma once

#include <cstdint>
#include <span>

#include "libshard/catalog/quantized.h"
#include "libshard/compute/formula.h"

namespace shard {

/// A stack of matrices: the last two dimensions of a shape, and the product of those before.
struct Matrices {
  std::int64_t slices = 1, rows = 1, columns = 1;
};
Matrices matrices_of(std::span<const std::int64_t> shape);

/// Sets the grid of `codes` from the shapes of its weight and its scales. If there is one scale for all, the slices
/// become rows of one matrix. Both sides of a block are those of one scheme: a block or a group that `schemes` state,
/// whole rows or columns, or the usual blocks if none is stated.
/// \returns false if none of them gives this number of scales
/// \pre `codes` has the slices, rows and columns of the weight
bool choose_grid(std::span<const std::int64_t> weight, std::span<const std::int64_t> scales,
                 std::span<const QuantizationScheme> schemes, ScaledCodes& codes);

/// Whether a row of scales has one for each column of the codes as they are stored, and counts for several rows.
bool are_of_columns(std::span<const std::int64_t> weight, std::span<const std::int64_t> scales);

/// Whether `grid` has one block per scale.
bool fits_grid(const Matrices& codes, const Matrices& scales, BlockGrid grid);

}  // namespace shard
