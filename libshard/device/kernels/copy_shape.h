/// \file CopyShape: a strided copy in a form for devices: few dimensions, the longest units that every address allows,
///   and the assignment of units to threads. Pure functions of the host. Inside libshard/device only.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "libshard/core/box.h"

namespace shard::kernels {

/// Strides in units.
struct CopyDim {
  std::int64_t size, from, to;

  friend bool operator==(const CopyDim&, const CopyDim&) = default;
};

struct CopyShape {
  /// The target's slowest dimension first. In a tiled copy, the last two form a plane: the dimension that is fastest in
  /// the source, then the one that is fastest in the target.
  std::array<CopyDim, kMaxDims + 1> dims;
  int count = 0;
  int unit_bytes = 1;      ///< The size of one load: 1, 2, 4, 8 or 16.
  std::int64_t units = 0;  ///< The product of the sizes.
  bool is_tiled = false;   ///< Target neighbours are far apart in the source: copied through shared memory.
};

/// Dimensions that continue each other on both sides are merged. A unit is as long as runs, strides and addresses
/// allow. Strides are in elements. They may be negative, and those of the source 0. \pre as strided_copy's; not more
/// than kMaxDims dimensions
CopyShape copy_shape(std::span<const std::int64_t> sizes, const std::byte* from,
                     std::span<const std::int64_t> from_strides, const std::byte* to,
                     std::span<const std::int64_t> to_strides, std::size_t element_bytes);

}  // namespace shard::kernels
