/// \file Runs the same work for many indices on several threads. The first error stops all of them.
#pragma once

#include <cstddef>
#include <functional>
#include <stop_token>
#include <thread>
#include <vector>

namespace shard {

/// Handles one index. Each thread has its own worker, which may therefore keep buffers between calls.
using IndexWorker = std::function<void(std::size_t)>;

/// Handles every index in [0, count) exactly once on `threads` threads, or on fewer if the system does not start so
/// many. They take the indices in rising order. The caller's thread is one of them, and there may be more of them than
/// cores. Each calls `make_worker` once.
/// \throws  the first exception of a worker, after all threads have ended; Error kInterrupted  `stop` was requested.
void for_each_index(std::size_t count, int threads, const std::stop_token& stop,
                    const std::function<IndexWorker()>& make_worker);

/// The same with one worker, which all threads call.
void for_each_index(std::size_t count, int threads, const IndexWorker& worker);

/// Starts a thread, or leaves its work to the other `threads` if the system starts no more.
/// \throws std::system_error  there are no others
void add_thread(std::vector<std::jthread>& threads, const std::function<void()>& run);

/// \throws Error kInterrupted  a stop was requested.
void check_stop(const std::stop_token& stop);

}  // namespace shard
