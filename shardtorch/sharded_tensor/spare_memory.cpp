#include "shardtorch/sharded_tensor/spare_memory.h"

#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>

#include <utility>

namespace shard {

void SpareMemory::offer(at::Tensor tensor) {
  kept_ = {};
  if (!tensor.defined() || !tensor.is_cpu() || !tensor.has_storage() || tensor.use_count() != 1) return;
  c10::Storage storage = tensor.storage();
  tensor.reset();
  const bool is_alone = storage.use_count() == 1 && storage.allocator() == c10::GetCPUAllocator();
  if (is_alone && storage.nbytes() <= kMostBytes) kept_ = std::move(storage);
}

at::Tensor SpareMemory::take(at::IntArrayRef sizes, const at::TensorOptions& options) {
  c10::Storage storage = std::exchange(kept_, {});
  const auto bytes = static_cast<std::size_t>(c10::multiply_integers(sizes)) * options.dtype().itemsize();
  if (!storage || !options.device().is_cpu() || storage.nbytes() != bytes) return at::empty(sizes, options);
  return at::empty({0}, options).set_(std::move(storage), 0, sizes);
}

}  // namespace shard
