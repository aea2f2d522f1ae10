/// \file
/// Time limits of tests that also hold on a busy machine.
#pragma once

#include <ctime>

namespace shard::test {

/// The factor for limits of processor time.
#ifdef __SANITIZE_ADDRESS__
inline constexpr double kInstrumented = 10;
#else
inline constexpr double kInstrumented = 1;
#endif

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

}  // namespace shard::test
