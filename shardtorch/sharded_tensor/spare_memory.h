/// \file
/// Memory that a released tensor leaves for the next one. Inside shardtorch only.
///
/// The system fills new pages with zeros, which takes longer than the copy of the elements into them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>

namespace shard {

/// Keeps the memory of one tensor on the CPU. Threads: any.
class SpareMemory {
 public:
  static constexpr std::size_t kLeastBytes = 1 << 20;  ///< `malloc` itself reuses smaller memory.
  static constexpr std::size_t kMostBytes = 64 << 20;

  SpareMemory();
  /// A tensor as from `at::empty`, in the kept memory if that has the right number of bytes. When the last user
  /// releases the tensor's memory, this object keeps it instead of the previous one, if this object still exists.
  at::Tensor take(at::IntArrayRef sizes, const at::TensorOptions& options);
  /// Keeps the tensor's memory instead of the previous one, if the tensor is its only user and LibTorch's CPU allocator
  /// created it.
  void offer(at::Tensor tensor);

 private:
  class Kept;
  struct Lease;

  std::shared_ptr<Kept> kept_;  ///< Leases refer to it weakly.
};

}  // namespace shard
