/// \file
/// Conversion of elements between dtypes, as torch's Tensor.to() on the CPU does it.
///
/// Float to narrower float rounds to nearest even; overflow becomes infinity where the type has one, NaN where torch
/// gives NaN (float8_e4m3fn and the fnuz types), and is counted. Float to integer truncates. Complex to real drops the
/// imaginary part, as torch does. Compared with torch over all bit patterns of the 8- and 16-bit types.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "libshard/core/dtype.h"

namespace shard {

/// True when `cast` can convert between the two (all but float4, float6, bits and quantized types).
bool can_cast(DType from, DType to);

/// Converts packed elements. \returns how many finite values became infinite or NaN.
/// \pre can_cast; in.size() and out.size() are whole numbers of elements, equally many; they do not overlap.
std::int64_t cast(DType from, std::span<const std::byte> in, DType to, std::span<std::byte> out);

}  // namespace shard
