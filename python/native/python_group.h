/// \file
/// A group of ranks whose transport is a Python object, so that ranks of torch.distributed can run the library's jobs.
#pragma once

#include <nanobind/nanobind.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "libshard/ranks/group.h"

namespace shard::python {

/// The object has the attributes `rank` and `size`, and the methods barrier(), broadcast(data, root),
/// all_gather(own, all), exchange(to, from), set_timeout(seconds) and abort(). Bytes are writable memoryviews, which
/// are valid during the call; `to` and `from` are lists of them, by rank. Methods may raise.
///
/// Threads: as Group. All functions but the constructor and the destructor take the GIL themselves.
class PythonGroup final : public Group {
 public:
  /// Holds the GIL, as does the destructor.
  explicit PythonGroup(nanobind::object ranks);

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string_view backend() const override { return "gloo"; }
  void barrier() override;
  void broadcast(std::span<std::byte> data, int root) override;
  void all_gather(std::span<const std::byte> own, std::span<std::byte> all) override;
  void exchange(std::span<const std::span<const std::byte>> to, std::span<const std::span<std::byte>> from) override;
  void set_timeout(std::chrono::milliseconds timeout) override;
  void abort() noexcept override;

 private:
  /// Runs `body` with the GIL. \throws Error kPeer  for an exception of Python
  void call(std::string_view doing, const std::function<void()>& body) const;

  nanobind::object ranks_;
  int rank_, size_;
};

}  // namespace shard::python
