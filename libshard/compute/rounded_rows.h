/// \file
/// Inner loops that round to bfloat16: numbers, and rows of packed codes directly. Pure functions over spans. Inside
/// libshard/compute only.
///
/// Results for codes are equal to those of unpack.h followed by a conversion. The loops take a third of the time,
/// because they store no float32. A block of 4-bit codes has only 16 products, which are rounded once and then looked
/// up for 16 codes at a time.
///
/// They are compiled for any CPU and for AVX2, with equal results.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "libshard/compute/unpack.h"

namespace shard {

/// The scales of one row: the value of a code is (number of the code - zero) * scale * factor.
struct RowScales {
  std::int64_t block = 1;         ///< Columns with one scale.
  std::span<const float> scales;  ///< From the block of the first code on.
  std::span<const float> zeros;   ///< One per scale. Empty if there are none.
  float factor = 1;
  bool through_float16 = false;  ///< Rounds to float16 first.
};

/// Rounds each number once, as cast does. It takes two thirds of its time, because it does not count overflows.
void round_to_bfloat16(std::span<const float> values, std::span<std::byte> out);

/// The least block of 4-bit codes for which round_halves is faster than unpacking, scaling and rounding them.
std::int64_t least_direct_block(bool through_float16);

/// Converts codes of 4 bits, in the order of table.pairs. `first` is the column of the first code. `out` receives two
/// bytes per code. \pre `first`, the block and the number of codes are even; `codes` begins with the first code
void round_halves(std::span<const std::byte> codes, std::int64_t first, const CodeTable& table, const RowScales& scales,
                  std::span<std::byte> out);
/// Converts codes that are E4M3 (float8_e4m3fn), without zeros, factor and float16.
void round_e4m3(std::span<const std::byte> codes, std::int64_t first, const RowScales& scales,
                std::span<std::byte> out);

}  // namespace shard
