#include "libshard/exec/cast.h"

#include <algorithm>
#include <cassert>
#include <concepts>
#include <cstring>
#include <type_traits>

#include "libshard/exec/small_float.h"
#include "libshard/exec/strided_copy.h"

// Every conversion goes through one of four wide types that holds all values of the source exactly: float, double,
// int64 or uint64. `widen` makes them, `narrow` makes targets of them; between stands a block that stays in the first
// cache. So n sources and m targets need 4 m + n loops instead of n m. Compiled with -fno-trapping-math: nobody looks
// at floating-point exceptions here, and without them the compiler may compute both sides of a choice in vectors.

namespace shard {

namespace {

constexpr std::size_t kBlock = 1024;  // Elements; 8 KiB of the widest wide type.

struct Bool {
  using Bits = std::uint8_t;
};

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
template <class T>
using Bits = typename BitsOf<T>::Type;

template <class T>
T load(const std::byte* from, std::size_t index) {
  T value;
  std::memcpy(&value, from + index * sizeof(T), sizeof(T));
  return value;
}

template <class T>
void store(std::byte* to, std::size_t index, T value) {
  std::memcpy(to + index * sizeof(T), &value, sizeof(T));
}

// --- one element

template <class From>
auto widen_one(Bits<From> bits) {
  if constexpr (std::is_same_v<From, Bool>) {
    return static_cast<std::int64_t>(bits != 0);
  } else if constexpr (std::is_integral_v<From>) {
    return static_cast<std::conditional_t<std::is_same_v<From, std::uint64_t>, std::uint64_t, std::int64_t>>(bits);
  } else if constexpr (kIsNative<From>) {
    return bits;
  } else if constexpr (sizeof(bits) == 1) {
    return kDecoded<From>[bits];
  } else {
    return From::decode(bits);
  }
}

/// Truncates; what does not fit Integer becomes its smallest value, as x86's conversions make it.
template <std::signed_integral Integer, std::floating_point Real>
Integer truncate(Real value) {
  constexpr Real kEnd = -static_cast<Real>(std::numeric_limits<Integer>::min());  // 2^31 or 2^63, exact.
  const bool fits = value < kEnd && value > -kEnd - (sizeof(Integer) < sizeof(Real) ? Real{1} : Real{0});
  return fits ? static_cast<Integer>(value) : std::numeric_limits<Integer>::min();
}

/// C++ leaves a float out of the integer's range undefined. Chosen here is what torch gives on x86: narrow types are
/// cut from an int32 (uint8 from an int64), uint64 is made of two halves of its range. For uint32 torch itself gives
/// two answers (vectorised or not) outside [-2^31, 2^32); here it is the low half of an int64. NaN of the fnuz types
/// and of float8_e8m0fnu becomes 0 in torch; here it is like any other NaN.
template <std::integral To, std::floating_point Real>
To to_integer(Real value) {
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

template <class To, class Wide>
Bits<To> narrow_one(Wide value) {
  if constexpr (std::is_same_v<To, Bool>) {
    return value != 0;
  } else if constexpr (std::is_floating_point_v<To> || (std::is_integral_v<To> && std::is_integral_v<Wide>)) {
    return static_cast<To>(value);
  } else if constexpr (std::is_integral_v<To>) {
    return to_integer<To>(value);
  } else {
    return To::encode(static_cast<float>(value));  // As torch: first to float, then to the target.
  }
}

// --- overflow

template <class To>
constexpr std::uint32_t overflow_of() {
  if constexpr (std::is_same_v<To, float>) {
    return kFloat32Infinity;
  } else {
    return To::kOverflow;
  }
}

template <class To, class Wide>
constexpr bool kMayOverflow = !std::is_integral_v<To> && !std::is_same_v<To, Bool> && !std::is_same_v<To, double> &&
                              !(std::is_same_v<To, float> && !std::is_same_v<Wide, double>);

bool is_finite(double value) { return (std::bit_cast<std::uint64_t>(value) << 1) < (std::uint64_t{0x7FF} << 53); }
bool is_finite(float value) { return (std::bit_cast<std::uint32_t>(value) << 1) < (std::uint32_t{0xFF} << 24); }
bool is_finite(std::integral auto) { return true; }

/// 1 where the finite `value` becomes infinite or NaN.
template <class To, class Wide>
std::uint32_t overflows(Wide value) {
  const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(static_cast<float>(value)) & 0x7FFFFFFFU;
  return static_cast<std::uint32_t>(magnitude >= overflow_of<To>()) & static_cast<std::uint32_t>(is_finite(value));
}

// --- at most kBlock elements, compiled for any CPU and for AVX2

template <class From>
[[gnu::always_inline]] inline void widen_loop(const std::byte* in, std::byte* out, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) store(out, i, widen_one<From>(load<Bits<From>>(in, i)));
}

template <class To, class Wide>
[[gnu::always_inline]] inline std::int64_t narrow_loop(const std::byte* in, std::byte* out, std::size_t n) {
  std::uint32_t overflowed = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const Wide value = load<Wide>(in, i);
    store(out, i, narrow_one<To>(value));
    if constexpr (kMayOverflow<To, Wide>) overflowed += overflows<To>(value);
  }
  return overflowed;
}

using Widen = void (*)(const std::byte*, std::byte*, std::size_t);
using Narrow = std::int64_t (*)(const std::byte*, std::byte*, std::size_t);

template <class From>
void widen_any(const std::byte* in, std::byte* out, std::size_t n) {
  widen_loop<From>(in, out, n);
}

template <class To, class Wide>
std::int64_t narrow_any(const std::byte* in, std::byte* out, std::size_t n) {
  return narrow_loop<To, Wide>(in, out, n);
}

#if defined(__x86_64__)
bool has_avx2() { return __builtin_cpu_supports("avx2") != 0; }

template <class From>
[[gnu::target("avx2")]] void widen_avx2(const std::byte* in, std::byte* out, std::size_t n) {
  widen_loop<From>(in, out, n);
}

template <class To, class Wide>
[[gnu::target("avx2")]] std::int64_t narrow_avx2(const std::byte* in, std::byte* out, std::size_t n) {
  return narrow_loop<To, Wide>(in, out, n);
}

template <class From>
Widen pick_widen() {
  return has_avx2() ? widen_avx2<From> : widen_any<From>;
}
template <class To, class Wide>
Narrow pick_narrow() {
  return has_avx2() ? narrow_avx2<To, Wide> : narrow_any<To, Wide>;
}
#else
template <class From>
Widen pick_widen() {
  return widen_any<From>;
}
template <class To, class Wide>
Narrow pick_narrow() {
  return narrow_any<To, Wide>;
}
#endif

// --- from DType to types

/// Calls `use` with a default value of std::type_identity of the type that stands for a real dtype.
template <class Use>
auto with_type(DType dtype, Use use) {
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
    default:
      assert(dtype == DType::kFloat32);
      return use(std::type_identity<float>());
  }
}

