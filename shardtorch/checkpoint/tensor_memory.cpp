#include "shardtorch/checkpoint/tensor_memory.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "shardtorch/sharded_tensor/views.h"

namespace shard::checkpoint {

/// Views elements as integers of the same size, so that copies cannot change their bits. Conjugated and negated views
/// need torch's own copy.
at::Tensor as_raw(const at::Tensor& tensor) {
  if (tensor.is_conj() || tensor.is_neg()) return tensor;
  switch (tensor.element_size()) {
    case 1:
      return tensor.view(at::kByte);
    case 2:
      return tensor.view(at::kShort);
    case 4:
      return tensor.view(at::kInt);
    case 8:
      return tensor.view(at::kLong);
    default:
      return tensor;
  }
}

/// A buffer for elements of one tensor. Its destructor returns it to the memory.
class TensorMemory::Stage {
 public:
  explicit Stage(const TensorMemory& memory) : memory_(memory) {
    const std::scoped_lock lock(memory_.stages_mutex_);
    if (memory_.free_stages_.empty()) {
      buffer_ = at::empty({kStageBytes}, at::TensorOptions(at::kByte).pinned_memory(memory_.is_pinned_));
      ++memory_.stages_;
    } else {
      buffer_ = std::move(memory_.free_stages_.back());
      memory_.free_stages_.pop_back();
    }
  }
  ~Stage() {
    const std::scoped_lock lock(memory_.stages_mutex_);
    memory_.free_stages_.push_back(std::move(buffer_));
  }
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;

  std::byte* data() const { return static_cast<std::byte*>(buffer_.mutable_data_ptr()); }
  void load(const at::Tensor& tensor, std::int64_t first, std::int64_t count) const {
    for_each_pair(tensor, first, count, elements(tensor.scalar_type(), count),
                  [](const at::Tensor& view, const at::Tensor& part) { part.copy_(view); });
  }
  void store(const at::Tensor& tensor, std::int64_t first, std::int64_t count) const {
    for_each_pair(tensor, first, count, elements(tensor.scalar_type(), count),
                  [](const at::Tensor& view, const at::Tensor& part) { view.copy_(part); });
  }

 private:
  at::Tensor elements(at::ScalarType dtype, std::int64_t count) const {
    return buffer_.narrow(0, 0, count * static_cast<std::int64_t>(c10::elementSize(dtype))).view(dtype);
  }

