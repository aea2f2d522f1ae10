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

/// Whether the system saves these registers when it switches threads.
[[gnu::target("xsave")]] bool keeps(unsigned long long registers) { return (_xgetbv(0) & registers) == registers; }

constexpr unsigned long long kSseAndAvx = 0x6, kAvx512 = 0xE6;

bool find_avx() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kOsXsave = 1U << 27, kAvx = 1U << 28;
  const bool is_known = __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & kOsXsave) != 0 && (c & kAvx) != 0;
  return is_known && keeps(kSseAndAvx);
}

bool find_avx2() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kAvx2 = 1U << 5;
  return find_avx() && __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b & kAvx2) != 0;
}

bool find_avx512_bfloat16() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kFoundation = 1U << 16, kDq = 1U << 17, kVl = 1U << 31, kAll = kFoundation | kDq | kVl;
  constexpr unsigned kBfloat16 = 1U << 5;
  const bool is_known = find_avx() && keeps(kAvx512) && __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0;
  return is_known && (b & kAll) == kAll && __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a & kBfloat16) != 0;
}

bool find_fma() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kFma = 1U << 12;
  return find_avx2() && __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & kFma) != 0;
}

}  // namespace

bool has_sse42() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kSse42 = 1U << 20;
  static const bool found = __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & kSse42) != 0;
  return found;
}

bool has_avx() {
  static const bool found = find_avx();
  return found;
}

bool has_avx2() {
  static const bool found = find_avx2();
  return found;
}

bool has_fma() {
  static const bool found = find_fma();
  return found;
}

bool has_avx512_bfloat16() {
  static const bool found = find_avx512_bfloat16();
  return found;
}
#else
bool has_sse42() { return false; }
bool has_avx() { return false; }
bool has_avx2() { return false; }
bool has_fma() { return false; }
bool has_avx512_bfloat16() { return false; }
#endif

}  // namespace shard
