/// \file
/// Conversion of elements between dtypes, as torch's Tensor.to() on the CPU does it.
///
/// Float to narrower float rounds to nearest even; overflow becomes infinity where the type has one, NaN where torch
/// gives NaN (float8_e4m3fn, float8_e8m0fnu and the fnuz types), and is counted. float64 and integers go through
/// float32 on their way to narrower types, as in torch. Float to integer truncates; what is out of range becomes what
/// torch gives on x86 (the source says where that is not one answer). To bool: whether the value is not zero. Complex
/// to real drops the imaginary part, real to complex adds a zero one. Compared with torch over all bit patterns of the
/// 8- and 16-bit types by tests/live/cast_against_torch.py. NaN stays NaN; its sign and payload are not preserved.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "libshard/core/dtype.h"

namespace shard {

/// True when `cast` can convert between the two: both are castable (dtype.h).
bool can_cast(DType from, DType to);

/// Converts packed elements. \returns how many finite values became infinite or NaN.
/// \pre can_cast; in.size() and out.size() are whole numbers of elements, equally many; they do not overlap.
std::int64_t cast(DType from, std::span<const std::byte> in, DType to, std::span<std::byte> out);

}  // namespace shard
