#include "libshard/catalog/bounds.h"

#include <fmt/format.h>

#include <optional>

#include "libshard/core/box.h"
#include "libshard/core/checked.h"
#include "libshard/core/error.h"

namespace shard {

namespace {

Error outside(std::string_view tensor, Dims sizes, Dims strides, std::int64_t first, DType dtype) {
  return Error(ErrorCode::kCorruption,
               fmt::format(
                   "tensor '{}': a view of shape {} ({}) with strides {} from element {} extends outside its storage",
                   tensor, to_string(sizes), dtype_name(dtype), to_string(strides), first))
      .of_tensor(tensor)
      .of_kind(FindingKind::kOutOfBounds);
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
  throw Error(ErrorCode::kCorruption, fmt::format("cannot place a view of {} with strides {} at element {}",
                                                  to_string(sizes), to_string(strides), first))
      .because("strides and offsets must not be negative, and element indices must fit in 63 bits")
      .of_kind(FindingKind::kOutOfBounds);
}

void check_view(std::string_view tensor, Dims sizes, Dims strides, std::int64_t first, DType dtype,
                const Storage& storage) {
  if (is_empty(sizes)) return;
  std::int64_t last = 0;
  try {
    last = last_element(sizes, strides, first);
  } catch (Error& error) {
    throw error.of_tensor(tensor);
  }
  std::optional<std::int64_t> bytes;
  if (!__builtin_add_overflow(last, 1, &last)) bytes = bytes_within(last, dtype);
  if (bytes && *bytes <= storage.bytes) return;
  const std::string expected = bytes ? fmt::format("{}", *bytes) : "more than 2^63";
  throw outside(tensor, sizes, strides, first, dtype)
      .because(fmt::format("it needs {} bytes, but its storage has only {}", expected, storage.bytes))
      .expected(expected)
      .found(storage.bytes);
}

}  // namespace shard
