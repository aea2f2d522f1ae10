/// \file
/// Tensors' memory as one file, so that the copies of a plan read it or write it. Inside shardtorch/checkpoint
/// only.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "libshard/io/file_writer.h"
#include "libshard/io/local_disk.h"

namespace shard::checkpoint {

/// The bytes of tensors, one behind the other. Threads: after the last `add` safe, writes on disjoint ranges.
class TensorMemory final : public RandomReader, public FileWriter {
 public:
  TensorMemory() { name_ = "memory"; }

  /// \returns where its bytes begin. \pre `tensor` is contiguous and on the CPU
  /// Ownership: shared; the memory lives as long as this.
  std::int64_t add(at::Tensor tensor) {
    const std::int64_t begin = size_;
    if (tensor.nbytes() == 0) return begin;
    size_ += static_cast<std::int64_t>(tensor.nbytes());
    regions_.push_back({begin, size_, static_cast<std::byte*>(tensor.data_ptr())});
    tensors_.push_back(std::move(tensor));
    return begin;
  }

  std::int64_t size() const override { return size_; }
  void read_at(std::int64_t offset_bytes, std::span<std::byte> out) const override {
    for_each_part(offset_bytes, out, [](const std::byte* memory, std::span<std::byte> part) {
      std::memcpy(part.data(), memory, part.size());
    });
  }
  void write_at(std::int64_t offset_bytes, std::span<const std::byte> data) override {
    for_each_part(offset_bytes, data, [](std::byte* memory, std::span<const std::byte> part) {
      std::memcpy(memory, part.data(), part.size());
    });
  }
  void allocate(std::int64_t) override {}
  void sync() override {}
  void close() override {}
  int descriptor() const override { return -1; }

 private:
  struct Region {
    std::int64_t begin, end;  ///< In the file.
    std::byte* data;
  };

  /// \pre the bytes are inside the file
  template <class Span, class Each>
  void for_each_part(std::int64_t offset, Span bytes, const Each& each) const {
    auto region = std::ranges::upper_bound(regions_, offset, {}, &Region::end);
    while (!bytes.empty()) {
      const std::size_t count = std::min(bytes.size(), static_cast<std::size_t>(region->end - offset));
      each(region->data + (offset - region->begin), bytes.first(count));
      bytes = bytes.subspan(count);
      offset = (region++)->end;
    }
  }

  std::vector<Region> regions_;
  std::vector<at::Tensor> tensors_;
  std::int64_t size_ = 0;
};

}  // namespace shard::checkpoint
