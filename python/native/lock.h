/// \file Scopes without and with Python's lock (GIL), and calls of Python.
///
/// If the interpreter ends while a daemon thread waits for the lock, also inside a function of Python that this module
/// called (call_python), that thread then waits until the process ends.
/// (Before 3.14, Python ends it by unwinding its stack, which destructors do not survive. In a wheel, whose C++ library
/// is inside the module, not even a `catch` does.)
#pragma once

#include <Python.h>

namespace shard::python {

/// The scope in which this thread does not hold the lock.
class WithoutLock {
 public:
  WithoutLock() : state_(PyEval_SaveThread()) {}
  WithoutLock(const WithoutLock&) = delete;
  WithoutLock& operator=(const WithoutLock&) = delete;
  ~WithoutLock();

 private:
  PyThreadState* state_;
};

/// The scope in which this thread holds the lock.
class WithLock {
 public:
  WithLock();
  WithLock(const WithLock&) = delete;
  WithLock& operator=(const WithLock&) = delete;
  ~WithLock() { PyGILState_Release(state_); }

 private:
  PyGILState_STATE state_;
};

/// Calls a function of Python. If the interpreter ends meanwhile, this thread waits in it. \param arguments  a tuple
/// \returns a new reference; null if Python's error is set. \pre this thread holds the lock
PyObject* call_python(PyObject* function, PyObject* arguments);

}  // namespace shard::python
