#include "python/native/errors.h"

#include <fmt/format.h>
#include <nanobind/nanobind.h>

#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "libshard/core/error.h"
#include "python/native/lock.h"

namespace nb = nanobind;

namespace shard::python {
namespace {

constexpr std::chrono::milliseconds kSignalPeriod{20};

nb::object text_or_none(std::string_view text) {
  if (text.empty()) return nb::none();
  return nb::steal(PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "surrogateescape"));
}

/// A remedy in the terms of the module's functions; empty if they have none.
std::string text_of(const Suggestion& suggestion) {
  switch (suggestion.remedy) {
    case Remedy::kDropObjects:
      return R"(leave the values out that are not tensors, or save a .pt file, or a folder with to="dcp")";
    case Remedy::kOpaqueGlobals:
      return R"(read values of unknown classes with unknown_globals="opaque")";
    case Remedy::kReadAs:
      return fmt::format(R"(name the format of the source with format="{}")", suggestion.argument);
    case Remedy::kWriteAs:
      return fmt::format(R"(write another format with to="{}")", suggestion.argument);
    case Remedy::kStateLayout:
      return "describe how the source is sharded with layout=";
    case Remedy::kStateVariable:
      return fmt::format(R"(state the number with set={{"{}": N}})", suggestion.argument);
    case Remedy::kNameReference:
      return "name the folder of the model's config.json with hf_ref=";
    case Remedy::kReplaceDestination:
      return "replace the destination with force=True";
    case Remedy::kMoreMemory:
      return "allow more memory with max_memory=";
    case Remedy::kMatchNames:
      return "list the names with keys(); map= changes them";
    case Remedy::kFuseExperts:
      return "fuse the base model's experts first: shardctl gather SRC -o FUSED --to-map hf-v5";
    case Remedy::kDequantize:
      return "read quantized weights as plain tensors with dequantize=";
    case Remedy::kNameRegion:
      return fmt::format(R"(set AWS_REGION to "{}")", suggestion.argument);
    case Remedy::kReadFolder:
      return fmt::format("open '{}'", suggestion.argument);
    default:
      return {};
  }
}

/// The error's hint, or else its first remedy that the module has.
std::string hint_of(const Error& error) {
  if (!error.hint().empty()) return error.hint();
  for (const Suggestion& suggestion : error.suggestions()) {
    if (std::string text = text_of(suggestion); !text.empty()) return text;
  }
  return {};
}

/// Sets the Python exception for `error`.
void raise(const Error& error) {
  const std::string_view kind = error.kind() ? kind_name(*error.kind()) : code_name(error.code());
  const nb::object rank = error.rank() ? nb::object(nb::int_(*error.rank())) : nb::object(nb::none());
  const nb::object make = nb::module_::import_("shardctl._errors").attr("native_error");
  const nb::object made =
      called(make, text_or_none(code_name(error.code())), text_or_none(kind), text_or_none(error.what()),
             text_or_none(error.why()), text_or_none(error.file()), text_or_none(error.tensor()), rank,
             text_or_none(error.expected()), text_or_none(error.found()), text_or_none(hint_of(error)));
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(made.ptr())), made.ptr());
}

/// Runs the handlers of signals that arrived, and `on_tick`. \returns the exception that one of them raised, or null
std::exception_ptr pending_interruption(const std::function<void()>& on_tick) {
  const WithLock held;
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
    const WithoutLock released;
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
