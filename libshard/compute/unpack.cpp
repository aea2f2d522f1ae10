#include "libshard/compute/unpack.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "libshard/core/for_processor.h"
#include "libshard/exec/small_float.h"

// Compiled with -fno-trapping-math, so that choices may be computed in vectors, as cast.cpp is.

namespace shard {

namespace {

template <class T>
T load_at(const std::byte* from, std::int64_t index) {
  T value;
  std::memcpy(&value, from + index * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return value;
}

/// The numbers of bytes with two codes each.
void unpack_nibbles(const std::byte* bytes, std::int64_t count, const CodeTable& table, float* out) {
  for (std::int64_t i = 0; i < count; ++i) {
    std::memcpy(out + 2 * i, table.pairs[static_cast<std::size_t>(bytes[i])].data(), 2 * sizeof(float));
  }
}

/// The numbers of 4-bit codes. The first and the last one may be in the middle of a byte.
void unpack_halves(const std::byte* bytes, std::int64_t first, const CodeTable& table, std::span<float> out) {
  const std::byte* at = bytes + first / 2;
  float* to = out.data();
  std::int64_t left = std::ssize(out);
  if (first % 2 != 0 && left > 0) {
    *to++ = table.pairs[static_cast<std::size_t>(*at++)][1];
    --left;
  }
  unpack_nibbles(at, left / 2, table, to);
  if (left % 2 != 0) to[left - 1] = table.pairs[static_cast<std::size_t>(at[left / 2])][0];
}

/// Moves each of the four nibbles in the lower 16 bits into its own byte.
constexpr std::uint32_t spread(std::uint32_t word) {
  word = (word | (word << 8)) & 0x00FF00FFU;
  return (word | (word << 4)) & 0x0F0F0F0FU;
}

/// Extracts `width` bits from each word, from bit `shift` on. If they continue in the next row of words, `high` has the
/// upper part.
[[gnu::always_inline]] inline void column_loop(const std::byte* low, const std::byte* high, int shift, int width,
                                               float* out, std::size_t n) {
  const std::uint32_t mask = (1U << width) - 1;
  if (shift + width <= 32) {
    for (std::size_t i = 0; i < n; ++i) {
      const auto word = load_at<std::uint32_t>(low, static_cast<std::int64_t>(i));
      out[i] = static_cast<float>(static_cast<std::int32_t>((word >> shift) & mask));
    }
    return;
  }
  for (std::size_t i = 0; i < n; ++i) {
    const auto a = load_at<std::uint32_t>(low, static_cast<std::int64_t>(i));
    const auto b = load_at<std::uint32_t>(high, static_cast<std::int64_t>(i));
    out[i] = static_cast<float>(static_cast<std::int32_t>(((a >> shift) | (b << (32 - shift))) & mask));
  }
}

/// Decodes E4M3: exponents are rebased from 7 to 127, and codes with exponent 0 are multiples of 2^-9. A separate loop
/// widens the codes first, because otherwise the compiler computes the choices in bytes, which takes twice the time.
[[gnu::always_inline]] inline void e4m3_loop(const std::byte* codes, float* out, std::size_t n) {
  constexpr std::size_t kPart = 256;
  constexpr std::int32_t kRebase = (127 - 7) << 23;
  std::array<std::int32_t, kPart> wide;
  for (std::size_t done = 0; done < n; done += kPart) {
    const std::size_t count = std::min(kPart, n - done);
    for (std::size_t i = 0; i < count; ++i) wide[i] = static_cast<std::int32_t>(codes[done + i]);
    for (std::size_t i = 0; i < count; ++i) {
      const std::int32_t magnitude = wide[i] & 0x7F, sign = (wide[i] & 0x80) << 24;
      const float subnormal = static_cast<float>(magnitude) * 0x1p-9F;
      std::int32_t result = magnitude < 8 ? std::bit_cast<std::int32_t>(subnormal) : (magnitude << 20) + kRebase;
      result = magnitude == 0x7F ? 0x7FC00000 : result;
      out[done + i] = std::bit_cast<float>(result | sign);
    }
  }
}

/// Rounds to the precision of float16. For normal results, an integer addition rounds the mantissa to 10 bits, ties to
/// even. For subnormal ones, adding 0.5 rounds, because the last bit of the sum has the weight of float16's last bit
/// (2^-24).
[[gnu::always_inline]] inline void float16_loop(float* values, std::size_t n) {
  constexpr std::uint32_t kLeastNormal = 0x38800000U, kRest = 0x1FFFU;
  for (std::size_t i = 0; i < n; ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(values[i]);
    const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
    const std::uint32_t normal = (magnitude + (kRest >> 1) + ((magnitude >> 13) & 1U)) & ~kRest;
    const float sum = std::bit_cast<float>(magnitude) + 0.5F;
    std::uint32_t result = magnitude < kLeastNormal ? std::bit_cast<std::uint32_t>(sum - 0.5F) : normal;
    result = magnitude >= Float16::kOverflow ? kFloat32Infinity : result;
    result = magnitude > kFloat32Infinity ? magnitude : result;
    values[i] = std::bit_cast<float>(result | (bits & 0x80000000U));
  }
}

/// Scales values that each have their own scale.
[[gnu::always_inline]] inline void each_loop(float* values, const float* scales, const float* zeros, std::size_t n) {
  if (zeros == nullptr) {
    for (std::size_t i = 0; i < n; ++i) values[i] *= scales[i];
  } else {
    for (std::size_t i = 0; i < n; ++i) values[i] = (values[i] - zeros[i]) * scales[i];
  }
}

/// One scale for `n` values.
[[gnu::always_inline]] inline void same_loop(float* values, float scale, const float* zero, std::size_t n) {
  if (zero == nullptr) {
    for (std::size_t i = 0; i < n; ++i) values[i] *= scale;
  } else {
    const float subtracted = *zero;
    for (std::size_t i = 0; i < n; ++i) values[i] = (values[i] - subtracted) * scale;
  }
}

using Eight [[gnu::vector_size(32)]] = float;

/// Scales whole blocks of `kBlock` values. Vectors are written out, because the compiler's code for short blocks takes
/// three times as long.
template <std::size_t kBlock>
[[gnu::always_inline]] inline void whole_blocks(float* values, const float* scales, const float* zeros, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    const float scale = scales[i], zero = zeros == nullptr ? 0.0F : zeros[i];
    for (std::size_t j = 0; j < kBlock; j += 8, values += 8) {
      Eight eight;
      std::memcpy(&eight, values, sizeof eight);
      eight = (eight - zero) * scale;
      std::memcpy(values, &eight, sizeof eight);
    }
  }
}

/// Scales `n` values, of which the first one is number `first` of its block. Whole blocks of the usual sizes take the
/// fast loop.
[[gnu::always_inline]] inline void blocks_loop(float* values, std::int64_t first, std::int64_t block,
                                               const float* scales, const float* zeros, std::int64_t n) {
  if (block == 1) return each_loop(values, scales, zeros, static_cast<std::size_t>(n));
  std::int64_t i = 0;
  while (i < n) {
    const std::int64_t in_block = (first + i) % block, whole = in_block == 0 ? (n - i) / block : 0;
    if (whole > 0 && (block == 16 || block == 32)) {
      block == 16 ? whole_blocks<16>(values + i, scales, zeros, static_cast<std::size_t>(whole))
                  : whole_blocks<32>(values + i, scales, zeros, static_cast<std::size_t>(whole));
      i += whole * block;
      scales += whole;
      if (zeros != nullptr) zeros += whole;
      continue;
    }
    const std::int64_t count = std::min(block - in_block, n - i);
    same_loop(values + i, *scales, zeros, static_cast<std::size_t>(count));
    i += count;
    ++scales;
    if (zeros != nullptr) ++zeros;
  }
}

[[gnu::always_inline]] inline void multiply_loop(float* values, float factor, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) values[i] *= factor;
}
[[gnu::always_inline]] inline void divide_loop(float* values, float divisor, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) values[i] /= divisor;
}
[[gnu::always_inline]] inline void add_loop(float* sums, const float* values, float weight, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    const float product = weight * values[i];
    sums[i] += product;
  }
}

