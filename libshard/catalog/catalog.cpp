#include "libshard/catalog/catalog.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "libshard/catalog/bounds.h"
#include "libshard/core/box.h"
#include "libshard/core/checked.h"
#include "libshard/core/error.h"

namespace shard {

namespace {

Error outside(std::string_view tensor, Dims sizes, Dims strides, std::int64_t first, DType dtype) {
  return Error(ErrorCode::kCorruption,
               fmt::format("tensor '{}': a view of {} {} with strides {} from element {} leaves its storage", tensor,
                           to_string(sizes), dtype_name(dtype), to_string(strides), first))
      .of_tensor(tensor)
      .of_kind(FindingKind::kOutOfBounds);
}

/// Bytes of elements, for sums: a hostile expanded tensor may claim any number, so it stops at the largest.
std::int64_t bytes_of(std::span<const std::int64_t> sizes, DType dtype) {
  std::int64_t bits = dtype_bits(dtype);
  for (const std::int64_t n : sizes) {
    if (n == 0) return 0;
  }
  for (const std::int64_t n : sizes) {
    if (__builtin_mul_overflow(bits, n, &bits)) return std::numeric_limits<std::int64_t>::max() / 8;
  }
  return bits / 8 + (bits % 8 != 0 ? 1 : 0);
}

std::int64_t saturating_add(std::int64_t a, std::int64_t b) {
  std::int64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? std::numeric_limits<std::int64_t>::max() : sum;
}

}  // namespace

std::int64_t last_element(Dims sizes, Dims strides, std::int64_t first) {
  std::int64_t last = first;
  bool fits = first >= 0;
  for (int d = 0; d < sizes.size(); ++d) {
    std::int64_t reach = 0;
    fits = fits && strides[d] >= 0 && !__builtin_mul_overflow(sizes[d] - 1, strides[d], &reach) &&
           !__builtin_add_overflow(last, reach, &last);
  }
  if (fits) return last;
  throw Error(ErrorCode::kCorruption,
              fmt::format("a view of {} with strides {} from element {}", to_string(sizes), to_string(strides), first))
      .because("strides and offsets are never negative, and no element lies past 63 bits")
      .of_kind(FindingKind::kOutOfBounds);
}

void check_view(std::string_view tensor, Dims sizes, Dims strides, std::int64_t first, DType dtype,
                const Storage& storage) {
  if (std::ranges::find(sizes, 0) != sizes.end()) return;
  std::int64_t last = 0;
  try {
    last = last_element(sizes, strides, first);
  } catch (Error& error) {
    throw error.of_tensor(tensor);
  }
  std::int64_t bits = 0;
  const bool fits = !__builtin_add_overflow(last, 1, &last) && !__builtin_mul_overflow(last, dtype_bits(dtype), &bits);
  if (fits && (bits + 7) / 8 <= storage.bytes) return;
  const std::string expected = fits ? fmt::format("{}", (bits + 7) / 8) : "more than 2^63";
  throw outside(tensor, sizes, strides, first, dtype)
      .because(fmt::format("it needs {} bytes, its storage has {}", expected, storage.bytes))
      .expected(expected)
      .found(storage.bytes);
}

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

std::uint32_t add_whole_tensor(Catalog& catalog, std::string_view name, Path path, const StoredTensor& stored) {
  try {
    checked_bytes(checked_numel(stored.shape), stored.dtype);
  } catch (Error& error) {
    throw error.of_tensor(name).of_kind(FindingKind::kBadHeader);
  }
  check_view(name, stored.shape, stored.strides, stored.first, stored.dtype, catalog.storages.at(stored.storage));
  const auto index = static_cast<std::uint32_t>(catalog.tensors.size());
  Tensor tensor;
  tensor.name = name;
  tensor.path = path;
  tensor.shape = stored.shape;
  tensor.first_chunk = static_cast<std::uint32_t>(catalog.chunks.size());
  tensor.chunk_count = 1;
  tensor.dtype = stored.dtype;
  Chunk chunk;
  chunk.offsets = catalog.arena->zeros(stored.shape.size());
  chunk.sizes = stored.shape;
  chunk.strides = stored.strides;
  chunk.first = stored.first;
  chunk.stored = static_cast<std::uint32_t>(catalog.stored.size());
  catalog.tensors.push_back(tensor);
  catalog.chunks.push_back(chunk);
  catalog.stored.push_back(stored);
  return index;
}

}  // namespace shard
