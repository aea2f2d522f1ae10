#include "libshard/exec/cast.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <type_traits>

#include "libshard/core/for_processor.h"
#include "libshard/exec/convert.h"
#include "libshard/exec/small_float.h"
#include "libshard/exec/strided_copy.h"

// A cast has two steps: `widen` is exact and gives one of four wide types (float, double, int64, uint64), `narrow`
// rounds once. Both (convert.h) run over a block that fits in the first-level cache, so the wide elements never reach
// memory. There is code for each dtype and each wide type, not for each pair of dtypes.
//
// Compiled with -fno-trapping-math, because no code here reads floating-point exceptions. So the compiler may compute
// both sides of a choice in vectors.

namespace shard {

namespace {

constexpr std::size_t kBlock = 1024;  // Elements per block: 8 KiB of the widest wide type.

using convert::Bits;
using convert::with_type;

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

/// The wide value of one element. Formats of 8 bits have a table of their 256 values (small_float.h), because a lookup
/// needs no arithmetic and no special case for subnormal results.
template <class From>
convert::Wide<From> widen_one(Bits<From> bits) {
  if constexpr (!convert::kIsNative<From> && sizeof(Bits<From>) == 1 && !std::is_same_v<From, convert::Bool>) {
    return kDecoded<From>[bits];
  } else {
    return convert::widen<From>(bits);
  }
}

// --- Blocks of at most kBlock elements, compiled for any CPU and for AVX2. The loops are always inlined, so that each
// is compiled for the instruction set of its caller.

template <class From>
[[gnu::always_inline]] inline void widen_loop(const std::byte* in, std::byte* out, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) store(out, i, widen_one<From>(load<Bits<From>>(in, i)));
}

template <class To, class Wide>
[[gnu::always_inline]] inline std::int64_t narrow_loop(const std::byte* in, std::byte* out, std::size_t n) {
  std::uint32_t overflowed = 0;  // At most kBlock, so 32 bits suffice, and they match the width of vectors of floats.
  for (std::size_t i = 0; i < n; ++i) {
    const Wide value = load<Wide>(in, i);
    store(out, i, convert::narrow<To>(value));
    if constexpr (convert::kMayOverflow<To, Wide>) overflowed += convert::overflows<To>(value);
  }
  return overflowed;
}

using Widen = void (*)(const std::byte*, std::byte*, std::size_t);
using Narrow = std::int64_t (*)(const std::byte*, std::byte*, std::size_t);

template <class From>
Widen pick_widen() {
  return for_processor<widen_loop<From>>(widen_loop<From>);
}

template <class To, class Wide>
Narrow pick_narrow() {
  return for_processor<narrow_loop<To, Wide>>(narrow_loop<To, Wide>);
}

// --- From DType to types. The instruction set is chosen once per cast, not per block.

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

std::size_t bytes_of(DType dtype) { return static_cast<std::size_t>(element_bytes(dtype)); }

// --- Whole arrays.

std::int64_t cast_real(DType from, const std::byte* in, DType to, std::byte* out, std::size_t elements) {
  if (from == to) {
    std::memcpy(out, in, elements * bytes_of(from));
    return 0;
  }
  const DType wide = convert::wide_of(from, is_float(from));
  const Widen widen = wide == from ? nullptr : widen_of(from);
  const Narrow narrow = wide == to ? nullptr : narrow_of(wide, to);
  alignas(64) std::byte block[kBlock * 8];
  std::int64_t overflowed = 0;
  for (std::size_t done = 0; done < elements; done += kBlock) {
    const std::size_t n = std::min(kBlock, elements - done);
    const std::byte* source = in + done * bytes_of(from);
    std::byte* target = out + done * bytes_of(to);
    // A step that would change nothing is omitted. The other one then reads `in` or writes `out` directly.
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

/// Complex to real keeps the real parts. Complex to bool is true if either part is not zero.
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

/// Real to complex: the elements become real parts, at every second position. Imaginary parts are 0.
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
  // Complex numbers are pairs of real ones, so their cast is one of twice as many elements.
  if (is_complex(from) && is_complex(to)) return cast_real(from_part, in.data(), to_part, out.data(), 2 * elements);
  if (is_complex(from)) return cast_from_complex(from_part, in.data(), to, out.data(), elements);
  if (is_complex(to)) return cast_to_complex(from, in.data(), to_part, out.data(), elements);
  return cast_real(from, in.data(), to, out.data(), elements);
}

}  // namespace shard
