/// \file
/// The body of the kernel that converts elements between dtypes. Inside libshard/device only.
#pragma once

#include <cstdint>
#include <type_traits>

#include "libshard/core/dtype.h"
#include "libshard/device/kernels/grid.h"
#include "libshard/exec/convert.h"

namespace shard::kernels {

/// A cast described in numbers of one part. A complex element is two numbers.
struct CastShape {
  DType from, to, wide;      ///< The parts' dtypes, and that of convert::Wide between them.
  std::int64_t numbers = 0;  ///< The count of numbers to convert.
  int from_step = 1;         ///< Number i is read at i * from_step, and written at i * to_step.
  int to_step = 1;           ///< 2: a zero is written after it.
  bool is_either = false;    ///< Complex to bool: whether either part is not zero.
};
/// Describes a cast. \pre can_cast (exec/cast.h)
CastShape cast_shape(DType from, DType to, std::int64_t elements);

/// Adds to a counter that the threads of all blocks share.
SHARD_KERNEL inline void add_to(std::int64_t* sum, std::uint32_t more) {
#ifdef __CUDA_ARCH__
  atomicAdd(reinterpret_cast<unsigned long long*>(sum), static_cast<unsigned long long>(more));
#else
  *sum += more;
#endif
}

/// Each thread converts kPerThread numbers that are kThreads apart, so that adjacent threads access adjacent memory.
/// The dtypes are the same for all threads, so the switches on them do not diverge. Counts overflows in `overflows`.
template <class Wide>
struct Cast {
  CastShape shape;
  const std::byte* in;
  std::byte* out;
  std::int64_t* overflows;

  SHARD_KERNEL void operator()(std::int64_t block, int thread) const {
    const std::int64_t first = block * kPerBlock + thread;
    Wide values[kPerThread] = {};
    convert::with_type(shape.from, [&]<class From>(std::type_identity<From>) {
      if constexpr (std::is_same_v<convert::Wide<From>, Wide>) read<From>(first, values);
    });
    std::uint32_t overflowed = 0;
    convert::with_type(shape.to, [&]<class To>(std::type_identity<To>) { overflowed = write<To>(first, values); });
    if (overflowed > 0) add_to(overflows, overflowed);
  }

 private:
  template <class From>
  SHARD_KERNEL void read(std::int64_t first, Wide (&values)[kPerThread]) const {
    using Bits = convert::Bits<From>;
    for (int i = 0; i < kPerThread; ++i) {
      const std::int64_t number = first + i * kThreads;
      if (number >= shape.numbers) return;
      const std::byte* at = in + number * shape.from_step * static_cast<std::int64_t>(sizeof(Bits));
      values[i] = convert::widen<From>(load<Bits>(at));
      if (!shape.is_either) continue;
      const bool is_true = values[i] != 0 || convert::widen<From>(load<Bits>(at + sizeof(Bits))) != 0;
      values[i] = is_true ? Wide{1} : Wide{0};
    }
  }

  template <class To>
  SHARD_KERNEL std::uint32_t write(std::int64_t first, const Wide (&values)[kPerThread]) const {
    using Bits = convert::Bits<To>;
    std::uint32_t overflowed = 0;
    for (int i = 0; i < kPerThread; ++i) {
      const std::int64_t number = first + i * kThreads;
      if (number >= shape.numbers) break;
      std::byte* const at = out + number * shape.to_step * static_cast<std::int64_t>(sizeof(Bits));
      store(at, convert::narrow<To>(values[i]));
      if (shape.to_step == 2) store(at + sizeof(Bits), Bits{});
      if constexpr (convert::kMayOverflow<To, Wide>) overflowed += convert::overflows<To>(values[i]);
    }
    return overflowed;
  }
};

/// Calls `launch.flat(body, blocks)` with the body that makes the cast, unless there is nothing to convert.
template <class Launch>
void launch_cast(const CastShape& shape, const std::byte* in, std::byte* out, std::int64_t* overflows,
                 const Launch& launch) {
  const std::int64_t blocks = blocks_for(shape.numbers);
  if (blocks == 0) return;
  if (shape.wide == DType::kFloat32) return launch.flat(Cast<float>{shape, in, out, overflows}, blocks);
  if (shape.wide == DType::kFloat64) return launch.flat(Cast<double>{shape, in, out, overflows}, blocks);
  if (shape.wide == DType::kUint64) return launch.flat(Cast<std::uint64_t>{shape, in, out, overflows}, blocks);
  return launch.flat(Cast<std::int64_t>{shape, in, out, overflows}, blocks);
}

}  // namespace shard::kernels
