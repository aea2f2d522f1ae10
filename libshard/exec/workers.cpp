#include "libshard/exec/workers.h"

// The thread sanitizer cannot see how oneTBB's library hands work over, and takes every hand-over for a race.
#ifdef __SANITIZE_THREAD__
#include <thread>
#include <vector>
#else
#include <tbb/global_control.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>
#endif

namespace shard {

#ifdef __SANITIZE_THREAD__

void run_workers(int threads, const std::function<void()>& work) {
  std::vector<std::jthread> others;
  for (int i = 1; i < threads; ++i) others.emplace_back(work);
  work();
}

#else

void run_workers(int threads, const std::function<void()>& work) {
  const auto limit = static_cast<std::size_t>(threads) + 1;
  const tbb::global_control control(tbb::global_control::max_allowed_parallelism, limit);
  tbb::task_arena arena(threads);
  arena.execute([&] {
    tbb::parallel_for(
        0, threads, [&](int) { work(); }, tbb::simple_partitioner());
  });
}

#endif

}  // namespace shard
