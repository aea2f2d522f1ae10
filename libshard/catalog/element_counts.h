/// \file
/// Sizes of tensors of a catalog that validate_catalog has checked: no step can overflow.
#pragma once

#include <cstdint>
#include <span>

#include "libshard/core/dtype.h"

namespace shard {

/// Elements of a shape; 1 without dimensions.
inline std::int64_t element_count(std::span<const std::int64_t> shape) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  return count;
}

/// Bytes of `elements` packed elements; a last block that is used in part counts whole.
inline std::int64_t packed_bytes(std::int64_t elements, DType dtype) {
  const DTypeBlock block = dtype_block(dtype);
  return (elements + block.elements - 1) / block.elements * block.bytes;
}

}  // namespace shard
