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

  /// Keeps the tensor's storage, in place of the one kept so far, where nothing else uses it and LibTorch's allocator
  /// for the CPU made it.
  void offer(at::Tensor tensor);
  /// A tensor as `at::empty` makes it, in the kept storage where that has as many bytes. Nothing is kept afterwards.
  at::Tensor take(at::IntArrayRef sizes, const at::TensorOptions& options);

 private:
  c10::Storage kept_;
};

}  // namespace shard
