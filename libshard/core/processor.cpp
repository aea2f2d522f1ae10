#include "libshard/core/processor.h"

#include <sched.h>

#include <algorithm>
#include <thread>

#ifdef __x86_64__
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace shard {

int usable_processors() {
  static const int usable = [] {
    cpu_set_t set;
    if (::sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
    return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  }();
  return usable;
}

// Uses the instruction directly, because __builtin_cpu_supports needs the compiler's own library, which zig lacks.
#ifdef __x86_64__
namespace {

struct Features {
  unsigned a = 0, b = 0, c = 0, d = 0;
};

/// The features of a leaf; none if the processor has no such leaf.
Features features(unsigned leaf, unsigned part = 0) {
  Features found;
  __get_cpuid_count(leaf, part, &found.a, &found.b, &found.c, &found.d);
  return found;
}

/// Whether the system saves these registers when it switches threads.
[[gnu::target("xsave")]] bool keeps(unsigned long long registers) { return (_xgetbv(0) & registers) == registers; }

constexpr unsigned long long kSseAndAvx = 0x6, kAvx512 = 0xE6;

}  // namespace

bool has_avx() {
  constexpr unsigned kBoth = 1U << 27 | 1U << 28;  // The instruction that `keeps` uses, and AVX.
  static const bool found = (features(1).c & kBoth) == kBoth && keeps(kSseAndAvx);
  return found;
}

bool has_avx2() {
  constexpr unsigned kAvx2 = 1U << 5;
  static const bool found = has_avx() && (features(7).b & kAvx2) != 0;
  return found;
}

bool has_fma() {
  constexpr unsigned kFma = 1U << 12;
  static const bool found = has_avx2() && (features(1).c & kFma) != 0;
  return found;
}

bool has_avx512_bfloat16() {
  constexpr unsigned kFoundation = 1U << 16, kDq = 1U << 17, kVl = 1U << 31, kAll = kFoundation | kDq | kVl;
  constexpr unsigned kBfloat16 = 1U << 5;
  static const bool found =
      has_avx() && keeps(kAvx512) && (features(7).b & kAll) == kAll && (features(7, 1).a & kBfloat16) != 0;
  return found;
}
#else
bool has_avx() { return false; }
bool has_avx2() { return false; }
bool has_fma() { return false; }
bool has_avx512_bfloat16() { return false; }
#endif

}  // namespace shard
