#include "python/native/errors.h"

#include <nanobind/nanobind.h>

#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "libshard/core/error.h"

namespace nb = nanobind;

namespace shard::python {
namespace {

constexpr std::chrono::milliseconds kSignalPeriod{20};

nb::object text_or_none(std::string_view text) {
  if (text.empty()) return nb::none();
  return nb::steal(PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "surrogateescape"));
}

/// Sets the Python exception for `error`.
void raise(const Error& error) {
  const std::string_view kind = error.kind() ? kind_name(*error.kind()) : code_name(error.code());
  const nb::object rank = error.rank() ? nb::object(nb::int_(*error.rank())) : nb::object(nb::none());
  const nb::object make = nb::module_::import_("shardctl._errors").attr("native_error");
  const nb::object made =
      make(text_or_none(code_name(error.code())), text_or_none(kind), text_or_none(error.what()),
           text_or_none(error.why()), text_or_none(error.file()), text_or_none(error.tensor()), rank,
           text_or_none(error.expected()), text_or_none(error.found()), text_or_none(error.hint()));
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(made.ptr())), made.ptr());
}

/// Runs the handlers of signals that arrived, and `on_tick`. \returns the exception that one of them raised, or null
std::exception_ptr pending_interruption(const std::function<void()>& on_tick) {
  const nb::gil_scoped_acquire held;
  if (PyErr_CheckSignals() != 0) return std::make_exception_ptr(nb::python_error());
  if (!on_tick) return nullptr;
  try {
    on_tick();
  } catch (const nb::python_error&) {
    return std::current_exception();
  }
  return nullptr;
}

}  // namespace

void translate_errors() {
  nb::register_exception_translator([](const std::exception_ptr& failure, void*) {
    try {
      std::rethrow_exception(failure);
    } catch (const Error& error) {
      raise(error);
    }
  });
}

void run_interruptibly(const std::function<void(const std::stop_token& stop)>& work,
                       const std::function<void()>& on_tick) {
  std::stop_source stop;
  std::exception_ptr failure, interruption;
  std::mutex mutex;
  std::condition_variable ended;
  bool has_ended = false;
  {
    const nb::gil_scoped_release released;
    std::jthread worker([&] {
      try {
        work(stop.get_token());
      } catch (...) {
        failure = std::current_exception();
      }
      const std::scoped_lock lock(mutex);
      has_ended = true;
      ended.notify_one();
    });
    std::unique_lock lock(mutex);
    while (!ended.wait_for(lock, kSignalPeriod, [&] { return has_ended; })) {
      if (interruption != nullptr) continue;
      lock.unlock();
      interruption = pending_interruption(on_tick);
      if (interruption != nullptr) stop.request_stop();
      lock.lock();
    }
  }
  if (interruption != nullptr) std::rethrow_exception(interruption);
  if (failure != nullptr) std::rethrow_exception(failure);
}

}  // namespace shard::python
