/// \file
/// Time limits of tests that also hold on a busy or slow machine.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <random>
#include <vector>

namespace shard::test {

/// Seconds of processor time of `action` on the calling thread; other processes hardly affect it.
template <class Action>
double cpu_seconds(const Action& action) {
  const auto now = [] {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
  };
  const double begin = now();
  action();
  return now() - begin;
}

/// `seconds` of the machine on which the limits were set, with nothing else to do, on this machine at this moment:
/// neighbours that share caches and memory make the same work several times dearer. The slowest of three tries of a
/// fixed piece of work counts: a sort, memory that is touched for the first time, accesses in random order. Costs about
/// 0.2 s.
inline double cpu_limit(double seconds) {
  constexpr double kReferenceSeconds = 0.054;
#ifdef __SANITIZE_ADDRESS__
  constexpr double kInstrumented = 10;  // A sanitizer costs other code more than this work.
#else
  constexpr double kInstrumented = 1;
#endif
  double slowest = kReferenceSeconds;
  for (int i = 0; i < 3; ++i) {
    slowest = std::max(slowest, cpu_seconds([] {
                         std::vector<std::uint32_t> values(std::size_t{1} << 19);
                         std::mt19937 random(1);
                         for (std::uint32_t& value : values) value = static_cast<std::uint32_t>(random());
                         std::sort(values.begin(), values.begin() + (std::ptrdiff_t{1} << 17));
                         for (std::size_t from = values[0], step = 0; step < values.size(); ++step) {
                           from = (from * 2'654'435'761U + values[from % values.size()]) % values.size();
                           ++values[from];
                         }
                       }));
  }
  return seconds * kInstrumented * slowest / kReferenceSeconds;
}

}  // namespace shard::test
