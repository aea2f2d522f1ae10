/// \file Copies a box of elements between two strided arrays in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace shard {

/// Copies prod(sizes) elements of `element_bytes` each (1, 2, 4, 8, 16 or any). Strides are in elements. Dimensions
/// that are contiguous on both sides are merged. The others are visited in an order and in blocks that keep both sides
/// in the cache (a transpose runs at memory speed).
void strided_copy(std::span<const std::int64_t> sizes, const std::byte* from,
                  std::span<const std::int64_t> from_strides, std::byte* to, std::span<const std::int64_t> to_strides,
                  std::size_t element_bytes);

}  // namespace shard
