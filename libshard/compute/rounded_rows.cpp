#include "libshard/compute/rounded_rows.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "libshard/core/for_processor.h"
#include "libshard/core/processor.h"
#include "libshard/exec/small_float.h"

// Compiled with -fno-trapping-math, so that choices may be computed in vectors, as cast.cpp is.

namespace shard {

namespace {

using Sixteen [[gnu::vector_size(16)]] = std::uint8_t;
using Eight16 [[gnu::vector_size(16)]] = std::uint16_t;
using Eight [[gnu::vector_size(32)]] = float;
using EightInt [[gnu::vector_size(32)]] = std::int32_t;
using EightWord [[gnu::vector_size(32)]] = std::uint32_t;
using SixteenInt [[gnu::vector_size(32)]] = std::int16_t;
using ThirtyTwo [[gnu::vector_size(32)]] = std::uint8_t;
using Two [[gnu::vector_size(16)]] = std::uint64_t;

// Vectors of 32 bytes are never passed by value, because their calling convention depends on the processor.

/// table[order[i]] for each i. Clang, which builds only the fuzz targets, has no such operation.
[[gnu::always_inline]] inline Sixteen pick(Sixteen table, Sixteen order) {
#if defined(__clang__)
  Sixteen picked{};
  for (int i = 0; i < 16; ++i) picked[i] = table[order[i]];
  return picked;
#else
  return __builtin_shuffle(table, order);
#endif
}

/// The first, or the last, eight bytes of `a` and `b` in turns.
[[gnu::always_inline]] inline Sixteen first_in_turns(Sixteen a, Sixteen b) {
  return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}
[[gnu::always_inline]] inline Sixteen last_in_turns(Sixteen a, Sixteen b) {
  return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}

/// Rounds numbers to bfloat16: those at even places and those at odd ones, which meet without being moved. \pre the
/// mantissa of NaN has zeros after the first bit, so that rounding does not carry into the sign
[[gnu::always_inline]] inline void round_in_turns(const Eight& even, const Eight& odd, SixteenInt& out) {
  const auto a = reinterpret_cast<EightWord>(even), b = reinterpret_cast<EightWord>(odd);
  const EightWord rounded = ((a + 0x7FFFU + ((a >> 16) & 1U)) >> 16) | ((b + 0x7FFFU + ((b >> 16) & 1U)) & 0xFFFF0000U);
  out = reinterpret_cast<SixteenInt>(rounded);
}

/// Gives each NaN the code of Bfloat16::encode.
[[gnu::always_inline]] inline void unify_nan(SixteenInt& numbers) {
  constexpr std::int16_t kNan = 0x7FC0;
  numbers = (numbers & 0x7FFF) > 0x7F80 ? SixteenInt{} + kNan : numbers;
}

/// The number, or a NaN as round_in_turns needs it.
[[gnu::always_inline]] inline float with_short_nan(float number) {
  return std::isnan(number) ? std::numeric_limits<float>::quiet_NaN() : number;
}

/// The numbers of all 4-bit codes: of the even ones and of the odd ones.
struct NumbersInTurns {
  Eight even, odd;

