/// \file
/// The same work over many tensors, by several threads.
#pragma once

#include <cstddef>
#include <functional>
#include <stop_token>

namespace shard::app {

/// Calls `work(i)` for every i in [0, count), in no particular order but starting from the front, on `threads` threads.
/// \throws  the first exception that `work` threw (the others have stopped by then); Error kInterrupted  `stop` asked.
void for_each_index(std::size_t count, int threads, const std::stop_token& stop,
                    const std::function<void(std::size_t)>& work);

}  // namespace shard::app