Widen widen_of(DType from) {
  return with_type(from, []<class From>(std::type_identity<From>) { return pick_widen<From>(); });
}

Narrow narrow_of(DType wide, DType to) {
  return with_type(to, [wide]<class To>(std::type_identity<To>) {
    if (wide == DType::kFloat32) return pick_narrow<To, float>();
    if (wide == DType::kFloat64) return pick_narrow<To, double>();
    if (wide == DType::kUint64) return pick_narrow<To, std::uint64_t>();
    return pick_narrow<To, std::int64_t>();
  });
}

DType wide_of(DType from) {
  if (from == DType::kFloat64 || from == DType::kUint64) return from;
  return is_float(from) ? DType::kFloat32 : DType::kInt64;
}

std::size_t bytes_of(DType dtype) { return static_cast<std::size_t>(element_bytes(dtype)); }

// --- whole arrays

std::int64_t cast_real(DType from, const std::byte* in, DType to, std::byte* out, std::size_t elements) {
  if (from == to) {
    std::memcpy(out, in, elements * bytes_of(from));
    return 0;
  }
  const DType wide = wide_of(from);
  const Widen widen = wide == from ? nullptr : widen_of(from);
  const Narrow narrow = wide == to ? nullptr : narrow_of(wide, to);
  alignas(64) std::byte block[kBlock * 8];
  std::int64_t overflowed = 0;
  for (std::size_t done = 0; done < elements; done += kBlock) {
    const std::size_t n = std::min(kBlock, elements - done);
    const std::byte* source = in + done * bytes_of(from);
    std::byte* target = out + done * bytes_of(to);
    if (widen != nullptr) widen(source, narrow == nullptr ? target : block, n);
    if (narrow != nullptr) overflowed += narrow(widen == nullptr ? source : block, target, n);
  }
  return overflowed;
}