  explicit NumbersInTurns(const float* numbers) {
    for (std::size_t i = 0; i < 8; ++i) {
      even[i] = with_short_nan(numbers[2 * i]);
      odd[i] = with_short_nan(numbers[2 * i + 1]);
    }
  }
};

/// The rounded numbers of the 16 codes of a block: the lower and the upper bytes of their bfloat16.
struct Products {
  Sixteen low, high;
};

/// Computes the numbers of all codes in a block, in the order of operations that formula.h states, and rounds each
/// once. \pre zero, scale and factor have short NaN
[[gnu::always_inline]] inline Products products_of(const NumbersInTurns& numbers, float zero, float scale, float factor,
                                                   bool through_float16) {
  Eight even = (numbers.even - zero) * scale * factor, odd = (numbers.odd - zero) * scale * factor;
  if (through_float16) {
    std::array<float, 16> values;
    std::memcpy(values.data(), &even, sizeof even);
    std::memcpy(values.data() + 8, &odd, sizeof odd);
    round_to_float16(values);
    std::memcpy(&even, values.data(), sizeof even);
    std::memcpy(&odd, values.data() + 8, sizeof odd);
  }
  SixteenInt rounded;
  round_in_turns(even, odd, rounded);
  unify_nan(rounded);
  const auto bytes = reinterpret_cast<ThirtyTwo>(rounded);
  return {__builtin_shufflevector(bytes, bytes, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30),
          __builtin_shufflevector(bytes, bytes, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31)};
}

/// Looks up the products of 16 codes in 8 bytes.
template <bool kIsHighFirst>
[[gnu::always_inline]] inline void look_up_sixteen(const std::byte* codes, const Products& products, std::byte* out) {
  std::uint64_t word = 0;
  std::memcpy(&word, codes, sizeof word);
  const auto both = reinterpret_cast<Sixteen>(Two{word, 0});
  const Sixteen lower = both & 15, upper = both >> 4;
  const Sixteen order = kIsHighFirst ? first_in_turns(upper, lower) : first_in_turns(lower, upper);
  const Sixteen low = pick(products.low, order), high = pick(products.high, order);
  const Sixteen first = first_in_turns(low, high), last = last_in_turns(low, high);
  std::memcpy(out, &first, sizeof first);
  std::memcpy(out + sizeof first, &last, sizeof last);
}

/// Looks up the products of `bytes` bytes with two codes each.
template <bool kIsHighFirst>
[[gnu::always_inline]] inline void look_up(const std::byte* codes, std::size_t bytes, const Products& products,
                                           std::byte* out) {
  std::size_t done = 0;
  for (; done + 8 <= bytes; done += 8) look_up_sixteen<kIsHighFirst>(codes + done, products, out + 4 * done);
  if (done == bytes) return;
  std::array<std::byte, 8> rest{};
  std::array<std::byte, 32> last;
  std::memcpy(rest.data(), codes + done, bytes - done);
  look_up_sixteen<kIsHighFirst>(rest.data(), products, last.data());
  std::memcpy(out + 4 * done, last.data(), 4 * (bytes - done));
}

/// Converts 4-bit codes block by block.
template <bool kIsHighFirst>
[[gnu::always_inline]] inline void rounded_halves_loop(const std::byte* codes, std::int64_t first,
                                                       const NumbersInTurns& numbers, const RowScales& scales,
                                                       std::byte* out, std::int64_t count) {
  const float *scale = scales.scales.data(), *zero = scales.zeros.empty() ? nullptr : scales.zeros.data();
  std::int64_t left = scales.block - first % scales.block;  // The codes that remain in the first block.
  for (std::int64_t i = 0; i < count; left = scales.block) {
    const std::int64_t here = std::min(left, count - i);
    const float subtracted = zero == nullptr ? 0.0F : with_short_nan(*zero++);
    const Products products =
        products_of(numbers, subtracted, with_short_nan(*scale++), scales.factor, scales.through_float16);
    look_up<kIsHighFirst>(codes + i / 2, static_cast<std::size_t>(here / 2), products, out + 2 * i);
    i += here;
  }
}

#if defined(__x86_64__)
/// numbers[index[i]] for each of eight, of 16 numbers in two vectors.
[[gnu::always_inline]] inline void pick_eight(const Eight& low, const Eight& high, const EightInt& index, Eight& out) {
#if defined(__clang__)
  for (int i = 0; i < 8; ++i) out[i] = index[i] < 8 ? low[index[i]] : high[index[i] - 8];
#else
  out = __builtin_shuffle(low, high, index);
#endif
}

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
      Eight values;
      pick_eight(low, high, index, values);
      values = (values - less) * by * scales.factor;
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

/// Decodes, scales and rounds 16 codes of E4M3. Their magnitudes become bfloat16 with exponents rebased from 7 to 127:
/// codes with exponent 0 get a leading 1, which is then subtracted. Numbers at even and at odd places are widened to
/// float32 without moving them, and the sign is added after the rounding, which is symmetric.
/// \pre the scale has a short NaN
[[gnu::always_inline]] inline void e4m3_sixteen(const std::byte* codes, float scale, std::byte* out) {
  constexpr std::int16_t kRebase = (127 - 7) << 7, kLeading = 1 << 7, kLeast = kRebase + kLeading, kNan = 0x7FC0;
  Sixteen narrow;
  std::memcpy(&narrow, codes, sizeof narrow);
  const SixteenInt wide = __builtin_convertvector(narrow, SixteenInt);
  const SixteenInt magnitude = wide & 0x7F, is_small = magnitude < 8;
  SixteenInt number = (magnitude << 4) + kRebase + (is_small & kLeading);
  number = magnitude == 0x7F ? SixteenInt{} + kNan : number;
  const SixteenInt leading = is_small & kLeast;
  const auto bits = reinterpret_cast<EightWord>(number), less = reinterpret_cast<EightWord>(leading);
  const Eight even = (reinterpret_cast<Eight>(bits << 16) - reinterpret_cast<Eight>(less << 16)) * scale;
  const Eight odd = (reinterpret_cast<Eight>(bits & 0xFFFF0000U) - reinterpret_cast<Eight>(less & 0xFFFF0000U)) * scale;
  SixteenInt result;
  round_in_turns(even, odd, result);
  result ^= (wide & 0x80) << 8;
  unify_nan(result);
  std::memcpy(out, &result, sizeof result);
}

[[gnu::always_inline]] inline void rounded_e4m3_loop(const std::byte* codes, float scale, std::byte* out,
                                                     std::size_t n) {
  constexpr std::size_t kTogether = 16;
  std::size_t done = 0;
  for (; done + kTogether <= n; done += kTogether) e4m3_sixteen(codes + done, scale, out + 2 * done);
  if (done == n) return;
  std::array<std::byte, kTogether> rest{};
  std::array<std::byte, 2 * kTogether> last;
  std::memcpy(rest.data(), codes + done, n - done);
  e4m3_sixteen(rest.data(), scale, last.data());
  std::memcpy(out + 2 * done, last.data(), 2 * (n - done));
}

[[gnu::always_inline]] inline void rounded_halves_in_order(const std::byte* codes, std::int64_t first,
                                                           const CodeTable& table, const RowScales& scales,
                                                           std::byte* out, std::int64_t count) {
  const NumbersInTurns numbers(table.numbers.data());
  table.is_high_first ? rounded_halves_loop<true>(codes, first, numbers, scales, out, count)
                      : rounded_halves_loop<false>(codes, first, numbers, scales, out, count);
}

[[gnu::always_inline]] inline void bfloat16_loop(const float* values, std::byte* out, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint16_t code = Bfloat16::encode(values[i]);
    std::memcpy(out + i * sizeof code, &code, sizeof code);
  }
}

const auto kToBfloat16 = for_processor<bfloat16_loop>(bfloat16_loop);
const auto kRoundHalves = for_processor<rounded_halves_in_order>(rounded_halves_in_order);
const auto kRoundE4m3 = for_processor<rounded_e4m3_loop>(rounded_e4m3_loop);

}  // namespace

