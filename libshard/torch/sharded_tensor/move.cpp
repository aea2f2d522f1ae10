#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <utility>

#include "libshard/torch/sharded_tensor/sharded_tensor_impl.h"

namespace shard {

namespace {

/// \throws c10::Error  this program has no CUDA.
at::Device current_cuda_device() { return c10::impl::VirtualGuardImpl(at::kCUDA).getDevice(); }

void check_memory_format(at::MemoryFormat format) {
  TORCH_CHECK(format == at::MemoryFormat::Preserve || format == at::MemoryFormat::Contiguous,
              "Only `torch.contiguous_format` or `torch.preserve_format` is supported!");
}

bool all_on(const ShardedTensorMetadata& metadata, c10::DeviceType type) {
  return std::ranges::all_of(metadata.shards_metadata, [type](const ShardMetadata& shard) {
    return shard.placement.has_value() && shard.placement->device().type() == type;
  });
}

/// Where shards go. Of other ranks only the kind of device is known, so that placements of that kind stay.
struct Move {
  at::Device device;
  const ProcessGroup& group;

  RemoteDevice operator()(RemoteDevice placement) const {
    const bool own = resolve_placement(group, placement).first == world_rank(group);
    if (own || placement.device().type() != device.type()) placement.set_device(device);
    return placement;
  }
  ShardMetadata operator()(ShardMetadata shard) const {
    if (shard.placement.has_value()) shard.placement = (*this)(*shard.placement);
    return shard;
  }
  /// A chunk spec stays one with its dim; of others the shards tell (null).
  ShardingSpecPtr operator()(const ShardingSpec& spec) const {
    const ChunkShardingSpec* chunk = as_chunk(spec);
    if (chunk == nullptr) return nullptr;
    std::vector<RemoteDevice> placements = chunk->placements();
    std::ranges::transform(placements, placements.begin(), *this);
    return chunk_spec(chunk->dim(), std::move(placements));
  }
};

/// Another object with every shard as `to_tensor` makes it from the old one, on `device`.
template <class ToTensor>
ShardedTensor moved(const ShardedTensor& tensor, at::Device device, at::ScalarType dtype, ProcessGroupPtr group,
                    const ToTensor& to_tensor) {
  const Move move{device, *tensor.process_group()};
  ShardedTensorMetadata metadata = tensor.metadata();
  std::ranges::transform(metadata.shards_metadata, metadata.shards_metadata.begin(), move);
  TensorProperties& properties = metadata.tensor_properties;
  properties.dtype = dtype;
  properties.requires_grad = properties.requires_grad && (at::isFloatingType(dtype) || at::isComplexType(dtype));
  properties.pin_memory = false;
  std::vector<Shard> shards;
  for (const Shard& shard : tensor.local_shards()) shards.emplace_back(to_tensor(shard.tensor), move(shard.metadata));
  return ShardedTensor::init_from_local_shards_and_global_metadata(std::move(shards), metadata,
                                                                   group ? std::move(group) : tensor.process_group(),
                                                                   tensor.init_rrefs(), move(*tensor.sharding_spec()));
}

/// The device that `to` means by `asked`.
at::Device target_device(at::Device asked) {
  if (!asked.is_cuda()) return asked;
  const at::Device current = current_cuda_device();
  if (asked.has_index() && asked != current) {
    TORCH_WARN("ShardedTensor.to only moves a tensor to the current CUDA device, ", current, ", not to ", asked,
               ". To put shards elsewhere use `reshard`.");
  }
  return current;
}

/// Ranks without shards go by the others', so that all ranks decide alike.
bool is_on(const ShardedTensor& tensor, at::Device device) {
  return tensor.local_shards().empty() ? all_on(tensor.metadata(), device.type()) : tensor.device() == device;
}

}  // namespace

ShardedTensor ShardedTensor::cpu(at::MemoryFormat memory_format, ProcessGroupPtr group) const {
  check_memory_format(memory_format);
  if (all_on(metadata(), at::kCPU)) return *this;
  return moved(*this, at::kCPU, dtype(), std::move(group), [&](const at::Tensor& tensor) {
    return tensor.to(tensor.options().device(at::kCPU), /*non_blocking=*/false, /*copy=*/false, memory_format);
  });
}

ShardedTensor ShardedTensor::cuda(std::optional<at::Device> device, bool non_blocking, at::MemoryFormat memory_format,
                                  ProcessGroupPtr group) const {
  check_memory_format(memory_format);
  const at::Device current = current_cuda_device();
  TORCH_CHECK(!device.has_value() || *device == current || *device == at::Device(at::kCUDA),
              "Only device without device id (e.g. \"cpu\" or \"cuda\") is expected for ShardedTensor!");
  return moved(*this, current, dtype(), std::move(group), [&](const at::Tensor& tensor) {
    return tensor.to(tensor.options().device(current), non_blocking, /*copy=*/false, memory_format);
  });
}

ShardedTensor ShardedTensor::to(const ToOptions& options) const {
  const at::Device target = options.device.has_value() ? target_device(*options.device) : device();
  const at::ScalarType target_dtype = options.dtype.value_or(dtype());
  if (!options.copy && target_dtype == dtype() && (!options.device.has_value() || is_on(*this, target))) return *this;
  return moved(*this, target, target_dtype, options.process_group, [&](const at::Tensor& tensor) {
    return tensor.to(tensor.options().device(target).dtype(target_dtype), options.non_blocking && !target.is_cpu(),
                     options.copy, options.memory_format);
  });
}

ShardedTensor ShardedTensor::to(at::ScalarType dtype) const { return to(ToOptions{.dtype = dtype}); }
ShardedTensor ShardedTensor::to(at::Device device) const { return to(ToOptions{.device = device}); }
ShardedTensor ShardedTensor::to(const char* device) const { return to(at::Device(device)); }
ShardedTensor ShardedTensor::to(int cuda_index) const {
  return to(at::Device(at::kCUDA, static_cast<at::DeviceIndex>(cuda_index)));
}
ShardedTensor ShardedTensor::to(const at::Tensor& other) const { return to(other.device(), other.scalar_type()); }
ShardedTensor ShardedTensor::to(at::Device device, at::ScalarType dtype) const {
  return to(ToOptions{.device = device, .dtype = dtype});
}

}  // namespace shard
