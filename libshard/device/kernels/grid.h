/// \file Helpers for the bodies of kernels. A body is a struct that defines the work of one thread of one block. nvcc
///   compiles it for devices, and the host's compiler for tests, which call it for every thread in a loop. Inside
///   libshard/device only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define SHARD_KERNEL __host__ __device__
#else
#define SHARD_KERNEL
#endif

namespace shard::kernels {

inline constexpr int kThreads = 256;  ///< The number of threads in a block.
inline constexpr int kPerThread = 4;  ///< The number of units or elements per thread, a block's width apart.
inline constexpr int kPerBlock = kThreads * kPerThread;

constexpr std::int64_t blocks_for(std::int64_t count) { return (count + kPerBlock - 1) / kPerBlock; }

/// 16 bytes that one instruction loads.
struct alignas(16) Unit16 {
  std::uint64_t low, high;
};

/// \pre the address is a multiple of T's size
template <class T>
SHARD_KERNEL T load(const std::byte* from) {
  T value;
  std::memcpy(&value, __builtin_assume_aligned(from, sizeof(T)), sizeof(T));
  return value;
}
template <class T>
SHARD_KERNEL void store(std::byte* to, const T& value) {
  std::memcpy(__builtin_assume_aligned(to, sizeof(T)), &value, sizeof(T));
}

}  // namespace shard::kernels
