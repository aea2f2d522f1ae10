#include <ATen/ATen.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "shardtorch/errors.h"
#include "shardtorch/sharded_tensor/device_text.h"
#include "shardtorch/sharded_tensor/sharded_tensor_impl.h"

namespace shard {

namespace {

void check_memory_format(at::MemoryFormat format) {
  SHARD_CHECK(format == at::MemoryFormat::Preserve || format == at::MemoryFormat::Contiguous,
              "Only `torch.contiguous_format` or `torch.preserve_format` is supported!");
}

bool all_on(const ShardedTensorMetadata& metadata, c10::DeviceType type) {
  return std::ranges::all_of(metadata.shards_metadata, [type](const ShardMetadata& shard) {
    return shard.placement.has_value() && shard.placement->device().type() == type;
  });
}

/// The destination of shards. For other ranks only the kind of device is known, so such placements do not change.
struct Move {
  std::optional<at::Device> device;  ///< Nothing: no placement changes.
  const ProcessGroup& group;

  RemoteDevice operator()(RemoteDevice placement) const {
    if (!device.has_value()) return placement;
    const bool own = resolve_placement(group, placement).first == world_rank(group);
    if (own || placement.device().type() != device->type()) placement.set_device(*device);
    return placement;
  }
  ShardMetadata operator()(ShardMetadata shard) const {
    if (shard.placement.has_value()) shard.placement = (*this)(*shard.placement);
    return shard;
  }
  /// A chunk spec remains one with its dim. Other specs are inferred from the shards (null).
  ShardingSpecPtr operator()(const ShardingSpecPtr& spec) const {
    if (!device.has_value()) return spec;
    const ChunkShardingSpec* chunk = as_chunk(*spec);
    if (chunk == nullptr) return nullptr;
    std::vector<RemoteDevice> placements = chunk->placements();
    std::ranges::transform(placements, placements.begin(), *this);
    return chunk_spec(chunk->dim(), std::move(placements));
  }
};

/// Whether the result requires gradients. As in torch's `to`, it does not without autograd or for integers. Ranks may
/// differ in whether they need a new local tensor, so all of them use this rule.
TensorProperties moved_properties(TensorProperties properties, at::ScalarType dtype) {
  const bool differentiable = at::isFloatingType(dtype) || at::isComplexType(dtype);
  properties.dtype = dtype;
  properties.requires_grad = properties.requires_grad && differentiable && at::GradMode::is_enabled();
  properties.pin_memory = false;
  return properties;
}

/// Copies a local tensor to `device`, or to its own device.
at::Tensor moved(const at::Tensor& tensor, const ShardedTensor::ToOptions& options,
                 const TensorProperties& properties) {
  const at::Device device = options.device.value_or(tensor.device());
  const at::Tensor result = tensor.to(tensor.options().device(device).dtype(properties.dtype), options.non_blocking,
                                      options.copy || tensor.is_pinned(), options.memory_format);
  return result.requires_grad() && !properties.requires_grad ? result.detach() : result;
}

/// Always returns a new object. \pre a CUDA device is the current one
ShardedTensor moved(const ShardedTensor& tensor, const ShardedTensor::ToOptions& options) {
  const ProcessGroupPtr& group = impl_of(tensor).checked_group();
  const Move move{options.device, *group};
  ShardedTensorMetadata metadata = tensor.metadata();
  std::ranges::transform(metadata.shards_metadata, metadata.shards_metadata.begin(), move);
  metadata.tensor_properties = moved_properties(metadata.tensor_properties, options.dtype.value_or(tensor.dtype()));
  std::vector<Shard> shards;
  for (const Shard& shard : tensor.local_shards()) {
    shards.emplace_back(moved(shard.tensor, options, metadata.tensor_properties), move(shard.metadata));
  }
  return ShardedTensor::init_from_local_shards_and_global_metadata(
      std::move(shards), metadata, options.process_group ? options.process_group : group, tensor.init_rrefs(),
      move(tensor.sharding_spec()));
}

/// The device that `asked` means in `to`.
at::Device target_device(at::Device asked) {
  if (!asked.is_cuda()) return asked;
  const at::Device current = current_cuda_device();
  if (asked.has_index() && asked != current) {
    TORCH_WARN("ShardedTensor.to only moves a tensor to the current CUDA device, ", current, ", not to ", asked,
               ". To put shards elsewhere use `reshard`.");
  }
  return current;
}

/// Considers all placements, so that all ranks decide in the same way. The device index of other ranks is unknown.
bool is_on(const ShardedTensor& tensor, at::Device device) {
  return all_on(tensor.metadata(), device.type()) &&
         std::ranges::all_of(tensor.local_shards(),
                             [device](const Shard& shard) { return shard.tensor.device() == device; });
}

}  // namespace

ShardedTensor ShardedTensor::cpu(at::MemoryFormat memory_format, ProcessGroupPtr group) const {
  check_memory_format(memory_format);
  if (all_on(metadata(), at::kCPU)) return *this;
  return moved(*this, {.device = at::kCPU, .memory_format = memory_format, .process_group = std::move(group)});
}

ShardedTensor ShardedTensor::cuda(std::optional<at::Device> device, bool non_blocking, at::MemoryFormat memory_format,
                                  ProcessGroupPtr group) const {
  check_memory_format(memory_format);
  const at::Device current = current_cuda_device();
  SHARD_CHECK(!device.has_value() || *device == current || *device == at::Device(at::kCUDA),
              "Only device without device id (e.g. \"cpu\" or \"cuda\") is expected for ShardedTensor!");
  return moved(*this, {.device = current,
                       .non_blocking = non_blocking,
                       .memory_format = memory_format,
                       .process_group = std::move(group)});
}

ShardedTensor ShardedTensor::to(const ToOptions& options) const {
  ToOptions resolved = options;
  if (options.device.has_value()) resolved.device = target_device(*options.device);
  const bool is_there = !options.device.has_value() || is_on(*this, *resolved.device);
  if (!options.copy && is_there && options.dtype.value_or(dtype()) == dtype()) return *this;
  resolved.non_blocking = options.non_blocking && options.device.has_value() && !options.device->is_cpu();
  return moved(*this, resolved);
}

ShardedTensor ShardedTensor::to(at::ScalarType dtype) const { return to(ToOptions{.dtype = dtype}); }
ShardedTensor ShardedTensor::to(at::Device device) const { return to(ToOptions{.device = device}); }
ShardedTensor ShardedTensor::to(const char* device) const { return to(device_named(device)); }
ShardedTensor ShardedTensor::to(int cuda_index) const {
  return to(at::Device(at::kCUDA, static_cast<at::DeviceIndex>(cuda_index)));
}
ShardedTensor ShardedTensor::to(const at::Tensor& other) const { return to(other.device(), other.scalar_type()); }
ShardedTensor ShardedTensor::to(at::Device device, at::ScalarType dtype) const {
  return to(ToOptions{.device = device, .dtype = dtype});
}

}  // namespace shard
