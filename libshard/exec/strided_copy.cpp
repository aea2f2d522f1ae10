#include "libshard/exec/strided_copy.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "libshard/core/box.h"
#include "libshard/exec/transpose.h"

namespace shard {

namespace {

/// One dimension of the copy. All numbers are bytes. A unit is one element, or a run of elements that is contiguous on
/// both sides.
struct Dim {
  std::int64_t size;
  std::int64_t from;  // Byte strides in the source and in the target.
  std::int64_t to;
};

struct Walk {
  std::array<Dim, kMaxDims> dims;  // The outermost dimension first.
  std::size_t count = 0;
  std::size_t unit = 0;
};

constexpr std::int64_t kTile = 32;  // The number of units on each side of a tile that is not transposed in vectors.

// --- Building the walk.

bool continues(const Dim& outer, const Dim& inner) {
  return outer.from == inner.from * inner.size && outer.to == inner.to * inner.size;
}

/// Orders dimensions by the target's strides, so that it is written forward. Merges adjacent dimensions that form one
/// dimension on both sides.
void order_and_merge(Walk& walk) {
  const auto begin = walk.dims.begin();
  std::stable_sort(begin, begin + static_cast<std::ptrdiff_t>(walk.count), [](const Dim& a, const Dim& b) {
    return std::pair(std::abs(a.to), std::abs(a.from)) > std::pair(std::abs(b.to), std::abs(b.from));
  });
  std::size_t kept = 0;
  for (std::size_t d = 0; d < walk.count; ++d) {
    const Dim dim = walk.dims[d];
    if (kept > 0 && continues(walk.dims[kept - 1], dim)) {
      walk.dims[kept - 1] = {walk.dims[kept - 1].size * dim.size, dim.from, dim.to};
    } else {
      walk.dims[kept++] = dim;
    }
  }
  walk.count = kept;
  // If the innermost dimension is contiguous on both sides, it becomes part of the unit.
  const auto unit = static_cast<std::int64_t>(walk.unit);
  if (kept > 0 && walk.dims[kept - 1].from == unit && walk.dims[kept - 1].to == unit) {
    walk.unit *= static_cast<std::size_t>(walk.dims[kept - 1].size);
    --walk.count;
  }
}

// --- Rows of units.

template <std::size_t kUnit>
void copy_row(std::int64_t n, const std::byte* from, std::int64_t from_stride, std::byte* to, std::int64_t to_stride,
              std::size_t unit) {
  for (std::int64_t i = 0; i < n; ++i) {
    std::memcpy(to + i * to_stride, from + i * from_stride, kUnit == 0 ? unit : kUnit);
  }
}

using CopyRow = void (*)(std::int64_t, const std::byte*, std::int64_t, std::byte*, std::int64_t, std::size_t);

// A constant size lets the compiler replace memcpy by one load and one store. A size of 0 selects the general case.
CopyRow copy_row_of(std::size_t unit) {
  switch (unit) {
    case 1:
      return copy_row<1>;
    case 2:
      return copy_row<2>;
    case 4:
      return copy_row<4>;
    case 8:
      return copy_row<8>;
    case 16:
      return copy_row<16>;
    default:
      return copy_row<0>;
  }
}

/// Copies a plane in square tiles, so that the cache lines of both sides stay cached while they are needed. The
/// target's rows run along `inner`, the source's along `outer`.
void copy_tiled(const Dim& outer, const Dim& inner, const std::byte* from, std::byte* to, std::size_t unit) {
  const CopyRow copy = copy_row_of(unit);
  for (std::int64_t j0 = 0; j0 < outer.size; j0 += kTile) {
    const std::int64_t j1 = std::min(j0 + kTile, outer.size);
    for (std::int64_t i0 = 0; i0 < inner.size; i0 += kTile) {
      const std::int64_t n = std::min(kTile, inner.size - i0);
      for (std::int64_t j = j0; j < j1; ++j) {
        copy(n, from + j * outer.from + i0 * inner.from, inner.from, to + j * outer.to + i0 * inner.to, inner.to, unit);
      }
    }
  }
}

void copy_plane(const Dim& outer, const Dim& inner, const std::byte* from, std::byte* to, std::size_t unit) {
  const auto stride = static_cast<std::int64_t>(unit);
  const bool is_transpose = outer.from == stride && inner.to == stride;
  if (is_transpose && transpose(inner.size, outer.size, from, inner.from, to, outer.to, unit)) return;
  copy_tiled(outer, inner, from, to, unit);
}

// --- The walk.

/// Chooses the dimension that forms a plane with the innermost one: the source's fastest dimension if units are smaller
/// than a cache line.
std::size_t plane_mate(const Walk& walk) {
  const std::size_t last = walk.count - 1;
  std::size_t mate = last - 1;
  if (walk.unit >= kCacheLine) return mate;
  std::int64_t fastest = std::abs(walk.dims[last].from);
  for (std::size_t d = 0; d < last; ++d) {
    const std::int64_t stride = std::abs(walk.dims[d].from);
    if (stride != 0 && stride < fastest) {
      fastest = stride;
      mate = d;
    }
  }
  return mate;
}

/// Copies the plane of the last two dimensions for every index of the outer ones.
void copy_planes(const Walk& walk, const std::byte* from, std::byte* to) {
  const std::size_t outer_count = walk.count - 2;
  std::array<std::int64_t, kMaxDims> index{};
  while (true) {
    copy_plane(walk.dims[outer_count], walk.dims[outer_count + 1], from, to, walk.unit);
    std::size_t d = outer_count;
    for (; d > 0; --d) {
      const Dim& dim = walk.dims[d - 1];
      from += dim.from;
      to += dim.to;
      if (++index[d - 1] < dim.size) break;
      index[d - 1] = 0;
      from -= dim.from * dim.size;
      to -= dim.to * dim.size;
    }
    if (d == 0) return;
  }
}

}  // namespace

void strided_copy(std::span<const std::int64_t> sizes, const std::byte* from,
                  std::span<const std::int64_t> from_strides, std::byte* to, std::span<const std::int64_t> to_strides,
                  std::size_t element_bytes) {
  assert(sizes.size() == from_strides.size() && sizes.size() == to_strides.size());
  assert(sizes.size() <= static_cast<std::size_t>(kMaxDims));
  const auto scale = static_cast<std::int64_t>(element_bytes);
  Walk walk;
  walk.unit = element_bytes;
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 0) return;
    // Dimensions of size 1 do not move, so their strides do not matter.
    if (sizes[d] > 1) walk.dims[walk.count++] = {sizes[d], from_strides[d] * scale, to_strides[d] * scale};
  }
  order_and_merge(walk);
  if (walk.count == 0) {
    std::memcpy(to, from, walk.unit);
  } else if (walk.count == 1) {
    const Dim& dim = walk.dims[0];
    copy_row_of(walk.unit)(dim.size, from, dim.from, to, dim.to, walk.unit);
  } else {
    // Moves the chosen dimension next to the innermost one. The order of the others is unchanged.
    const std::size_t mate = plane_mate(walk);
    const auto first = walk.dims.begin() + static_cast<std::ptrdiff_t>(mate);
    std::rotate(first, first + 1, walk.dims.begin() + static_cast<std::ptrdiff_t>(walk.count) - 1);
    copy_planes(walk, from, to);
  }
}

}  // namespace shard