  const TensorMemory& memory_;
  at::Tensor buffer_;
};

std::int64_t TensorMemory::add(const at::Tensor& tensor) {
  const std::int64_t begin = size_;
  if (tensor.numel() == 0) return begin;
  size_ += static_cast<std::int64_t>(tensor.nbytes());
  is_pinned_ = is_pinned_ || tensor.is_cuda();
  std::byte* const packed = tensor.is_cpu() && is_packed(tensor) ? static_cast<std::byte*>(tensor.data_ptr()) : nullptr;
  regions_.push_back({begin, size_, packed, as_raw(tensor.detach())});
  return begin;
}

/// Divides a range of the file at the borders of tensors.
template <class Span, class Each>
void TensorMemory::for_each_part(std::int64_t offset, Span bytes, const Each& each) const {
  const std::size_t total = bytes.size();
  auto region = std::ranges::upper_bound(regions_, offset, {}, &Region::end);
  while (!bytes.empty()) {
    const std::size_t count = std::min(bytes.size(), static_cast<std::size_t>(region->end - offset));
    each(*region, offset - region->begin, bytes.first(count));
    bytes = bytes.subspan(count);
    offset = (region++)->end;
  }
  moved(total);
}

void TensorMemory::read_at(std::int64_t offset_bytes, std::span<std::byte> out) const {
  for_each_part(offset_bytes, out, [this](const Region& region, std::int64_t offset, std::span<std::byte> part) {
    if (region.packed == nullptr) return read_staged(region, offset, part);
    std::memcpy(part.data(), region.packed + offset, part.size());
  });
}

std::span<std::byte> TensorMemory::packed(std::int64_t offset_bytes, std::size_t bytes) const {
  const auto region = std::ranges::upper_bound(regions_, offset_bytes, {}, &Region::end);
  if (region == regions_.end() || region->packed == nullptr) return {};
  if (static_cast<std::int64_t>(bytes) > region->end - offset_bytes) return {};
  moved(bytes);
  return {region->packed + (offset_bytes - region->begin), bytes};
}

std::span<const std::byte> TensorMemory::in_memory(std::int64_t offset_bytes, std::size_t bytes) const {
  return packed(offset_bytes, bytes);
}

std::span<std::byte> TensorMemory::in_memory(std::int64_t offset_bytes, std::size_t bytes) {
  return packed(offset_bytes, bytes);
}

void TensorMemory::write_at(std::int64_t offset_bytes, std::span<const std::byte> data) {
  for_each_part(offset_bytes, data, [this](const Region& region, std::int64_t offset, std::span<const std::byte> part) {
    if (region.packed == nullptr) return write_staged(region, offset, part);
    std::memcpy(region.packed + offset, part.data(), part.size());
  });
}

/// Copies through a staging buffer, as many whole elements at a time as fit.
void TensorMemory::read_staged(const Region& region, std::int64_t offset, std::span<std::byte> out) const {
  const Stage stage(*this);
  const std::int64_t width = static_cast<std::int64_t>(region.tensor.element_size());
  while (!out.empty()) {
    const std::int64_t first = offset / width, skipped = offset % width;
    const std::size_t bytes = std::min(out.size(), static_cast<std::size_t>(kStageBytes - width));
    const std::int64_t count = (skipped + static_cast<std::int64_t>(bytes) + width - 1) / width;
    stage.load(region.tensor, first, count);
    std::memcpy(out.data(), stage.data() + skipped, bytes);
    out = out.subspan(bytes);
    offset += static_cast<std::int64_t>(bytes);
  }
}

/// Stores bytes of a part. Whole elements are stored directly. If the part begins or ends inside an element, a
/// different worker may be writing the other half, so the element is read, changed and stored under a lock.
void TensorMemory::write_staged(const Region& region, std::int64_t offset, std::span<const std::byte> data) {
  const Stage stage(*this);
  const std::int64_t width = static_cast<std::int64_t>(region.tensor.element_size());
  while (!data.empty()) {
    const std::int64_t first = offset / width, skipped = offset % width;
    const std::int64_t whole = std::min(static_cast<std::int64_t>(data.size()), kStageBytes) / width;
    std::size_t bytes = static_cast<std::size_t>(whole * width);
    if (skipped == 0 && whole > 0) {
      std::memcpy(stage.data(), data.data(), bytes);
      stage.store(region.tensor, first, whole);
    } else {
      const std::scoped_lock lock(shared_element_mutex_);
      bytes = std::min(data.size(), static_cast<std::size_t>(width - skipped));
      stage.load(region.tensor, first, 1);
      std::memcpy(stage.data() + skipped, data.data(), bytes);
      stage.store(region.tensor, first, 1);
    }
    data = data.subspan(bytes);
    offset += static_cast<std::int64_t>(bytes);
  }
}

void TensorMemory::moved(std::size_t bytes) const {
  if (!on_moved_) return;
  const std::scoped_lock lock(moved_mutex_);
  moved_ += static_cast<std::int64_t>(bytes);
  on_moved_(moved_, size_);
}

void TensorMemory::wait_for_devices() const {
  std::set<std::pair<at::DeviceType, at::DeviceIndex>> devices;
  for (const Region& region : regions_) {
    if (!region.tensor.is_cpu()) devices.emplace(region.tensor.device().type(), region.tensor.device().index());
  }
  for (const auto& [type, index] : devices) c10::impl::VirtualGuardImpl(type).synchronizeDevice(index);
}

std::size_t TensorMemory::stages() const {
  const std::scoped_lock lock(stages_mutex_);
  return stages_;
}

}  // namespace shard::checkpoint