void round_to_bfloat16(std::span<const float> values, std::span<std::byte> out) {
  kToBfloat16(values.data(), out.data(), values.size());
}

std::int64_t least_direct_block(bool through_float16) {
  constexpr std::int64_t kLeastProducts = 64;  // In shorter blocks, rounding all products takes longer than it saves.
  return kHasShortBlocks && !through_float16 ? 8 : kLeastProducts;
}

void round_halves(std::span<const std::byte> codes, std::int64_t first, const CodeTable& table, const RowScales& scales,
                  std::span<std::byte> out) {
#if defined(__x86_64__)
  const bool is_short = scales.block < 16 || (scales.block < 64 && scales.block % 16 != 0);
  if (kHasShortBlocks && is_short && !scales.through_float16) {
    return rounded_short_blocks(codes.data(), first, table.numbers.data(), table.is_high_first, scales, out.data(),
                                std::ssize(out) / 2);
  }
#endif
  kRoundHalves(codes.data(), first, table, scales, out.data(), std::ssize(out) / 2);
}

void round_e4m3(std::span<const std::byte> codes, std::int64_t first, const RowScales& scales,
                std::span<std::byte> out) {
  const auto count = std::ssize(codes);
  const float* scale = scales.scales.data();
  std::int64_t left = scales.block - first % scales.block;
  for (std::int64_t i = 0; i < count; left = scales.block) {
    const std::int64_t here = std::min(left, count - i);
    kRoundE4m3(codes.data() + i, with_short_nan(*scale++), out.data() + 2 * i, static_cast<std::size_t>(here));
    i += here;
  }
}

}  // namespace shard
