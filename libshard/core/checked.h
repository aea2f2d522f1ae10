/// \file Checked arithmetic on sizes that were read from a file. No step wraps.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "libshard/core/dtype.h"

namespace shard {

/// \throws Error kCorruption  the result does not fit 63 bits, or an operand is negative.
std::int64_t checked_add(std::int64_t a, std::int64_t b);
std::int64_t checked_mul(std::int64_t a, std::int64_t b);
/// The number of elements of a shape; 1 for no dimensions.
/// \throws Error kCorruption  a negative dimension, or the product does not fit 63 bits.
std::int64_t checked_numel(std::span<const std::int64_t> shape);
/// Bytes of `elements` packed elements.
/// \throws Error kCorruption  it does not fit 63 bits, or the last block is not full.
std::int64_t checked_bytes(std::int64_t elements, DType dtype);

/// The bytes of the blocks that contain `elements`. The last block may be partly used. Nothing if they exceed 63 bits.
/// \pre elements >= 0
std::optional<std::int64_t> bytes_within(std::int64_t elements, DType dtype);

/// a / b, rounded up. \pre 0 <= a, 0 < b
constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

/// The start of part `part` if `total` items are divided evenly into `parts`. For part == parts, `total`.
/// \pre 0 <= part <= parts <= 2^31, 0 <= total
std::int64_t begin_of_share(std::int64_t total, std::int64_t part, std::int64_t parts);

}  // namespace shard
