/// \file
/// Saves tensors of this process's memory as a checkpoint.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "libshard/core/dtype.h"

namespace shard::python {

/// A tensor in memory: its elements in row-major order.
struct HeldTensor {
  std::string name;
  DType dtype{};
  std::vector<std::int64_t> shape;
  std::span<const std::byte> memory;
};

struct SaveRequest {
  std::string path;
  std::string to;  ///< The format's name; empty: by the suffix of the path.
  bool force = false, sync = true, manifest = false;
  int threads = 1;
  std::int64_t max_memory_bytes = 64 << 20;
};

/// Writes the tensors from their memory, without a copy in between. The destination appears as a whole or not at all.
/// Tensors with the same memory are ties, which formats with shared storages keep.
/// \returns warnings, such as what the format cannot store
/// \throws Error kInvalidArgument  a name appears twice, or the format is unknown or contradicts the path's suffix;
///   kExists; see run_copy_job. Threads: any. The memory must not change meanwhile.
std::vector<std::string> save(std::span<const HeldTensor> tensors, const SaveRequest& request,
                              const std::stop_token& stop);

}  // namespace shard::python
