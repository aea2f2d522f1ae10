/// \file
/// Inner loops from a row of packed codes straight to bfloat16: pure functions over spans. Inside libshard/compute
/// only.
///
/// Results are those of unpack.h and a conversion. They take a third of the time, because no float32 is stored: a block
/// of 4-bit codes has only 16 products, which are rounded once and then looked up 16 codes at a time.
///
/// They are compiled for any CPU and for AVX2; results are the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "libshard/compute/unpack.h"

namespace shard {

/// (number of the code - zero) * scale * factor for blocks of columns.
struct RowScales {
  std::int64_t block = 1;         ///< Columns.
  std::span<const float> scales;  ///< From the block of the first code on.
  std::span<const float> zeros;   ///< The same; empty: none is subtracted.
  float factor = 1;
  bool through_float16 = false;  ///< Rounds to float16 first.
};

/// Codes of 4 bits, in the order of table.pairs. `first` is the column of the first one. `out` receives two bytes for
/// each. \pre `first`, the block and the number of codes are even; `codes` begins at the first code
void round_halves(std::span<const std::byte> codes, std::int64_t first, const CodeTable& table, const RowScales& scales,
                  std::span<std::byte> out);
/// Codes that are E4M3 (float8_e4m3fn), without zeros, factor and float16.
void round_e4m3(std::span<const std::byte> codes, std::int64_t first, const RowScales& scales,
                std::span<std::byte> out);

}  // namespace shard
