/// \file
/// Elements of a tensor in row-major order, in its memory or as views. Inside shardtorch only.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdint>

namespace shard {

/// Whether the memory holds the elements in row-major order, without gaps, in their plain form.
inline bool is_packed(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

/// Visits elements [first, first + count) of `tensor`, in row-major order, as consecutive views: at most two per
/// dimension and one.
template <class Visit>
void for_each_view(const at::Tensor& tensor, std::int64_t first, std::int64_t count, const Visit& visit) {
  if (count == 0) return;
  if (count == tensor.numel()) return visit(tensor);
  const std::int64_t row = tensor.numel() / tensor.size(0);
  std::int64_t index = first / row;
  if (const std::int64_t skipped = first % row; skipped != 0) {
    const std::int64_t head = std::min(count, row - skipped);
    for_each_view(tensor[index++], skipped, head, visit);
    count -= head;
  }
  const std::int64_t rows = count / row;
  if (rows > 0) visit(tensor.narrow(0, index, rows));
  if (count % row != 0) for_each_view(tensor[index + rows], 0, count % row, visit);
}

/// Calls with the same views, each beside the elements of `flat` that correspond to it, in its shape.
/// \pre `flat` has one dimension, of `count` elements
template <class Each>
void for_each_pair(const at::Tensor& tensor, std::int64_t first, std::int64_t count, const at::Tensor& flat,
                   const Each& each) {
  std::int64_t position = 0;
  for_each_view(tensor, first, count, [&](const at::Tensor& view) {
    each(view, flat.narrow(0, position, view.numel()).view(view.sizes()));
    position += view.numel();
  });
}

}  // namespace shard
