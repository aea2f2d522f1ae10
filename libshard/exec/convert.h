/// \file Conversion of one element between dtypes, for loops on the CPU (cast.cpp) and kernels on a device. Inside
///   libshard/exec and libshard/device only.
///
/// Every conversion goes through one of four wide types that represents all values of the source exactly: float,
/// double, int64 or uint64. `widen` converts to a wide type, `narrow` converts from it. So n sources and m targets need
/// 4 m + n loops instead of n m. All functions are constexpr, so that nvcc compiles them for devices too. They return
/// the same bits on every processor, because the code defines all results that C++ or hardware leaves open (floats out
/// of an integer's range, NaN).
#pragma once

#include <bit>
#include <concepts>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "libshard/core/dtype.h"
#include "libshard/exec/small_float.h"

namespace shard::convert {

/// A bool is one byte. Any byte except 0 is true; true is written as 1.
struct Bool {
  using Bits = std::uint8_t;
};

/// True for the types with which C++ computes. Others have functions decode and encode (small_float.h).
template <class T>
constexpr bool kIsNative = std::is_arithmetic_v<T>;

template <class T>
struct BitsOf {
  using Type = typename T::Bits;
};
template <class T>
requires kIsNative<T>
struct BitsOf<T> {
  using Type = T;
};
/// The type in which an element of T is loaded and stored.
template <class T>
using Bits = typename BitsOf<T>::Type;

/// The wide type of T.
template <class T>
using Wide =
    std::conditional_t<std::is_same_v<T, double> || std::is_same_v<T, std::uint64_t>, T,
                       std::conditional_t<std::is_integral_v<T> || std::is_same_v<T, Bool>, std::int64_t, float>>;

/// The dtype of Wide<T>, if T is the type of `from`.
constexpr DType wide_of(DType from, bool is_floating) {
  if (from == DType::kFloat64 || from == DType::kUint64) return from;
  return is_floating ? DType::kFloat32 : DType::kInt64;
}

/// NaN keeps its sign and the upper bits of its payload, and becomes quiet, as in conversions of CPUs. GPUs convert
/// every NaN to the same one, so the code defines the result there. A test compares the bits of both.
constexpr float to_float_by_bits(double value) {
  const auto bits = std::bit_cast<std::uint64_t>(value);
  const bool is_nan = (bits << 1) > (std::uint64_t{0x7FF} << 53);
  const auto nan = static_cast<std::uint32_t>(((bits >> 32) & 0x80000000U) | 0x7FC00000U | ((bits >> 29) & 0x3FFFFFU));
  return is_nan ? std::bit_cast<float>(nan) : static_cast<float>(value);
}
constexpr double to_double_by_bits(float value) {
  const std::uint64_t bits = std::bit_cast<std::uint32_t>(value);
  const bool is_nan = (bits & 0x7FFFFFFFU) > kFloat32Infinity;
  const std::uint64_t nan = ((bits & 0x80000000U) << 32) | 0x7FF8000000000000U | ((bits & 0x3FFFFFU) << 29);
  return is_nan ? std::bit_cast<double>(nan) : static_cast<double>(value);
}

#ifdef __CUDA_ARCH__
constexpr float to_float(double value) { return to_float_by_bits(value); }
constexpr double to_double(float value) { return to_double_by_bits(value); }
#else
constexpr float to_float(double value) { return static_cast<float>(value); }
constexpr double to_double(float value) { return static_cast<double>(value); }
#endif

template <class To, class From>
constexpr To to_real(From value) {
  if constexpr (std::is_same_v<To, float> && std::is_same_v<From, double>) {
    return to_float(value);
  } else if constexpr (std::is_same_v<To, double> && std::is_same_v<From, float>) {
    return to_double(value);
  } else {
    return static_cast<To>(value);
  }
}

/// Converts a stored element to its wide type, exactly.
template <class From>
constexpr Wide<From> widen(Bits<From> bits) {
  if constexpr (std::is_same_v<From, Bool>) {
    return bits != 0;
  } else if constexpr (kIsNative<From>) {
    return bits;
  } else {
    return From::decode(bits);
  }
}

/// Truncates. A value that does not fit Integer becomes its smallest value, as in x86's conversions.
template <std::signed_integral Integer, std::floating_point Real>
constexpr Integer truncate(Real value) {
  constexpr Real kEnd = -static_cast<Real>(std::numeric_limits<Integer>::min());  // This is 2^31 or 2^63, exactly.
  const bool fits = value < kEnd && value > -kEnd - (sizeof(Integer) < sizeof(Real) ? Real{1} : Real{0});
  return fits ? static_cast<Integer>(value) : std::numeric_limits<Integer>::min();
}

/// In C++, converting a float out of the integer's range is undefined. This function returns torch's results on x86.
/// Narrow types are the low bits of an int32 (uint8 of an int64). A uint64 is computed in two halves of its range.
///
/// torch has two results for uint32 outside [-2^31, 2^32) (vectorized or not). Here it is the low half of an int64. In
/// torch, NaN of the fnuz types and of float8_e8m0fnu becomes 0. Here it is converted like any other NaN.
template <std::integral To, std::floating_point Real>
constexpr To to_integer(Real value) {
  if constexpr (std::is_same_v<To, std::int64_t>) {
    return truncate<std::int64_t>(value);
  } else if constexpr (std::is_same_v<To, std::uint64_t>) {
    constexpr Real kHalf = 9223372036854775808.0F;
    const bool upper = value >= kHalf;
    const auto low = static_cast<std::uint64_t>(truncate<std::int64_t>(upper ? value - kHalf : value));
    return low ^ (static_cast<std::uint64_t>(upper) << 63);
  } else if constexpr (std::is_same_v<To, std::uint32_t> || std::is_same_v<To, std::uint8_t>) {
    return static_cast<To>(truncate<std::int64_t>(value));
  } else {
    return static_cast<To>(truncate<std::int32_t>(value));
  }
}

/// Converts a value of a wide type to an element of To. Floats are rounded to the nearest, ties to even. Integers keep
/// their low bits; to_integer defines the step from floats to integers.
template <class To, class From>
constexpr Bits<To> narrow(From value) {
  if constexpr (std::is_same_v<To, Bool>) {
    return value != 0;
  } else if constexpr (std::is_floating_point_v<To>) {
    return to_real<To>(value);
  } else if constexpr (std::is_integral_v<To> && std::is_integral_v<From>) {
    return static_cast<To>(value);
  } else if constexpr (std::is_integral_v<To>) {
    return to_integer<To>(value);
  } else {
    return To::encode(to_real<float>(value));  // Converts to float first and then to the target, like torch.
  }
}

// --- Overflow.

/// The bits of the smallest positive float that becomes infinite or NaN in To.
template <class To>
constexpr std::uint32_t overflow_of() {
  if constexpr (std::is_same_v<To, float>) {
    return kFloat32Infinity;
  } else {
    return To::kOverflow;
  }
}

/// Whether a finite From can become infinite or NaN in To, or a floating-point From can be outside the integers of To.
template <class To, class From>
constexpr bool kMayOverflow =
    std::is_integral_v<To> ? std::is_floating_point_v<From>
                           : !std::is_same_v<To, Bool> && !std::is_same_v<To, double> &&
                                 !(std::is_same_v<To, float> && !std::is_same_v<From, double>);

constexpr bool is_finite(double value) {
  return (std::bit_cast<std::uint64_t>(value) << 1) < (std::uint64_t{0x7FF} << 53);
}
constexpr bool is_finite(float value) {
  return (std::bit_cast<std::uint32_t>(value) << 1) < (std::uint32_t{0xFF} << 24);
}
constexpr bool is_finite(std::integral auto) { return true; }

/// Whether truncating `value` gives a number of To. NaN does not.
template <std::integral To, std::floating_point Real>
constexpr bool is_in_range(Real value) {
  constexpr Real kMin = static_cast<Real>(std::numeric_limits<To>::min());
  constexpr Real kEnd = 2 * static_cast<Real>(std::numeric_limits<To>::max() / 2 + 1);  // A power of two, exactly.
  return value < kEnd && (value > kMin - 1 || value == kMin);                           // Real may lack kMin - 1.
}

/// 1 if the finite `value` becomes infinite or NaN, or if it is outside the range of an integer To; otherwise 0.
template <class To, class From>
constexpr std::uint32_t overflows(From value) {
  if constexpr (std::is_integral_v<To>) {
    return static_cast<std::uint32_t>(!is_in_range<To>(value));
  } else {
    const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(to_real<float>(value)) & 0x7FFFFFFFU;
    return static_cast<std::uint32_t>(magnitude >= overflow_of<To>()) & static_cast<std::uint32_t>(is_finite(value));
  }
}

// --- From DType to types.

/// Calls `use` with a std::type_identity of the type of a real, castable dtype. Any other dtype counts as float32. The
/// compiler warns about a dtype that has no case.
template <class Use>
constexpr auto with_type(DType dtype, Use use) {
  switch (dtype) {
    case DType::kBool:
      return use(std::type_identity<Bool>());
    case DType::kUint8:
      return use(std::type_identity<std::uint8_t>());
    case DType::kInt8:
      return use(std::type_identity<std::int8_t>());
    case DType::kUint16:
      return use(std::type_identity<std::uint16_t>());
    case DType::kInt16:
      return use(std::type_identity<std::int16_t>());
    case DType::kUint32:
      return use(std::type_identity<std::uint32_t>());
    case DType::kInt32:
      return use(std::type_identity<std::int32_t>());
    case DType::kUint64:
      return use(std::type_identity<std::uint64_t>());
    case DType::kInt64:
      return use(std::type_identity<std::int64_t>());
    case DType::kFloat16:
      return use(std::type_identity<Float16>());
    case DType::kBfloat16:
      return use(std::type_identity<Bfloat16>());
    case DType::kFloat64:
      return use(std::type_identity<double>());
    case DType::kFloat8E4m3fn:
      return use(std::type_identity<Float8E4m3fn>());
    case DType::kFloat8E5m2:
      return use(std::type_identity<Float8E5m2>());
    case DType::kFloat8E4m3fnuz:
      return use(std::type_identity<Float8E4m3fnuz>());
    case DType::kFloat8E5m2fnuz:
      return use(std::type_identity<Float8E5m2fnuz>());
    case DType::kFloat8E8m0fnu:
      return use(std::type_identity<Float8E8m0fnu>());
    case DType::kFloat32:
      return use(std::type_identity<float>());
    case DType::kComplex32:
    case DType::kComplex64:
    case DType::kComplex128:
    case DType::kFloat4E2m1fnX2:
    case DType::kFloat6E2m3fn:
    case DType::kFloat6E3m2fn:
    case DType::kBits8:
    case DType::kBits16:
    case DType::kBits1x8:
    case DType::kBits2x4:
    case DType::kBits4x2:
    case DType::kBcomplex32:
    case DType::kQint8:
    case DType::kQuint8:
    case DType::kQint32:
    case DType::kQuint4x2:
    case DType::kQuint2x4:
      break;
  }
  return use(std::type_identity<float>());
}

}  // namespace shard::convert
