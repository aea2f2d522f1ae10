/// \file
/// A strided copy as a device makes it: few dimensions, the longest units that every address allows, and which threads
/// take what. Pure functions of the host. Inside libshard/device only.
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
  /// The slowest of the target first. Of a tiled copy the last two are a plane: the dimension that is fastest in the
  /// source, then that which is fastest in the target.
  std::array<CopyDim, kMaxDims + 1> dims;
  int count = 0;
  int unit_bytes = 1;      ///< 1, 2, 4, 8 or 16: what one load takes.
  std::int64_t units = 0;  ///< The product of the sizes.
  bool is_tiled = false;   ///< Neighbours in the target are far apart in the source: planes go through shared memory.
};

/// Dimensions that continue each other on both sides are merged. A unit is as long as runs, strides and addresses
/// allow. Strides in elements, also negative or (of the source) 0. \pre as strided_copy's; not more than kMaxDims
/// dimensions
CopyShape copy_shape(std::span<const std::int64_t> sizes, const std::byte* from,
                     std::span<const std::int64_t> from_strides, const std::byte* to,
                     std::span<const std::int64_t> to_strides, std::size_t element_bytes);

}  // namespace shard::kernels
