/// \file
/// Errors of the library as exceptions of the Python module.
#pragma once

#include <nanobind/nanobind.h>

#include <functional>
#include <stop_token>

namespace shard::python {

/// From now on, an Error that leaves a function of the extension becomes the exception that `shardctl._errors` defines
/// for its code, with all facts of the Error.
void translate_errors();

/// Runs `work` without the GIL in a separate thread. Meanwhile, looks for signals every 20 ms, and calls `on_tick` (may
/// be empty) with the GIL. If a signal handler (KeyboardInterrupt) or `on_tick` raises, requests a stop, waits for
/// `work`, and raises that exception.
/// \throws  the exception of `work`
/// Threads: the caller holds the GIL. Cost: starts a thread.
void run_interruptibly(const std::function<void(const std::stop_token& stop)>& work,
                       const std::function<void()>& on_tick = {});

}  // namespace shard::python
