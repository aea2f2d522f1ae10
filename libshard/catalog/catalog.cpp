#include "libshard/catalog/catalog.h"

#include <algorithm>
#include <limits>

#include "libshard/core/box.h"
#include "libshard/core/checked.h"

namespace shard {

namespace {

/// The size of elements, for sums. It saturates, because a hostile expanded tensor may claim any size.
std::int64_t bytes_of(std::span<const std::int64_t> sizes, DType dtype) {
  if (is_empty(sizes)) return 0;
  std::int64_t elements = 1;
  for (const std::int64_t n : sizes) {
    if (__builtin_mul_overflow(elements, n, &elements)) return std::numeric_limits<std::int64_t>::max();
  }
  return bytes_within(elements, dtype).value_or(std::numeric_limits<std::int64_t>::max());
}

std::int64_t saturating_add(std::int64_t a, std::int64_t b) {
  std::int64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? std::numeric_limits<std::int64_t>::max() : sum;
}

}  // namespace

const Tensor* Catalog::find(std::string_view name) const {
  const auto found = std::ranges::lower_bound(tensors, name, {}, &Tensor::name);
  return found != tensors.end() && found->name == name ? &*found : nullptr;
}

std::int64_t Catalog::logical_bytes() const {
  std::int64_t sum = 0;
  for (const Tensor& tensor : tensors) {
    if (tensor.alias_of == kNoIndex) sum = saturating_add(sum, bytes_of(tensor.shape, tensor.dtype));
  }
  return sum;
}

std::int64_t Catalog::stored_bytes() const {
  std::int64_t sum = 0;
  for (const Tensor& tensor : tensors) {
    if (tensor.alias_of != kNoIndex) continue;
    for (const Chunk& chunk : chunks_of(tensor)) sum = saturating_add(sum, bytes_of(chunk.sizes, tensor.dtype));
  }
  return sum;
}

void Catalog::sort_chunks(std::span<Chunk> of_one_tensor) const {
  const auto less = [this](const Chunk& a, const Chunk& b) {
    const auto order =
        std::lexicographical_compare_three_way(a.offsets.begin(), a.offsets.end(), b.offsets.begin(), b.offsets.end());
    return order != 0 ? order < 0 : stored_of(a).rank < stored_of(b).rank;
  };
  if (!std::ranges::is_sorted(of_one_tensor, less)) std::ranges::stable_sort(of_one_tensor, less);
}

Catalog source_catalog() {
  Catalog catalog;
  catalog.arena = std::make_shared<Arena>(std::make_shared<Budget>());
  return catalog;
}

}  // namespace shard