void copy_strided(std::size_t n, const std::byte* from, std::int64_t from_stride, std::byte* to, std::int64_t to_stride,
                  std::size_t element_bytes) {
  const auto size = static_cast<std::int64_t>(n);
  strided_copy({&size, 1}, from, {&from_stride, 1}, to, {&to_stride, 1}, element_bytes);
}

/// Complex to real: the real parts. To bool: whether either part is not zero.
std::int64_t cast_from_complex(DType part, const std::byte* in, DType to, std::byte* out, std::size_t elements) {
  const std::size_t part_bytes = bytes_of(part);
  alignas(64) std::byte parts[kBlock * 8];
  std::int64_t overflowed = 0;
  for (std::size_t done = 0; done < elements; done += kBlock) {
    const std::size_t n = std::min(kBlock, elements - done);
    const std::byte* source = in + done * 2 * part_bytes;
    std::byte* target = out + done * bytes_of(to);
    if (to == DType::kBool) {
      cast_real(part, source, to, parts, 2 * n);
      for (std::size_t i = 0; i < n; ++i) target[i] = parts[2 * i] | parts[2 * i + 1];
    } else {
      copy_strided(n, source, 2, parts, 1, part_bytes);
      overflowed += cast_real(part, parts, to, target, n);
    }
  }
  return overflowed;
}

std::int64_t cast_to_complex(DType from, const std::byte* in, DType part, std::byte* out, std::size_t elements) {
  const std::size_t part_bytes = bytes_of(part);
  alignas(64) std::byte parts[kBlock * 8];
  std::int64_t overflowed = 0;
  for (std::size_t done = 0; done < elements; done += kBlock) {
    const std::size_t n = std::min(kBlock, elements - done);
    overflowed += cast_real(from, in + done * bytes_of(from), part, parts, n);
    std::byte* target = out + done * 2 * part_bytes;
    std::memset(target, 0, 2 * n * part_bytes);
    copy_strided(n, parts, 1, target, 2, part_bytes);
  }
  return overflowed;
}

}  // namespace

bool can_cast(DType from, DType to) { return is_castable(from) && is_castable(to); }

std::int64_t cast(DType from, std::span<const std::byte> in, DType to, std::span<std::byte> out) {
  assert(can_cast(from, to));
  const std::size_t elements = in.size() / bytes_of(from);
  assert(in.size() == elements * bytes_of(from) && out.size() == elements * bytes_of(to));
  if (elements == 0) return 0;
  const DType from_part = component_of(from);
  const DType to_part = component_of(to);
  if (is_complex(from) && is_complex(to)) return cast_real(from_part, in.data(), to_part, out.data(), 2 * elements);
  if (is_complex(from)) return cast_from_complex(from_part, in.data(), to, out.data(), elements);
  if (is_complex(to)) return cast_to_complex(from, in.data(), to_part, out.data(), elements);
  return cast_real(from, in.data(), to, out.data(), elements);
}

}  // namespace shard
