/// \file
/// Boxes: half-open ranges of elements in every dimension, as offsets and sizes; and walks over the indices in them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "libshard/core/arena.h"

namespace shard {

/// The most dimensions that any reader accepts (torch's own limit for most operators).
inline constexpr int kMaxDims = 64;

/// A box that owns its numbers, for arithmetic; catalogs store Dims.
struct Box {
  int dims = 0;
  std::array<std::int64_t, kMaxDims> offset;  ///< Only the first `dims` entries are meaningful.
  std::array<std::int64_t, kMaxDims> size;

  Box() = default;
  Box(std::span<const std::int64_t> offsets, std::span<const std::int64_t> sizes);
  std::int64_t numel() const;  ///< 1 for no dimensions. The sizes were checked before.
  bool empty() const { return numel() == 0; }
  /// The meaningful entries. The box must outlive the results.
  std::span<const std::int64_t> offsets() const { return std::span(offset).first(static_cast<std::size_t>(dims)); }
  std::span<const std::int64_t> sizes() const { return std::span(size).first(static_cast<std::size_t>(dims)); }
};

/// The common part of two boxes of equal dimensions. Empty (all sizes 0) if they do not overlap.
Box intersect(const Box& a, const Box& b);
/// "[0:4, 0:16]", for messages.
std::string to_string(const Box& box);
/// "[4, 16]", for messages.
std::string to_string(std::span<const std::int64_t> dims);
/// True if some size is 0. A shape without dimensions has one element.
bool is_empty(std::span<const std::int64_t> sizes);
/// Row-major strides in elements of a shape, in `arena`.
Dims row_major_strides(Arena& arena, std::span<const std::int64_t> sizes);
/// Does the same, into `out` (of the same length).
void row_major_strides(std::span<const std::int64_t> sizes, std::span<std::int64_t> out);
/// Whether `strides` walk `sizes` row-major without gaps (dimensions of size 1 may have any stride, as in torch).
bool is_row_major(std::span<const std::int64_t> sizes, std::span<const std::int64_t> strides);

/// Advances `index` to the next index below `sizes`, in row-major order. \pre all sizes are positive
/// \returns the dimension that advanced (those after it are 0 again); -1 after the last index, which becomes the first.
template <class Number>
int next_index(std::span<Number> index, std::span<const Number> sizes) {
  for (std::size_t d = sizes.size(); d-- > 0;) {
    if (++index[d] < sizes[d]) return static_cast<int>(d);
    index[d] = 0;
  }
  return -1;
}

/// Sets `index` to the index of element `number`, counted in row-major order, among the indices below `sizes`.
/// \pre all sizes are positive, and `number` is less than their product
template <class Number>
void set_index(std::span<Number> index, std::span<const Number> sizes, Number number) {
  for (std::size_t d = sizes.size(); d-- > 0;) {
    index[d] = number % sizes[d];
    number /= sizes[d];
  }
}

}  // namespace shard
