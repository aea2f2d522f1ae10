/// \file Sizes of tensors in a catalog that validate_catalog has checked, so that nothing can overflow.
#pragma once

#include <cstdint>
#include <span>

#include "libshard/core/dtype.h"

namespace shard {

/// The number of elements of a shape; 1 without dimensions.
inline std::int64_t element_count(std::span<const std::int64_t> shape) {
  std::uint64_t count = 1;  // Wraps if huge dimensions precede one without elements.
  for (const std::int64_t size : shape) count *= static_cast<std::uint64_t>(size);
  return static_cast<std::int64_t>(count);
}

/// The bytes of `elements` packed elements. A partly used last block counts as whole.
inline std::int64_t packed_bytes(std::int64_t elements, DType dtype) {
  const DTypeBlock block = dtype_block(dtype);
  if (block.elements == 1) return elements * block.bytes;
  return (elements + block.elements - 1) / block.elements * block.bytes;
}

}  // namespace shard
