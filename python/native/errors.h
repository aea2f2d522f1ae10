/// \file
/// Errors of the library as exceptions of the Python module.
#pragma once

#include <nanobind/nanobind.h>

#include <functional>
#include <stop_token>

#include "python/native/lock.h"

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

/// Calls a function of Python as call_python does. \throws nb::python_error  it raised. Threads: holds the GIL.
template <class... Arguments>
nanobind::object called(const nanobind::handle& function, const Arguments&... arguments) {
  const nanobind::tuple packed = nanobind::make_tuple(arguments...);
  PyObject* const result = call_python(function.ptr(), packed.ptr());
  if (result == nullptr) nanobind::raise_python_error();
  return nanobind::steal(result);
}

}  // namespace shard::python
