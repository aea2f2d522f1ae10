#include "libshard/core/checked.h"

#include <fmt/format.h>

#include "libshard/core/box.h"
#include "libshard/core/error.h"

namespace shard {

namespace {

[[noreturn]] void refuse(const std::string& what, const char* why) {
  throw Error(ErrorCode::kCorruption, what).because(why);
}

constexpr const char* kNegative = "sizes and offsets must not be negative";
constexpr const char* kTooLarge = "the result does not fit 63 bits";

/// Elements in blocks of one need no division, which takes longer than all other checks of a tensor.
std::int64_t whole_blocks(std::int64_t elements, DTypeBlock block) {
  return block.elements == 1 ? elements : elements / block.elements;
}

}  // namespace

std::int64_t checked_add(std::int64_t a, std::int64_t b) {
  std::int64_t sum = 0;
  if (a < 0 || b < 0) refuse(fmt::format("cannot add {} and {}", a, b), kNegative);
  if (__builtin_add_overflow(a, b, &sum)) refuse(fmt::format("cannot add {} and {}", a, b), kTooLarge);
  return sum;
}

std::int64_t checked_mul(std::int64_t a, std::int64_t b) {
  std::int64_t product = 0;
  if (a < 0 || b < 0) refuse(fmt::format("cannot multiply {} by {}", a, b), kNegative);
  if (__builtin_mul_overflow(a, b, &product)) refuse(fmt::format("cannot multiply {} by {}", a, b), kTooLarge);
  return product;
}

std::int64_t checked_numel(std::span<const std::int64_t> shape) {
  bool is_negative = false, is_empty = false, is_too_large = false;
  std::int64_t product = 1;
  for (const std::int64_t n : shape) {
    is_negative |= n < 0;
    is_empty |= n == 0;
    is_too_large |= __builtin_mul_overflow(product, n, &product);
  }
  if (is_negative) refuse("cannot count the elements of shape " + to_string(shape), kNegative);
  if (is_empty) return 0;  // First: [2^40, 2^40, 0] is empty, not too large.
  if (is_too_large) refuse("cannot count the elements of shape " + to_string(shape), kTooLarge);
  return product;
}

std::int64_t checked_bytes(std::int64_t elements, DType dtype) {
  if (elements < 0)
    refuse(fmt::format("cannot count the bytes of {} elements of {}", elements, dtype_name(dtype)), kNegative);
  const DTypeBlock block = dtype_block(dtype);
  const std::int64_t blocks = whole_blocks(elements, block);
  if (blocks * block.elements != elements) {
    refuse(fmt::format("cannot count the bytes of {} elements of {}", elements, dtype_name(dtype)),
           "its last element ends inside a byte");
  }
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(blocks, block.bytes, &bytes)) {
    refuse(fmt::format("cannot count the bytes of {} elements of {}", elements, dtype_name(dtype)), kTooLarge);
  }
  return bytes;
}

std::optional<std::int64_t> bytes_within(std::int64_t elements, DType dtype) {
  const DTypeBlock block = dtype_block(dtype);
  const std::int64_t whole = whole_blocks(elements, block);
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(whole + (whole * block.elements != elements ? 1 : 0), block.bytes, &bytes)) {
    return std::nullopt;
  }
  return bytes;
}

std::int64_t begin_of_share(std::int64_t total, std::int64_t part, std::int64_t parts) {
  return total / parts * part + total % parts * part / parts;
}

}  // namespace shard
