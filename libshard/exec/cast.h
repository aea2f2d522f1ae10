/// \file Conversion of elements between dtypes, with the results of torch's Tensor.to() on the CPU.
///
/// - Float to narrower float rounds to nearest even. Overflow becomes infinity if the type has one, and NaN if torch
///   produces NaN (float8_e4m3fn, float8_e8m0fnu and the fnuz types). Overflows are counted.
/// - float64 and integers are converted to narrower types by way of float32, as in torch.
/// - Float to integer truncates. Values out of range, NaN and infinities become the same as in torch on x86, and are
///   counted. The source names the cases in which torch has two answers.
/// - To bool: whether the value is not zero.
/// - Complex to real drops the imaginary part; real to complex adds a zero imaginary part.
/// - NaN stays NaN. Its sign and payload are not preserved.
///
/// tests/live/cast_against_torch.py compares it with torch for all bit patterns of the 8- and 16-bit types.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "libshard/core/dtype.h"

namespace shard {

/// True if `cast` can convert between the two, which means that both are castable (dtype.h).
bool can_cast(DType from, DType to);

/// Converts packed elements. \returns the number of finite values that became infinite or NaN, plus that of floats
///   outside the range of an integer dtype.
/// \pre can_cast; `in` and `out` contain equal numbers of whole elements, and do not overlap.
std::int64_t cast(DType from, std::span<const std::byte> in, DType to, std::span<std::byte> out);

}  // namespace shard
