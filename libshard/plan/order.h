/// \file
/// The order in which strides walk a box, and slabs along it. Inside libshard/plan and libshard/exec only.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "libshard/core/box.h"

namespace shard {

using Numbers = std::array<std::int64_t, kMaxDims>;  ///< One a dimension; only the first few are meaningful.
using Order = std::array<int, kMaxDims>;             ///< Dimensions, the slowest first.

/// Dimensions from the largest stride to the smallest; equal ones keep their order.
Order order_of(std::span<const std::int64_t> strides);

/// Sides of a slab of at most `elements` (or one element): whole inner dimensions as far as they fit, a part of the
/// next one, 1 in the others. Parts are balanced, so that the last is not much shorter.
void fill_slab(std::span<const std::int64_t> shape, const Order& order, std::int64_t elements, Numbers& sides);

}  // namespace shard
