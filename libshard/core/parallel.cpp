#include "libshard/core/parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "libshard/core/error.h"

namespace shard {

void for_each_index(std::size_t count, int threads, const std::stop_token& stop,
                    const std::function<IndexWorker()>& make_worker) {
  std::atomic<std::size_t> next{0};
  std::atomic<bool> failed{false};
  std::exception_ptr first;
  std::mutex mutex;
  // Threads take the next index from a shared counter, so that fast threads process more of them. After an error or a
  // stop, no thread takes a further index.
  const auto work = [&] {
    try {
      const IndexWorker worker = make_worker();
      for (std::size_t i = next++; i < count && !failed && !stop.stop_requested(); i = next++) worker(i);
    } catch (...) {
      const std::scoped_lock lock(mutex);
      if (first == nullptr) first = std::current_exception();
      failed = true;
    }
  };
  {
    std::vector<std::jthread> others;
    // The caller's thread works as well. The jthreads join at the end of the block.
    const std::size_t wanted = std::min(count, static_cast<std::size_t>(std::max(1, threads)));
    try {
      for (std::size_t i = 1; i < wanted; ++i) others.emplace_back(work);
    } catch (const std::system_error&) {  // The system starts no more threads. Those that it started do all the work.
    }
    work();
  }
  if (first != nullptr) std::rethrow_exception(first);
  check_stop(stop);
}

void for_each_index(std::size_t count, int threads, const IndexWorker& worker) {
  for_each_index(count, threads, {}, [&worker] { return IndexWorker(std::cref(worker)); });
}

void add_thread(std::vector<std::jthread>& threads, const std::function<void()>& run) {
  try {
    threads.emplace_back(run);
  } catch (const std::system_error&) {
    if (threads.empty()) throw;
  }
}

void check_stop(const std::stop_token& stop) {
  if (stop.stop_requested()) throw Error(ErrorCode::kInterrupted, "interrupted");
}

}  // namespace shard
