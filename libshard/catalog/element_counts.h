/// \file Sizes of tensors in a catalog that validate_catalog has checked, so that nothing can overflow, and of files.
#pragma once

#include <cstdint>
#include <span>

#include "libshard/catalog/catalog.h"
#include "libshard/core/checked.h"
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

/// The bytes of all files. \throws Error kCorruption  they exceed 2^63
inline std::int64_t bytes_of(std::span<const File> files) {
  std::int64_t bytes = 0;
  for (const File& file : files) bytes = checked_add(bytes, file.bytes);
  return bytes;
}

}  // namespace shard