const auto kE4m3 = for_processor<e4m3_loop>(e4m3_loop);
const auto kFloat16 = for_processor<float16_loop>(float16_loop);
const auto kMultiply = for_processor<multiply_loop>(multiply_loop);
const auto kDivide = for_processor<divide_loop>(divide_loop);
const auto kAdd = for_processor<add_loop>(add_loop);
const auto kColumn = for_processor<column_loop>(column_loop);
const auto kBlocks = for_processor<blocks_loop>(blocks_loop);

}  // namespace

void CodeTable::fill_pairs(bool high_first) {
  is_high_first = high_first;
  for (std::size_t byte = 0; byte < 256; ++byte) {
    pairs[byte] = {numbers[byte & 15], numbers[byte >> 4]};
    if (high_first) std::swap(pairs[byte][0], pairs[byte][1]);
  }
}

void unpack_bits(std::span<const std::byte> bits, std::int64_t first, int width, const CodeTable& table,
                 std::span<float> out) {
  if (width == 4) return unpack_halves(bits.data(), first, table, out);
  if (width == 8) {
    const std::byte* const codes = bits.data() + first;
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = table.numbers[static_cast<std::size_t>(codes[i])];
    return;
  }
  // A code of any other width may extend over two bytes.
  const unsigned mask = (1U << width) - 1;
  std::int64_t bit = first * width;
  for (float& each : out) {
    const std::int64_t byte = bit / 8;
    unsigned two = static_cast<unsigned>(bits[static_cast<std::size_t>(byte)]);
    if (bit % 8 + width > 8) two |= static_cast<unsigned>(bits[static_cast<std::size_t>(byte) + 1]) << 8;
    each = table.numbers[(two >> (bit % 8)) & mask];
    bit += width;
  }
}

