/// \file
/// Transposes a matrix in memory, in vectors. Inside libshard/exec only.
#pragma once

#include <cstddef>
#include <cstdint>

namespace shard {

inline constexpr std::size_t kCacheLine = 64;  ///< Bytes.

/// Transposes rows x columns elements of `unit` bytes: the one in row i and column j goes from
/// `from + i * from_stride + j * unit` to `to + j * to_stride + i * unit`. Strides in bytes.
/// \returns false, having done nothing, where elements of `unit` bytes have no vectors: other than 1, 2, 4, 8 and 16.
bool transpose(std::int64_t rows, std::int64_t columns, const std::byte* from, std::int64_t from_stride, std::byte* to,
               std::int64_t to_stride, std::size_t unit);

}  // namespace shard
