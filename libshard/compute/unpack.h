/// \file
/// Inner loops over packed codes and their scales: pure functions over spans. Inside libshard/compute only.
///
/// They are compiled for any CPU and for AVX2, as the loops of libshard/exec/cast.cpp are. Results are the same.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace shard {

/// The numbers of E2M1's codes.
inline constexpr std::array<float, 16> kFloat4Numbers{0.0F,  0.5F,  1.0F,  1.5F,  2.0F,  3.0F,  4.0F,  6.0F,
                                                      -0.0F, -0.5F, -1.0F, -1.5F, -2.0F, -3.0F, -4.0F, -6.0F};

/// The numbers of all codes of up to 8 bits. `pairs`: both numbers of a byte of two 4-bit codes, lower half first.
struct CodeTable {
  std::array<float, 256> numbers{};
  std::array<std::array<float, 2>, 256> pairs{};
  bool is_high_first = false;  ///< Whether `pairs` has the upper half first.

  /// Fills `pairs` from `numbers`, in the given order of halves.
  void fill_pairs(bool high_first = false);
};

/// Codes `first`, `first` + 1, ... of a little-endian string of bits that begins at `bits.front()`. With 4 bits, the
/// halves of a byte are in the order of table.pairs. \pre `bits` has all of them; 1 <= width <= 8
void unpack_bits(std::span<const std::byte> bits, std::int64_t first, int width, const CodeTable& table,
                 std::span<float> out);
/// The numbers of codes that are E4M3 (float8_e4m3fn): as unpack_bits with 8 bits, without a table.
void unpack_e4m3(std::span<const std::byte> codes, std::span<float> out);
/// Does the same as unpack_bits for AWQ's 32-bit words of 8 codes. \pre `bits` consists of whole words
void unpack_awq(std::span<const std::byte> bits, std::int64_t first, const CodeTable& table, std::span<float> out);
/// The codes of one row, if each column is packed into 32-bit words: the bits of each word of `low` from `shift` on,
/// and if they continue, the first bits of each word of `high`. The number of a code is the code itself. \pre `low`,
/// and `high` if it is needed, have 4 * out.size() bytes
void unpack_column(std::span<const std::byte> low, std::span<const std::byte> high, int shift, int width,
                   std::span<float> out);

/// Sets the groups of rows or columns, from number `first` on, whose index was never filled in. Each run of `size` of
/// them is one group.
void fill_groups(std::span<std::int32_t> index, std::int64_t first, std::int64_t size);

/// values[i] = (values[i] - zeros[(first + i) / block]) * scales[(first + i) / block]. `scales` and `zeros` begin with
/// the entry for `first`. Empty `zeros`: nothing is subtracted.
void apply_blocks(std::span<float> values, std::int64_t first, std::int64_t block, std::span<const float> scales,
                  std::span<const float> zeros);
/// Does the same with an entry's index for each value.
void apply_indexed(std::span<float> values, std::span<const std::int32_t> index, std::span<const float> scales,
                   std::span<const float> zeros);
/// values[i] += numbers[(first + i) / block]. `numbers` begins with the entry for `first`.
void add_blocks(std::span<float> values, std::int64_t first, std::int64_t block, std::span<const float> numbers);
void multiply(std::span<float> values, float factor);
void divide(std::span<float> values, float divisor);
/// Rounds each value to the nearest number of float16, as a conversion there and back does. NaN stays NaN.
void round_to_float16(std::span<float> values);
/// sums[i] += weight * values[i], with two roundings.
void add_weighted(std::span<float> sums, std::span<const float> values, float weight);

}  // namespace shard
