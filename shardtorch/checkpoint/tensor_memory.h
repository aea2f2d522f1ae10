/// \file
/// Tensors' memory as one file, so that a plan's copies can read or write it. Inside shardtorch/checkpoint only.
///
/// Tensors that are packed in this host's memory are read and written in place. All others (on a GPU, strided,
/// conjugated) are never copied whole. Each call moves its part through a buffer of kStageBytes, which is pinned if any
/// tensor is on a GPU. The number of buffers is that of concurrent calls.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <vector>

#include "libshard/io/file_writer.h"
#include "libshard/io/local_disk.h"

namespace shard::checkpoint {

/// The same elements as integers of their size. Every copy supports these, and each equals itself. Returns a tensor
/// unchanged if no integer has that size, or if it is conjugated and is read by its meaning.
at::Tensor as_raw(const at::Tensor& tensor);

/// Receives how many bytes of a memory have been transferred so far. Called by one worker at a time. It may throw,
/// which ends the job.
using OnMoved = std::function<void(std::int64_t done_bytes, std::int64_t total_bytes)>;

/// The bytes of several tensors in sequence. Threads: safe after the last `add`, for writes to disjoint ranges.
class TensorMemory final : public RandomReader, public FileWriter {
 public:
  static constexpr std::int64_t kStageBytes = 4 << 20;

  explicit TensorMemory(OnMoved on_moved = {}) : on_moved_(std::move(on_moved)) { name_ = "memory"; }

  /// Adds a tensor. \returns the offset of its bytes, packed in row-major order. Ownership: shared. The memory lives as
  /// long as this object.
  std::int64_t add(const at::Tensor& tensor);

  std::int64_t size() const override { return size_; }
  void read_at(std::int64_t offset_bytes, std::span<std::byte> out) const override;
  std::span<const std::byte> in_memory(std::int64_t offset_bytes, std::size_t bytes) const override;
  void write_at(std::int64_t offset_bytes, std::span<const std::byte> data) override;
  std::span<std::byte> in_memory(std::int64_t offset_bytes, std::size_t bytes) override;
  void allocate(std::int64_t) override {}
  void sync() override {}
  void close() override {}
  int descriptor() const override { return -1; }

  /// Waits until GPUs have finished their pending work on these tensors.
  void wait_for_devices() const;
  std::size_t stages() const;  ///< Number of allocated buffers, for tests.

 private:
  struct Region {
    std::int64_t begin, end;  ///< Position in the file.
    std::byte* packed;        ///< Null unless the elements are packed.
    at::Tensor tensor;        ///< Detached.
  };
  class Stage;

  /// Calls with each region and its part of the bytes. \pre the bytes are inside the file
  template <class Span, class Each>
  void for_each_part(std::int64_t offset, Span bytes, const Each& each) const;
  void read_staged(const Region& region, std::int64_t offset, std::span<std::byte> out) const;
  void write_staged(const Region& region, std::int64_t offset, std::span<const std::byte> data);
  /// Empty unless all of them are in one packed region.
  std::span<std::byte> packed(std::int64_t offset_bytes, std::size_t bytes) const;
  void moved(std::size_t bytes) const;

  std::vector<Region> regions_;
  std::int64_t size_ = 0;
  bool is_pinned_ = false;  ///< Whether buffers are pinned.
  const OnMoved on_moved_;
  mutable std::mutex moved_mutex_;
  mutable std::int64_t moved_ = 0;
  mutable std::mutex stages_mutex_;
  mutable std::vector<at::Tensor> free_stages_;
  mutable std::size_t stages_ = 0;
  std::mutex shared_element_mutex_;  ///< Held while a part of an element is written.
};

}  // namespace shard::checkpoint
