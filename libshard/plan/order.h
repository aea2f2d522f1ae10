/// \file The order in which strides visit a box's elements, and slabs along it. Inside libshard/plan, libshard/exec
///   and libshard/job only.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "libshard/core/box.h"

namespace shard {

using Numbers = std::array<std::int64_t, kMaxDims>;  ///< One number per dimension. Only the first few are meaningful.
using Order = std::array<int, kMaxDims>;             ///< Dimensions, the slowest first.

/// Dimensions from the largest stride to the smallest. Equal ones keep their order.
Order order_of(std::span<const std::int64_t> strides);

/// Whether a source is read over the gaps between runs of `run` elements with begins `stride` apart.
///
/// Reading a gap of a page that the view itself skips costs about as much as one more call, and the disk reads that
/// page in any case. Elements that a tile skips within the view's own run of `piece_run` elements are read for other
/// tiles anyway, so at most 1 in 100 of those may be read twice.
inline bool is_read_over(std::int64_t stride, std::int64_t run, std::int64_t piece_run, std::int64_t element_bytes) {
  constexpr std::int64_t kPage = 4096;
  return stride - piece_run <= kPage / element_bytes && std::min(stride, piece_run) - run <= run / 100;
}

/// Computes the shape of a slab of at most `elements` (at least one): whole inner dimensions while they fit, part of
/// the next dimension, and 1 in the rest. Parts are balanced, so that the last part is not much shorter.
void fill_slab(std::span<const std::int64_t> shape, const Order& order, std::int64_t elements, Numbers& sides);

}  // namespace shard
