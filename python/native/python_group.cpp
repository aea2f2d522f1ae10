#include "python/native/python_group.h"

#include <fmt/format.h>

#include <utility>

#include "libshard/core/error.h"

namespace nb = nanobind;

namespace shard::python {
namespace {

nb::object view_of_memory(std::span<const std::byte> bytes) {
  // torch takes no memory that is read-only, though it does not write to the tensors that it sends.
  auto* data = reinterpret_cast<char*>(const_cast<std::byte*>(bytes.data()));
  static char nothing = 0;
  PyObject* view =
      PyMemoryView_FromMemory(bytes.empty() ? &nothing : data, static_cast<Py_ssize_t>(bytes.size()), PyBUF_WRITE);
  if (view == nullptr) throw nb::python_error();
  return nb::steal(view);
}

template <class Pieces>
nb::list views_of(const Pieces& pieces) {
  nb::list views;
  for (const auto& piece : pieces) views.append(view_of_memory(piece));
  return views;
}

std::string first_line_of(const nb::python_error& error) {
  const std::string text = nb::str(error.value()).c_str();
  return text.substr(0, text.find('\n'));
}

}  // namespace

PythonGroup::PythonGroup(nb::object ranks)
    : ranks_(std::move(ranks)), rank_(nb::cast<int>(ranks_.attr("rank"))), size_(nb::cast<int>(ranks_.attr("size"))) {}

void PythonGroup::call(std::string_view doing, const std::function<void()>& body) const {
  const nb::gil_scoped_acquire held;
  try {
    body();
  } catch (const nb::python_error& error) {
    throw Error(ErrorCode::kPeer, fmt::format("a rank died or does not respond, in {}", doing))
        .because(first_line_of(error));
  }
}

void PythonGroup::barrier() {
  call("a barrier", [&] { ranks_.attr("barrier")(); });
}

void PythonGroup::broadcast(std::span<std::byte> data, int root) {
  call("a broadcast", [&] { ranks_.attr("broadcast")(view_of_memory(data), root); });
}

void PythonGroup::all_gather(std::span<const std::byte> own, std::span<std::byte> all) {
  call("an all-gather", [&] { ranks_.attr("all_gather")(view_of_memory(own), view_of_memory(all)); });
}

void PythonGroup::exchange(std::span<const std::span<const std::byte>> to, std::span<const std::span<std::byte>> from) {
  call("an exchange", [&] { ranks_.attr("exchange")(views_of(to), views_of(from)); });
}

void PythonGroup::set_timeout(std::chrono::milliseconds timeout) {
  const std::chrono::duration<double> seconds = timeout;
  call("setting a timeout", [&] { ranks_.attr("set_timeout")(seconds.count()); });
}

void PythonGroup::abort() noexcept {
  try {
    call("aborting", [&] { ranks_.attr("abort")(); });
  } catch (const Error&) {
    return;  // The group is broken already.
  }
}

}  // namespace shard::python
