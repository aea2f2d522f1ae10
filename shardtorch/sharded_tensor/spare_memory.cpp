#include "shardtorch/sharded_tensor/spare_memory.h"

#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>

#include <mutex>
#include <utility>

namespace shard {

namespace {

bool is_worth_keeping(std::size_t bytes) {
  return bytes >= SpareMemory::kLeastBytes && bytes <= SpareMemory::kMostBytes;
}

}  // namespace

class SpareMemory::Kept {
 public:
  void put(c10::DataPtr memory, std::size_t bytes) {
    const std::scoped_lock lock(mutex_);
    std::swap(memory_, memory);  // The previous memory is freed after the mutex.
    bytes_ = bytes;
  }
  /// The memory, if it has this number of bytes; otherwise null.
  c10::DataPtr take(std::size_t bytes) {
    const std::scoped_lock lock(mutex_);
    return bytes == bytes_ ? std::exchange(memory_, {}) : c10::DataPtr();
  }

 private:
  std::mutex mutex_;
  c10::DataPtr memory_;
  std::size_t bytes_ = 0;
};

/// The owner of a storage's memory. It returns the memory when the storage is released.
struct SpareMemory::Lease {
  static void end(void* lease) {
    const std::unique_ptr<Lease> ended(static_cast<Lease*>(lease));
    if (const std::shared_ptr<Kept> home = ended->home.lock()) home->put(std::move(ended->memory), ended->bytes);
  }

  c10::DataPtr memory;
  std::size_t bytes;
  std::weak_ptr<Kept> home;
};

SpareMemory::SpareMemory() : kept_(std::make_shared<Kept>()) {}

at::Tensor SpareMemory::take(at::IntArrayRef sizes, const at::TensorOptions& options) {
  const auto bytes = static_cast<std::size_t>(c10::multiply_integers(sizes)) * options.dtype().itemsize();
  if (!options.device().is_cpu() || !is_worth_keeping(bytes)) return at::empty(sizes, options);
  c10::DataPtr memory = kept_->take(bytes);
  if (!memory) memory = c10::GetCPUAllocator()->allocate(bytes);
  void* const data = memory.get();
  auto lease = std::make_unique<Lease>(Lease{std::move(memory), bytes, kept_});
  c10::DataPtr leased(data, lease.release(), &Lease::end, at::kCPU);
  c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, std::move(leased), c10::GetCPUAllocator(),
                       /*resizable=*/true);
  return at::empty({0}, options).set_(std::move(storage), 0, sizes);
}

void SpareMemory::offer(at::Tensor tensor) {
  if (!tensor.defined() || !tensor.is_cpu() || !tensor.has_storage()) return;
  const c10::Storage storage = tensor.storage();
  tensor.reset();
  const bool is_alone = storage.use_count() == 1;  // No other handle of the tensor, no view.
  if (!is_alone || !is_worth_keeping(storage.nbytes())) return;
  if (storage.data_ptr().get_deleter() != c10::GetCPUAllocator()->raw_deleter()) return;
  kept_->put(storage.set_data_ptr(c10::DataPtr()), storage.nbytes());
}

}  // namespace shard
