#include "libshard/compute/rounded_rows.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "libshard/core/processor.h"
#include "libshard/exec/small_float.h"

// Compiled with -fno-trapping-math, so that choices may be computed in vectors, as cast.cpp is.

namespace shard {

namespace {

using Sixteen [[gnu::vector_size(16)]] = std::uint8_t;
using Eight16 [[gnu::vector_size(16)]] = std::uint16_t;

/// The rounded numbers of the 16 codes of a block: the lower and the upper bytes of their bfloat16.
struct Products {
  Sixteen low, high;
};

/// Computes the numbers of all codes in a block, in the order of operations that formula.h states, and rounds each
/// once.
[[gnu::always_inline]] inline Products products_of(const float* numbers, float zero, float scale, float factor,
                                                   bool through_float16) {
  std::array<float, 16> values;
  for (std::size_t i = 0; i < 16; ++i) values[i] = (numbers[i] - zero) * scale;
  if (factor != 1) {
    for (float& value : values) value *= factor;
  }
  if (through_float16) round_to_float16(values);
  std::array<std::uint8_t, 16> low, high;
  for (std::size_t i = 0; i < 16; ++i) {
    const std::uint32_t code = Bfloat16::encode(values[i]);
    low[i] = static_cast<std::uint8_t>(code);
    high[i] = static_cast<std::uint8_t>(code >> 8);
  }
  return {std::bit_cast<Sixteen>(low), std::bit_cast<Sixteen>(high)};
}

/// Joins lower and upper bytes to eight numbers: those of the first eight codes, or of the last eight.
[[gnu::always_inline]] inline Eight16 join(Sixteen low, Sixteen high, bool is_last) {
  constexpr Sixteen kFirst{0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23};
  constexpr Sixteen kLast{8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  return std::bit_cast<Eight16>(is_last ? __builtin_shuffle(low, high, kLast) : __builtin_shuffle(low, high, kFirst));
}

/// Stores 16 numbers, alternately from `a` and `b`.
[[gnu::always_inline]] inline void store_in_turns(Eight16 a, Eight16 b, std::byte* out) {
  constexpr Eight16 kFirst{0, 8, 1, 9, 2, 10, 3, 11}, kLast{4, 12, 5, 13, 6, 14, 7, 15};
  const Eight16 first = __builtin_shuffle(a, b, kFirst), last = __builtin_shuffle(a, b, kLast);
  std::memcpy(out, &first, sizeof first);
  std::memcpy(out + sizeof first, &last, sizeof last);
}

/// Looks up the products of `bytes` bytes with two codes each. A shuffle looks up 16 codes at once.
[[gnu::always_inline]] inline void look_up(const std::byte* codes, std::size_t bytes, const Products& products,
                                           bool is_high_first, std::byte* out) {
  std::size_t done = 0;
  while (done < bytes) {
    const std::size_t count = std::min<std::size_t>(16, bytes - done);
    Sixteen both{};
    if (count == 16) {
      std::memcpy(&both, codes + done, 16);
    } else if (count >= 8) {
      std::memcpy(&both, codes + done, 8);
    } else {
      std::memcpy(&both, codes + done, count);
    }
    Sixteen a = both & 15, b = both >> 4;
    if (is_high_first) std::swap(a, b);
    const Sixteen low_a = __builtin_shuffle(products.low, a), high_a = __builtin_shuffle(products.high, a);
    const Sixteen low_b = __builtin_shuffle(products.low, b), high_b = __builtin_shuffle(products.high, b);
    std::byte* const to = out + 4 * done;
    if (count >= 8) {
      store_in_turns(join(low_a, high_a, false), join(low_b, high_b, false), to);
    } else {
      std::array<std::byte, 32> last;
      store_in_turns(join(low_a, high_a, false), join(low_b, high_b, false), last.data());
      std::memcpy(to, last.data(), 4 * count);
    }
    if (count == 16) store_in_turns(join(low_a, high_a, true), join(low_b, high_b, true), to + 32);
    done += count == 16 ? 16 : count >= 8 ? 8 : count;
  }
}

/// Converts 4-bit codes block by block.
[[gnu::always_inline]] inline void rounded_halves_loop(const std::byte* codes, std::int64_t first, const float* numbers,
                                                       bool is_high_first, const RowScales& scales, std::byte* out,
                                                       std::int64_t count) {
  const float *scale = scales.scales.data(), *zero = scales.zeros.empty() ? nullptr : scales.zeros.data();
  std::int64_t left = scales.block - first % scales.block;  // The codes that remain in the first block.
  for (std::int64_t i = 0; i < count; left = scales.block) {
    const std::int64_t here = std::min(left, count - i);
    const Products products =
        products_of(numbers, zero == nullptr ? 0.0F : *zero++, *scale++, scales.factor, scales.through_float16);
    look_up(codes + i / 2, static_cast<std::size_t>(here / 2), products, is_high_first, out + 2 * i);
    i += here;
  }
}

#if defined(__x86_64__)
using Eight [[gnu::vector_size(32)]] = float;
using EightInt [[gnu::vector_size(32)]] = std::int32_t;
using EightWord [[gnu::vector_size(32)]] = std::uint32_t;

/// Converts 4-bit codes of short blocks, eight at a time, without a table of products. A block of fewer than eight, or
/// the rest of one, is converted code by code. \pre no rounding to float16
[[gnu::target("avx2")]] void rounded_short_blocks(const std::byte* codes, std::int64_t first, const float* numbers,
                                                  bool is_high_first, const RowScales& scales, std::byte* out,
                                                  std::int64_t count) {
  Eight low, high;
  std::memcpy(&low, numbers, sizeof low);
  std::memcpy(&high, numbers + 8, sizeof high);
  constexpr EightWord kLowFirst{0, 4, 8, 12, 16, 20, 24, 28}, kHighFirst{4, 0, 12, 8, 20, 16, 28, 24};
  const EightWord shifts = is_high_first ? kHighFirst : kLowFirst;
  const float *scale = scales.scales.data(), *zero = scales.zeros.empty() ? nullptr : scales.zeros.data();
  std::int64_t left = scales.block - first % scales.block;
  for (std::int64_t i = 0; i < count; left = scales.block) {
    const std::int64_t end = i + std::min(left, count - i);
    const float by = *scale++, less = zero == nullptr ? 0.0F : *zero++;
    for (; i + 8 <= end; i += 8) {
      std::uint32_t word = 0;
      std::memcpy(&word, codes + i / 2, sizeof word);
      const auto index = reinterpret_cast<EightInt>(((EightWord{} + word) >> shifts) & 15U);
      const Eight values = (__builtin_shuffle(low, high, index) - less) * by * scales.factor;
      const auto bits = reinterpret_cast<EightWord>(values);
      const EightWord rounded = (bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16;
      const EightInt is_nan = reinterpret_cast<EightInt>(bits & 0x7FFFFFFFU) > 0x7F800000;
      const EightWord result = is_nan ? EightWord{} + 0x7FC0U : rounded;
      const auto narrow = __builtin_convertvector(result, Eight16);
      std::memcpy(out + 2 * i, &narrow, sizeof narrow);
    }
    for (; i < end; ++i) {
      const auto byte = static_cast<unsigned>(codes[i / 2]);
      const bool is_upper = (i % 2 != 0) != is_high_first;
      const std::uint16_t code =
          Bfloat16::encode((numbers[(byte >> (is_upper ? 4 : 0)) & 15U] - less) * by * scales.factor);
      std::memcpy(out + 2 * i, &code, sizeof code);
    }
  }
}
const bool kHasShortBlocks = has_avx2();
#else
constexpr bool kHasShortBlocks = false;
#endif

/// Decodes, scales and rounds E4M3. As in unpack.cpp, a separate loop widens the codes first.
[[gnu::always_inline]] inline void rounded_e4m3_loop(const std::byte* codes, float scale, std::byte* out,
                                                     std::size_t n) {
  constexpr std::size_t kPart = 256;
  constexpr std::int32_t kRebase = (127 - 7) << 23;
  std::array<std::int32_t, kPart> wide;
  std::array<std::uint16_t, kPart> rounded;
  for (std::size_t done = 0; done < n; done += kPart) {
    const std::size_t count = std::min(kPart, n - done);
    for (std::size_t i = 0; i < count; ++i) wide[i] = static_cast<std::int32_t>(codes[done + i]);
    for (std::size_t i = 0; i < count; ++i) {
      const std::int32_t magnitude = wide[i] & 0x7F, sign = (wide[i] & 0x80) << 24;
      const float subnormal = static_cast<float>(magnitude) * 0x1p-9F;
      std::int32_t number = magnitude < 8 ? std::bit_cast<std::int32_t>(subnormal) : (magnitude << 20) + kRebase;
      number = magnitude == 0x7F ? 0x7FC00000 : number;
      rounded[i] = Bfloat16::encode(std::bit_cast<float>(number | sign) * scale);
    }
    std::memcpy(out + 2 * done, rounded.data(), 2 * count);
  }
}

void rounded_halves_any(const std::byte* codes, std::int64_t first, const float* numbers, bool is_high_first,
                        const RowScales& scales, std::byte* out, std::int64_t count) {
  rounded_halves_loop(codes, first, numbers, is_high_first, scales, out, count);
}
void rounded_e4m3_any(const std::byte* codes, float scale, std::byte* out, std::size_t n) {
  rounded_e4m3_loop(codes, scale, out, n);
}

#if defined(__x86_64__)
[[gnu::target("avx2")]] void rounded_halves_avx2(const std::byte* codes, std::int64_t first, const float* numbers,
                                                 bool is_high_first, const RowScales& scales, std::byte* out,
                                                 std::int64_t count) {
  rounded_halves_loop(codes, first, numbers, is_high_first, scales, out, count);
}
[[gnu::target("avx2")]] void rounded_e4m3_avx2(const std::byte* codes, float scale, std::byte* out, std::size_t n) {
  rounded_e4m3_loop(codes, scale, out, n);
}
const auto kRoundHalves = has_avx2() ? rounded_halves_avx2 : rounded_halves_any;
const auto kRoundE4m3 = has_avx2() ? rounded_e4m3_avx2 : rounded_e4m3_any;
#else
constexpr auto kRoundHalves = rounded_halves_any;
constexpr auto kRoundE4m3 = rounded_e4m3_any;
#endif

}  // namespace

std::int64_t least_direct_block(bool through_float16) {
  constexpr std::int64_t kLeastProducts = 64;  // In shorter blocks, rounding all products takes longer than it saves.
  return kHasShortBlocks && !through_float16 ? 8 : kLeastProducts;
}

void round_halves(std::span<const std::byte> codes, std::int64_t first, const CodeTable& table, const RowScales& scales,
                  std::span<std::byte> out) {
#if defined(__x86_64__)
  constexpr std::int64_t kShort = 64;
  if (kHasShortBlocks && scales.block < kShort && !scales.through_float16) {
    return rounded_short_blocks(codes.data(), first, table.numbers.data(), table.is_high_first, scales, out.data(),
                                std::ssize(out) / 2);
  }
#endif
  kRoundHalves(codes.data(), first, table.numbers.data(), table.is_high_first, scales, out.data(), std::ssize(out) / 2);
}

void round_e4m3(std::span<const std::byte> codes, std::int64_t first, const RowScales& scales,
                std::span<std::byte> out) {
  const auto count = std::ssize(codes);
  const float* scale = scales.scales.data();
  std::int64_t left = scales.block - first % scales.block;
  for (std::int64_t i = 0; i < count; left = scales.block) {
    const std::int64_t here = std::min(left, count - i);
    kRoundE4m3(codes.data() + i, *scale++, out.data() + 2 * i, static_cast<std::size_t>(here));
    i += here;
  }
}

}  // namespace shard
