/// \file
/// The same work over many things, by several threads: the first error stops all.
#pragma once

#include <cstddef>
#include <functional>
#include <stop_token>

namespace shard {

/// Handles one index. Each thread has its own, so that it may keep buffers between calls.
using IndexWorker = std::function<void(std::size_t)>;

/// Handles every index in [0, count) exactly once, taken from the front in order, on `threads` threads (the caller's is
/// one of them; more threads than cores are possible). `make_worker` is called once on each thread.
/// \throws  the first exception that a worker threw, after all threads have ended; Error kInterrupted  `stop` asked.
void for_each_index(std::size_t count, int threads, const std::stop_token& stop,
                    const std::function<IndexWorker()>& make_worker);

}  // namespace shard
