#include "libshard/device/kernels/copy_shape.h"

#include <algorithm>
#include <cassert>
#include <cstdlib>
#include <tuple>

namespace shard::kernels {

namespace {

constexpr std::uint64_t kLongestUnit = 16;
constexpr std::int64_t kLeastSide = 8;  // The least side of a plane; narrower ones leave threads idle.

bool continues(const CopyDim& outer, const CopyDim& inner) {
  return outer.from == inner.from * inner.size && outer.to == inner.to * inner.size;
}

/// Orders all dimensions but the last by the target's strides, and merges those that are one on both sides.
void order_and_merge(CopyShape& shape) {
  const auto begin = shape.dims.begin(), end = begin + shape.count;
  std::stable_sort(begin, end - 1, [](const CopyDim& a, const CopyDim& b) {
    return std::tuple(std::abs(a.to), std::abs(a.from)) > std::tuple(std::abs(b.to), std::abs(b.from));
  });
  auto kept = begin;  // The end of the merged dimensions.
  for (auto dim = begin; dim != end; ++dim) {
    const CopyDim each = *dim;
    if (kept != begin && continues(kept[-1], each)) {
      kept[-1] = {kept[-1].size * each.size, each.from, each.to};
    } else {
      *kept++ = each;
    }
  }
  shape.count = static_cast<int>(kept - begin);
}

/// The longest unit that divides the run of the last dimension (in bytes), all strides, and both addresses.
std::int64_t longest_unit(const CopyShape& shape, const std::byte* from, const std::byte* to) {
  std::uint64_t bits = kLongestUnit | reinterpret_cast<std::uintptr_t>(from) | reinterpret_cast<std::uintptr_t>(to);
  for (int d = 0; d + 1 < shape.count; ++d) {
    const CopyDim& dim = shape.dims[static_cast<std::size_t>(d)];
    bits |= static_cast<std::uint64_t>(dim.from) | static_cast<std::uint64_t>(dim.to);
  }
  bits |= static_cast<std::uint64_t>(shape.dims[static_cast<std::size_t>(shape.count - 1)].size);
  return static_cast<std::int64_t>(bits & (~bits + 1));  // The lowest bit that is set in any of them.
}

/// Moves the source's fastest dimension before the target's, if they differ.
void choose_plane(CopyShape& shape) {
  if (shape.count < 2) return;
  const auto begin = shape.dims.begin(), last = begin + shape.count - 1;
  if (std::abs(last->from) <= 1 || last->size < kLeastSide) return;
  const auto mate =
      std::find_if(begin, last, [](const CopyDim& dim) { return std::abs(dim.from) == 1 && dim.size >= kLeastSide; });
  if (mate == last) return;
  std::rotate(mate, mate + 1, last);
  shape.is_tiled = true;
}

}  // namespace

CopyShape copy_shape(std::span<const std::int64_t> sizes, const std::byte* from,
                     std::span<const std::int64_t> from_strides, const std::byte* to,
                     std::span<const std::int64_t> to_strides, std::size_t element_bytes) {
  assert(sizes.size() <= static_cast<std::size_t>(kMaxDims));
  const auto scale = static_cast<std::int64_t>(element_bytes);
  CopyShape shape;
  shape.units = 1;
  const auto add = [&shape](const CopyDim& dim) { shape.dims[static_cast<std::size_t>(shape.count++)] = dim; };
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    shape.units *= sizes[d];
    if (sizes[d] > 1) add({sizes[d], from_strides[d] * scale, to_strides[d] * scale});
  }
  if (shape.units == 0) {
    shape.count = 0;
    return shape;
  }
  add({scale, 1, 1});  // Treats an element as a run of bytes. Everything below counts in bytes.
  order_and_merge(shape);
  const std::int64_t unit = longest_unit(shape, from, to);
  shape.unit_bytes = static_cast<int>(unit);
  shape.units = shape.units * scale / unit;
  CopyDim& run = shape.dims[static_cast<std::size_t>(shape.count - 1)];
  run.size /= unit;
  for (int d = 0; d + 1 < shape.count; ++d) {
    CopyDim& dim = shape.dims[static_cast<std::size_t>(d)];
    dim = {dim.size, dim.from / unit, dim.to / unit};
  }
  if (run.size == 1) --shape.count;
  choose_plane(shape);
  return shape;
}

}  // namespace shard::kernels
