#include "python/native/lock.h"

#include <pthread.h>
#include <unistd.h>

// Compiled without exceptions: pthread_cleanup_push then jumps here when the end of the thread reaches this frame,
// before it reaches those of C++.

namespace shard::python {

namespace {

void wait_for_end(void*) {
  while (true) pause();
}

void restore(PyThreadState* state) {
  pthread_cleanup_push(wait_for_end, nullptr);
  PyEval_RestoreThread(state);
  pthread_cleanup_pop(0);
}

void ensure(PyGILState_STATE& state) {
  pthread_cleanup_push(wait_for_end, nullptr);
  state = PyGILState_Ensure();
  pthread_cleanup_pop(0);
}

}  // namespace

WithoutLock::~WithoutLock() { restore(state_); }

WithLock::WithLock() { ensure(state_); }

PyObject* call_python(PyObject* function, PyObject* arguments) {
  PyObject* result = nullptr;
  pthread_cleanup_push(wait_for_end, nullptr);
  result = PyObject_CallObject(function, arguments);
  pthread_cleanup_pop(0);
  return result;
}

}  // namespace shard::python
