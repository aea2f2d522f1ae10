/// \file Transposes a matrix in memory with vector instructions. Inside libshard/exec only.
#pragma once

#include <cstddef>
#include <cstdint>

namespace shard {

inline constexpr std::size_t kCacheLine = 64;  ///< In bytes.

/// Transposes rows x columns elements of `unit` bytes. The one in row i and column j is copied from `from + i *
/// from_stride + j * unit` to `to + j * to_stride + i * unit`. Strides are in bytes.
/// \returns false, having done nothing, if `unit` is not 1, 2, 4, 8 or 16, the sizes that have vectors.
bool transpose(std::int64_t rows, std::int64_t columns, const std::byte* from, std::int64_t from_stride, std::byte* to,
               std::int64_t to_stride, std::size_t unit);

}  // namespace shard
