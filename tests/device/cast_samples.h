/// \file
/// Elements to cast, for every pair of dtypes: all patterns of 8- and 16-bit types, of the others special ones and
/// random ones.
#pragma once

#include <fmt/format.h>

#include <bit>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "libshard/core/dtype.h"

namespace shard::testing {

struct CastSample {
  DType from, to;
  std::vector<std::byte> in;

  std::int64_t elements() const { return static_cast<std::int64_t>(in.size()) / element_bytes(from); }
  std::size_t out_bytes() const { return static_cast<std::size_t>(elements() * element_bytes(to)); }
  std::string name() const { return fmt::format("{} to {}", dtype_name(from), dtype_name(to)); }
};

/// Numbers of `bytes` each: all of them, or, if there are too many, those around the limits of all types.
inline std::vector<std::byte> patterns(int bytes, std::mt19937_64& random) {
  std::vector<std::uint64_t> numbers;
  if (bytes <= 2) {
    for (std::uint64_t i = 0; i < std::uint64_t{1} << (8 * bytes); ++i) numbers.push_back(i);
  } else {
    for (int exponent = 0; exponent < 256; ++exponent) {  // Floats of every exponent, ties and their neighbours.
      for (const std::uint32_t mantissa :
           {0U, 1U, 0x1000U, 0xFFFFU, 0x100000U, 0x200001U, 0x3FFFFFU, 0x400000U, 0x7FFFFFU}) {
        const std::uint32_t single = (static_cast<std::uint32_t>(exponent) << 23) | mantissa;
        const float value = std::bit_cast<float>(single);
        numbers.push_back(bytes == 4 ? single : std::bit_cast<std::uint64_t>(static_cast<double>(value)));
        numbers.push_back(numbers.back() | std::uint64_t{1} << (8 * bytes - 1));
      }
    }
    for (int bit = 0; bit < 8 * bytes; ++bit) {  // Integers around powers of two.
      for (const std::uint64_t more : {0ULL, 1ULL, ~0ULL}) numbers.push_back((std::uint64_t{1} << bit) + more);
    }
    for (int i = 0; i < 20'000; ++i) numbers.push_back(random());
  }
  std::vector<std::byte> packed(numbers.size() * static_cast<std::size_t>(bytes));
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    std::memcpy(packed.data() + i * static_cast<std::size_t>(bytes), &numbers[i], static_cast<std::size_t>(bytes));
  }
  return packed;
}

/// An odd number of elements in any case, so that blocks have edges.
inline std::vector<CastSample> cast_samples() {
  std::mt19937_64 random(7);
  std::vector<CastSample> samples;
  for (int from = 0; from < kDTypeCount; ++from) {
    const auto source = static_cast<DType>(from);
    if (!is_castable(source)) continue;
    std::vector<std::byte> in = patterns(element_bytes(component_of(source)), random);
    const auto size = static_cast<std::size_t>(element_bytes(source));
    in.resize(in.size() / size * size);
    if (in.size() / size % 2 == 0) in.resize(in.size() - size);
    for (int to = 0; to < kDTypeCount; ++to) {
      if (is_castable(static_cast<DType>(to))) samples.push_back({source, static_cast<DType>(to), in});
    }
  }
  return samples;
}

}  // namespace shard::testing