void unpack_e4m3(std::span<const std::byte> codes, std::span<float> out) {
  kE4m3(codes.data(), out.data(), out.size());
}

void unpack_awq(std::span<const std::byte> bits, std::int64_t first, const CodeTable& table, std::span<float> out) {
  constexpr std::int64_t kWords = 128;
  std::array<std::uint32_t, kWords> natural;  // Codes in the order of columns.
  while (!out.empty()) {
    const std::int64_t word = first / 8;
    const std::int64_t words = std::min(kWords, (first + std::ssize(out) + 7) / 8 - word);
    for (std::int64_t i = 0; i < words; ++i) {
      const auto packed = load_at<std::uint32_t>(bits.data(), word + i);
      // AWQ stores the even columns of a word in its lower half and the odd ones in its upper half (see Packing::kAwq).
      natural[static_cast<std::size_t>(i)] = spread(packed & 0xFFFFU) | (spread(packed >> 16) << 4);
    }
    const std::size_t count = std::min(out.size(), static_cast<std::size_t>(8 * words - first % 8));
    unpack_halves(reinterpret_cast<const std::byte*>(natural.data()), first % 8, table, out.first(count));
    out = out.subspan(count);
    first += static_cast<std::int64_t>(count);
  }
}

void unpack_column(std::span<const std::byte> low, std::span<const std::byte> high, int shift, int width,
                   std::span<float> out) {
  kColumn(low.data(), high.data(), shift, width, out.data(), out.size());
}

void fill_groups(std::span<std::int32_t> index, std::int64_t first, std::int64_t size) {
  for (std::size_t i = 0; i < index.size(); ++i) {
    index[i] = static_cast<std::int32_t>((first + static_cast<std::int64_t>(i)) / size);
  }
}

void apply_blocks(std::span<float> values, std::int64_t first, std::int64_t block, std::span<const float> scales,
                  std::span<const float> zeros) {
  kBlocks(values.data(), first % block, block, scales.data(), zeros.empty() ? nullptr : zeros.data(),
          std::ssize(values));
}

void apply_indexed(std::span<float> values, std::span<const std::int32_t> index, std::span<const float> scales,
                   std::span<const float> zeros) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto at = static_cast<std::size_t>(index[i]);
    values[i] = (values[i] - (zeros.empty() ? 0.0F : zeros[at])) * scales[at];
  }
}

void add_blocks(std::span<float> values, std::int64_t first, std::int64_t block, std::span<const float> numbers) {
  for (std::int64_t left = block - first % block; !values.empty(); left = block, numbers = numbers.subspan(1)) {
    const auto here = static_cast<std::size_t>(std::min(left, std::ssize(values)));
    for (float& each : values.first(here)) each += numbers.front();
    values = values.subspan(here);
  }
}

void multiply(std::span<float> values, float factor) { kMultiply(values.data(), factor, values.size()); }

void divide(std::span<float> values, float divisor) {
  // The inverse of a power of two is exact, and a product by it is rounded like the quotient.
  int exponent = 0;
  const bool is_power = std::frexp(std::abs(divisor), &exponent) == 0.5F;
  if (is_power && std::abs(exponent) < 100) return multiply(values, 1 / divisor);
  kDivide(values.data(), divisor, values.size());
}

void round_to_float16(std::span<float> values) { kFloat16(values.data(), values.size()); }

void add_weighted(std::span<float> sums, std::span<const float> values, float weight) {
  kAdd(sums.data(), values.data(), weight, sums.size());
}

}  // namespace shard
