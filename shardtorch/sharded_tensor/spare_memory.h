/// \file
/// Reuses the memory of a discarded shard for the next one, because allocating new memory costs more than the copy.
/// Inside shardtorch only.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <cstddef>

namespace shard {

/// Keeps one storage of at most kMostBytes. Threads: one at a time.
class SpareMemory {
 public:
  static constexpr std::size_t kMostBytes = 64 << 20;

  /// Keeps the tensor's storage, in place of the previous one, if it has no other user and LibTorch's allocator for the
  /// CPU created it.
  void offer(at::Tensor tensor);
  /// A tensor as from `at::empty`, in the kept storage if that has the right number of bytes. Nothing is kept
  /// afterwards.
  at::Tensor take(at::IntArrayRef sizes, const at::TensorOptions& options);

 private:
  c10::Storage kept_;
};

}  // namespace shard
