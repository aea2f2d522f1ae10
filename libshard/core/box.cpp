#include "libshard/core/box.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>

namespace shard {

namespace {

/// Wraps instead of overflowing. If one dimension is 0, the others may be anything, and the product is not used.
std::int64_t wrapping_product(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
}

}  // namespace

Box::Box(std::span<const std::int64_t> offsets, std::span<const std::int64_t> sizes)
    : dims(static_cast<int>(sizes.size())) {
  assert(offsets.size() == sizes.size() && sizes.size() <= static_cast<std::size_t>(kMaxDims));
  std::ranges::copy(offsets, offset.begin());
  std::ranges::copy(sizes, size.begin());
}

std::int64_t Box::numel() const {
  std::int64_t product = 1;
  for (int d = 0; d < dims; ++d) product = wrapping_product(product, size[static_cast<std::size_t>(d)]);
  return product;
}

Box intersect(const Box& a, const Box& b) {
  assert(a.dims == b.dims);
  Box common;
  common.dims = a.dims;
  bool empty = false;
  for (std::size_t d = 0; d < static_cast<std::size_t>(a.dims); ++d) {
    common.offset[d] = std::max(a.offset[d], b.offset[d]);
    const std::int64_t end = std::min(a.offset[d] + a.size[d], b.offset[d] + b.size[d]);
    common.size[d] = end - common.offset[d];
    empty = empty || common.size[d] <= 0;
  }
  if (empty) std::fill_n(common.size.begin(), common.dims, std::int64_t{0});
  return common;
}

std::string to_string(const Box& box) {
  std::string text = "[";
  for (std::size_t d = 0; d < static_cast<std::size_t>(box.dims); ++d) {
    fmt::format_to(std::back_inserter(text), "{}{}:{}", d == 0 ? "" : ", ", box.offset[d], box.offset[d] + box.size[d]);
  }
  return text + "]";
}

std::string to_string(std::span<const std::int64_t> dims) { return fmt::format("[{}]", fmt::join(dims, ", ")); }

bool is_empty(std::span<const std::int64_t> sizes) { return std::ranges::find(sizes, 0) != sizes.end(); }

Dims row_major_strides(Arena& arena, std::span<const std::int64_t> sizes) {
  std::array<std::int64_t, kMaxDims> strides;
  const std::span<std::int64_t> used = std::span(strides).first(sizes.size());
  row_major_strides(sizes, used);
  return arena.dims(used);
}

void row_major_strides(std::span<const std::int64_t> sizes, std::span<std::int64_t> out) {
  assert(sizes.size() == out.size());
  std::int64_t stride = 1;
  for (std::size_t d = sizes.size(); d-- > 0;) {
    out[d] = stride;
    stride = wrapping_product(stride, std::max<std::int64_t>(sizes[d], 1));  // An empty dimension counts as 1.
  }
}

bool is_row_major(std::span<const std::int64_t> sizes, std::span<const std::int64_t> strides) {
  assert(sizes.size() == strides.size());
  if (is_empty(sizes)) return true;
  std::int64_t expected = 1;
  for (std::size_t d = sizes.size(); d-- > 0;) {
    if (sizes[d] == 1) continue;
    if (strides[d] != expected) return false;
    expected = wrapping_product(expected, sizes[d]);
  }
  return true;
}

}  // namespace shard
