#include "apps/shardctl/parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "libshard/core/error.h"

namespace shard::app {

void for_each_index(std::size_t count, int threads, const std::stop_token& stop,
                    const std::function<void(std::size_t)>& work) {
  std::atomic<std::size_t> next{0};
  std::atomic<bool> failed{false};
  std::exception_ptr first;
  std::mutex mutex;
  const auto worker = [&] {
    try {
      for (std::size_t i = next++; i < count && !failed && !stop.stop_requested(); i = next++) work(i);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!first) first = std::current_exception();
      failed = true;
    }
  };
  {
    std::vector<std::jthread> helpers;
    const std::size_t wanted = std::min(count, static_cast<std::size_t>(std::max(1, threads)));
    for (std::size_t i = 1; i < wanted; ++i) helpers.emplace_back(worker);
    worker();
  }
  if (first) std::rethrow_exception(first);
  if (stop.stop_requested()) throw Error(ErrorCode::kInterrupted, "interrupted");
}

}  // namespace shard::app
