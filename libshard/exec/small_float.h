/// \file The bits of floating-point types narrower than 32 bits, and torch's rules for reading and rounding them.
///
/// A type is described by its numbers of exponent and mantissa bits and by the meaning of its highest codes. encode and
/// decode follow from those. tests/live/cast_against_torch.py compares them with torch bit by bit. Inside
/// libshard/exec, libshard/device and libshard/compute only.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace shard {

/// The infinity of float32. A type's `kOverflow` is the smallest float32, as absolute bits, that has no finite value to
/// round to.
inline constexpr std::uint32_t kFloat32Infinity = 0x7F800000;

enum class SmallFloatEnd {
  kIeee,    ///< The highest exponent encodes infinity and NaN.
  kFinite,  ///< Named "fn": no infinity. All ones encode NaN.
  kFnuz,    ///< Named "fnuz": no infinity and no negative zero, whose code is NaN.
};

/// A type of this format. `kOverflow` is half a step past the largest value, as float32 bits, and includes the tie if
/// the tie rounds up.
template <class BitsType, int kExponentBits, int kMantissaBits, int kExponentBias, SmallFloatEnd kEnd,
          std::uint32_t kOverflowBits>
struct SmallFloat {
  using Bits = BitsType;
  static constexpr std::uint32_t kOverflow = kOverflowBits;
  static constexpr int kShift = 23 - kMantissaBits;
  static constexpr std::uint32_t kSignBit = 1U << (kExponentBits + kMantissaBits);
  static constexpr std::uint32_t kExponentMax = (1U << kExponentBits) - 1;
  static constexpr std::uint32_t kInfinity = kEnd == SmallFloatEnd::kIeee     ? kExponentMax << kMantissaBits
                                             : kEnd == SmallFloatEnd::kFinite ? kSignBit - 1
                                                                              : kSignBit;
  static constexpr std::uint32_t kNan = kEnd == SmallFloatEnd::kFnuz ? kSignBit : kSignBit - 1;

  /// Rounds to nearest even without branches, so that loops over it can be vectorized. For normal results, integer
  /// addition rounds the mantissa after the exponent is rebased. For subnormal results, the code adds a float whose
  /// last mantissa bit has the weight of the target's last bit, so that the addition itself rounds.
  static constexpr Bits encode(float value) {
    constexpr std::uint32_t kMinNormal = static_cast<std::uint32_t>(128 - kExponentBias) << 23;
    constexpr std::uint32_t kAligner = static_cast<std::uint32_t>(128 - kExponentBias + kShift) << 23;
    constexpr std::uint32_t kRebase = static_cast<std::uint32_t>(kExponentBias - 127) << 23;
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
    const std::uint32_t odd = (magnitude >> kShift) & 1U;
    const std::uint32_t normal = (magnitude + kRebase + ((1U << (kShift - 1)) - 1) + odd) >> kShift;
    const float aligned = std::bit_cast<float>(magnitude) + std::bit_cast<float>(kAligner);
    const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(aligned) - kAligner;
    std::uint32_t code = magnitude < kMinNormal ? subnormal : normal;
    code = magnitude >= kOverflow ? kInfinity : code;
    code = magnitude > kFloat32Infinity ? kNan : code;
    std::uint32_t sign = (bits >> 31) * kSignBit;
    if constexpr (kEnd == SmallFloatEnd::kFnuz) sign = code == 0 ? 0 : sign;
    return static_cast<Bits>(code | sign);
  }

  static constexpr float decode(Bits bits) {
    const std::uint32_t code = bits & (kSignBit - 1);
    const std::uint32_t sign = (bits & kSignBit) != 0 ? 0x80000000U : 0U;
    constexpr std::uint32_t kRebase = static_cast<std::uint32_t>(127 - kExponentBias) << 23;
    constexpr std::uint32_t kMinNormal = kRebase + (1U << 23);
    const std::uint32_t normal = (code << kShift) + kRebase;
    const float aligned = std::bit_cast<float>((code << kShift) + kMinNormal) - std::bit_cast<float>(kMinNormal);
    std::uint32_t result = code >> kMantissaBits == 0 ? std::bit_cast<std::uint32_t>(aligned) : normal;
    if constexpr (kEnd == SmallFloatEnd::kIeee) {
      // Infinity and NaN keep their mantissa under float32's highest exponent.
      result = code >= kInfinity ? (code << kShift) | kFloat32Infinity : result;
    } else if constexpr (kEnd == SmallFloatEnd::kFinite) {
      result = code == kNan ? kQuietNan : result;
    } else {
      result = bits == kNan ? kQuietNan : result;
    }
    return std::bit_cast<float>(result | sign);
  }

 private:
  static constexpr std::uint32_t kQuietNan = 0x7FC00000;
};

using Float16 = SmallFloat<std::uint16_t, 5, 10, 15, SmallFloatEnd::kIeee, 0x477FF000>;       // Overflows from 65520.
using Float8E4m3fn = SmallFloat<std::uint8_t, 4, 3, 7, SmallFloatEnd::kFinite, 0x43E80001>;   // Overflows past 464.
using Float8E5m2 = SmallFloat<std::uint8_t, 5, 2, 15, SmallFloatEnd::kIeee, 0x47700000>;      // Overflows from 61440.
using Float8E4m3fnuz = SmallFloat<std::uint8_t, 4, 3, 8, SmallFloatEnd::kFnuz, 0x43780000>;   // Overflows from 248.
using Float8E5m2fnuz = SmallFloat<std::uint8_t, 5, 2, 16, SmallFloatEnd::kFnuz, 0x47700000>;  // Overflows from 61440.

/// The upper half of a float32.
struct Bfloat16 {
  using Bits = std::uint16_t;
  static constexpr std::uint32_t kOverflow = 0x7F7F8000;
  static constexpr Bits encode(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t rounded = (bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16;
    return static_cast<Bits>((bits & 0x7FFFFFFFU) > kFloat32Infinity ? 0x7FC0U : rounded);
  }
  static constexpr float decode(Bits bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }
};

/// Consists only of an exponent: powers of two from 2^-127. The sign is lost and zero becomes 2^-127, as in torch.
struct Float8E8m0fnu {
  using Bits = std::uint8_t;
  static constexpr std::uint32_t kOverflow = 0x7F400000;  // Overflows from 1.5 * 2^127.
  static constexpr Bits encode(float value) {
    const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(value) & 0x7FFFFFFFU;
    const std::uint32_t exponent = magnitude >> 23;
    // A tie rounds up from a normal number and down from a subnormal one, whose last kept bit is the implicit leading
    // 1, which is 0.
    const std::uint32_t tie = exponent > 0 ? 0x400000U : 0x400001U;
    const std::uint32_t up = (magnitude & 0x7FFFFFU) >= tie ? 1U : 0U;
    return static_cast<Bits>(magnitude >= kFloat32Infinity ? 255U : exponent + up);
  }
  static constexpr float decode(Bits bits) {
    const std::uint32_t normal = static_cast<std::uint32_t>(bits) << 23;
    const std::uint32_t result = bits == 0 ? 0x00400000U : bits == 255 ? 0x7FC00000U : normal;
    return std::bit_cast<float>(result);
  }
};

/// The values of all codes of an 8-bit type. A lookup needs no arithmetic and no special case for subnormal results.
template <class F>
inline constexpr std::array<float, 256> kDecoded = [] {
  std::array<float, 256> table{};
  for (unsigned code = 0; code < 256; ++code) table[code] = F::decode(static_cast<typename F::Bits>(code));
  return table;
}();

}  // namespace shard
